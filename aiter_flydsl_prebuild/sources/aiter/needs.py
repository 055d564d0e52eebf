"""What AITER needs here: the FlyDSL that it pins, and the packages that it imports.

AITER's own metadata does not name all of them (torch and triton come with the images that it is built in), so that the
first import that fails names one of several. Here they are all found, and how to get them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import re
import types
from collections.abc import Iterator
from typing import Any

from ...builder.doctor import Finding
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


def complaint(aiter: Installed, absent: list[str]) -> list[str]:
    """The lines that say what is not installed, and how to install it."""
    absent = [name for name in absent if (top := name.partition(".")[0]) == name or top not in absent]
    pin = pinned_flydsl(aiter)
    wanted = [pin if name == FLYDSL and pin else name.partition(".")[0] for name in absent]
    return [
        f"AITER ({aiter.package}) needs what is not installed here: {', '.join(absent)}",
        f"  pip install {' '.join(dict.fromkeys(wanted))}",
    ]


def not_installed(error: BaseException) -> str | None:
    """The module that an import failed for want of, where it is neither AITER's own nor FlyDSL's; None otherwise.

    AITER wraps some of its imports, so that the causes of an error are looked at too. A package that is installed and
    lacks a module is named with that module.
    """
    for cause in _causes(error):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            top = cause.name.partition(".")[0]
            if top == PACKAGE or (top == FLYDSL and cause.name != FLYDSL):
                continue
            return top if importlib.util.find_spec(top) is None else cause.name
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


class Absent(types.ModuleType):
    """Stands for a module that is not installed, so that the imports after it show what else is not.

    A process that has one answers nothing else.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__: list[str] = []

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

    def __or__(self, other: Any) -> Any:
        return _Anything()

    __ror__ = __or__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()
