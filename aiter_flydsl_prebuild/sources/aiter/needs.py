"""What AITER needs here: the FlyDSL that it pins, and the packages that it imports.

AITER's own metadata does not name all of them (torch and triton come with the images that it is built in), so that the
first import that fails names one of several. Here they are all found, and how to get them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import PrebuildError
from ..environment import Finding
from .installed import DISTRIBUTION, PACKAGE, Installed, find

FLYDSL = "flydsl"

IMPORTED = ("torch", FLYDSL, "packaging", "pandas", "triton")
"""What importing AITER's FlyDSL ops takes (e4048607, tried in an environment without any of them)."""

ESSENTIAL = frozenset({"torch", FLYDSL})
"""Those for which nothing can stand in, to see what else is not there."""

DECLARED = ("einops", "psutil")
"""What AITER's setup.py requires beside these, and other parts of it import."""

# setup.py, requirements.txt and pyproject.toml of a checkout; METADATA of an installation.
_PINNING_FILES = ("setup.py", "requirements.txt", "pyproject.toml")
_PIN = re.compile(r"\bflydsl\s*(==\s*[0-9][0-9A-Za-z.+!]*)")


def pinned_flydsl(aiter: Installed) -> str | None:
    """The FlyDSL that an AITER pins, as ``flydsl==0.3.1``; None where neither sources nor metadata pin one."""
    for name in _PINNING_FILES:
        try:
            text = (aiter.root / name).read_text(encoding="utf-8")
        except OSError:
            continue
        if match := _PIN.search(text):
            return FLYDSL + match[1].replace(" ", "")
    # A wheel that was unpacked lies beside its metadata, which need not be on the import path.
    for distribution in importlib.metadata.distributions(name=DISTRIBUTION, path=[str(aiter.root)]):
        for requirement in distribution.requires or ():
            if match := _PIN.search(requirement):
                return FLYDSL + match[1].replace(" ", "")
    return None


def requirements(aiter: Installed) -> list[str]:
    """What to give pip so that AITER's kernels can be built, in the forms that pip reads."""
    pin = pinned_flydsl(aiter) or FLYDSL
    return [pin if name == FLYDSL else name for name in (*IMPORTED, *DECLARED)]


def known_absent() -> list[str]:
    """Those of :data:`IMPORTED` that are not installed."""
    return [name for name in IMPORTED if importlib.util.find_spec(name) is None]


def versions() -> dict[str, str | None]:
    """The version of each package that AITER imports, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in IMPORTED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


class MissingError(PrebuildError):
    """AITER imports what is not installed: ``what`` is it, ``advice`` how to install all of it."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}\n  {advice}")
        self.what, self.advice = what, advice


def missing(aiter: Installed, absent: list[str]) -> MissingError:
    """The error for modules that are not there."""
    pin = pinned_flydsl(aiter)
    wanted = [pin if name == FLYDSL and pin else name for name in absent]
    return MissingError(
        f"AITER ({aiter.package}) imports what is not installed here: {', '.join(absent)}",
        f"pip install {' '.join(dict.fromkeys(wanted))}",
    )


def not_installed(error: BaseException) -> str | None:
    """The package that an import failed for want of, where it is neither AITER's own nor FlyDSL's; None otherwise.

    AITER wraps some of its imports, so that the causes of an error are looked at too.
    """
    for cause in _causes(error):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            top = cause.name.partition(".")[0]
            installed = importlib.util.find_spec(top) is not None
            if top == PACKAGE or installed:
                continue
            return top
    return None


def why(error: Exception) -> str:
    """Why AITER's kernels cannot be used, from what their import raised: FlyDSL is named where it is FlyDSL's fault."""
    said = f"{type(error).__name__}: {error}"
    for cause in _causes(error):
        module = getattr(cause, "name", None) if isinstance(cause, ImportError) else None
        if isinstance(cause, AttributeError):
            module = getattr(cause.obj, "__name__", None) or type(cause.obj).__module__
        if str(module or "").partition(".")[0] == FLYDSL:
            return f"the installed FlyDSL lacks what they use ({said}){_other_than_pinned()}"
    return f"AITER's modules cannot be imported here ({said})"


def _other_than_pinned() -> str:
    pin, version = pinned_flydsl(find()), versions()[FLYDSL]
    return "" if pin in (None, f"{FLYDSL}=={version}") else f"; it is {version}, and this AITER pins {pin}"


def flydsl(aiter: Installed) -> Finding:
    """Whether the installed FlyDSL is the one that an AITER pins."""
    pin, version = pinned_flydsl(aiter), versions()[FLYDSL]
    if pin is None:
        return Finding("AITER's FlyDSL", "ok", "this AITER pins none")
    if pin == f"{FLYDSL}=={version}":
        return Finding("AITER's FlyDSL", "ok", f"{pin}, as this AITER pins it")
    advice = f"pip install {pin}, where the servers run that: kernels are for one FlyDSL"
    return Finding("AITER's FlyDSL", "warning", f"this AITER pins {pin}, installed is {version or 'none'}", advice)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def stand_in(absent: Sequence[str]) -> StandIns:
    """Let packages that are not installed be imported in this process, so that it shows what else is not.

    A process that has them answers nothing else.
    """
    found = StandIns(absent)
    sys.meta_path.append(found)
    return found


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that are not there, and whatever is sought in them; ``imported`` are those that AITER imports."""

    def __init__(self, absent: Sequence[str]) -> None:
        self._absent = frozenset(name.partition(".")[0] for name in absent)
        self.imported: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top not in self._absent:
            return None
        if top not in self.imported and _importer().partition(".")[0] == PACKAGE:
            self.imported.append(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def _importer() -> str:
    """The module whose import statement is running."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


class _Absent(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Anything:
    """Whatever is done with it at import: called, subscribed, decorated with, derived from."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and not named and callable(arguments[0]) else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, key: Any) -> Any:
        return _Anything()

    def _two(self, other: Any) -> Any:
        return _Anything()

    __or__ = __ror__ = __add__ = __radd__ = __mul__ = __rmul__ = _two

    def _compared(self, other: Any) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _compared

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()
