"""Whether the code that kernels were compiled from is the code that is installed here.

Up to FlyDSL 0.4.2 the key of a kernel holds, beside FlyDSL, the functions that it calls in the folder of its launcher's
file alone (``compiler/jit_function.py``, _collect_dependency_sources): a helper elsewhere can change, and the old
kernel is found under the same name. A pack therefore names the files that each kernel was made from, by their paths
below the import system's folders (``aiter/ops/flydsl/kernels/gemm.py``), with their sha256. From 0.5 the key holds the
traced module, and a difference is worth a line of ``status`` alone.

Nothing that is looked at is imported.
"""

from __future__ import annotations

import os
import sys

from .discovery import UncertainError, finders, state_of, unchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN = "unknown"
"""What a manifest has for the version of a package that nothing tells."""


def find_package(name: str) -> list[str]:
    """The folders of a top-level package, or the file of a top-level module; empty where there is none.

    The import system's own answer, editable installs included: a finder that is asked for a top-level name imports
    nothing.
    """
    module = sys.modules.get(name)
    if module is not None:
        return list(getattr(module, "__path__", ())) or [
            str(file) for file in [getattr(module, "__file__", "")] if file
        ]
    for finder in finders():
        try:
            spec = finder.find_spec(name, None)
        except Exception:
            continue
        if spec is not None:
            return list(spec.submodule_search_locations or ()) or [origin for origin in [spec.origin] if origin]
    return []


def package_of(path: str) -> str:
    """The top-level package or module that a file of a pack's manifest belongs to."""
    top, _, rest = path.partition("/")
    return top if rest else top.removesuffix(".py")


class InstalledCode:
    """The files of packages as they are here; each is read once."""

    def __init__(self) -> None:
        self._folders: dict[str, list[str]] = {}
        self._digests: dict[str, str | None] = {}
        self._states: dict[str, str | None] = {}

    def folders(self, package: str) -> list[str]:
        """:func:`find_package`, asked once."""
        if package not in self._folders:
            self._folders[package] = [os.path.abspath(folder) for folder in find_package(package)]
        return self._folders[package]

    def digest(self, path: str) -> str | None:
        """The sha256 of a file, None where it is not there."""
        if path not in self._digests:
            self._digests[path], self._states[path] = self._read(path)
        return self._digests[path]

    def states(self, paths: Iterable[str]) -> str:
        """What :func:`holds` asks: where the packages are, and the states of their files when they were read.

        :raises UncertainError: they cannot be told, or written down.
        """
        lines = []
        packages = []
        for path in sorted(set(paths)):
            self.digest(path)
            if (state := self._states[path]) is None:
                raise UncertainError(path)
            lines.append(state)
            packages.append(package_of(path))
        words = [f"{package}:{os.pathsep.join(self.folders(package))}" for package in dict.fromkeys(packages)]
        if any("\t" in word or "\n" in word for word in [*words, *lines]):
            raise UncertainError("a path with a line break or a tab")
        return "\n".join(["\t".join(words), *lines]) if lines else ""

    def _read(self, path: str) -> tuple[str | None, str | None]:
        import hashlib

        _, _, rest = path.partition("/")
        for folder in self.folders(package_of(path)):
            file = os.path.join(folder, rest) if rest else folder
            try:
                # The state first: a file that changes meanwhile is then one that changed since.
                state = state_of(file)
            except UncertainError:
                state = None
            except OSError:
                continue
            try:
                with open(file, "rb") as content:
                    return hashlib.sha256(content.read()).hexdigest(), state
            except OSError:
                continue
        return None, None


def holds(states: str) -> bool:
    """Whether packages are where they were, with the files that they had: what :meth:`InstalledCode.states` wrote."""
    packages, _, files = states.partition("\n")
    for word in packages.split("\t"):
        name, _, folders = word.partition(":")
        if os.pathsep.join(map(os.path.abspath, find_package(name))) != folders:
            return False
    return unchanged(files)


def installed_version(package: str, distribution: str | None, folders: list[str]) -> str | None:
    """The version of the package in these folders, None where nothing says it.

    From the metadata beside the package, from an editable install's, or from the package's own ``_version.py`` or
    ``__init__.py``: metadata of the same name may belong to another installation.
    """
    from importlib import metadata

    for folder in folders:
        for name in filter(None, (distribution, package)):
            for found in metadata.distributions(name=name, path=[os.path.dirname(folder)]):
                return found.version
    for folder in folders:
        for name in ("_version.py", "__init__.py"):
            if version := _written_version(os.path.join(folder, name)):
                return version
    try:
        found = metadata.distribution(distribution or package)
        if '"editable": true' in (found.read_text("direct_url.json") or ""):
            return found.version
    except metadata.PackageNotFoundError:
        pass
    return None


def called(package: str, version: str | None) -> str:
    """A package with its version, for a message."""
    return f"{package} {version:.80}" if version and version != UNKNOWN else f"{package} of an unknown version"


def _written_version(path: str) -> str | None:
    import re

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return None
    match = re.search(r"^(?:__version__ = )?(?:__version__|version) = ['\"]([^'\"\n]{1,80})['\"]", text, re.MULTILINE)
    return match[1] if match else None
