"""Standing by until FlyDSL is imported: then its tables and launchers are put in front of it.

What was seeded for this process is known by its stamps in the cache folder (seeding.py): ``<stamp>.lookup`` is a table,
``<stamp>.so`` a library of launchers. A process that never imports FlyDSL pays for one more finder of modules, which
looks at a name and finds nothing. Imports nothing that a bare interpreter has not loaded already.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

AWAITED = "flydsl.compiler.jit_function"
"""The last of FlyDSL's modules that is patched; it imports the others."""

LOOKUP_SUFFIX = ".lookup"
LAUNCHERS_SUFFIX = ".so"
PLACES_SUFFIX = ".so.json"
"""Where in the library the functions are."""

_stamps: Callable[[], list[str]] | None = None


def arm(stamps: Callable[[], list[str]]) -> None:
    """Use what was seeded under these stamps, as soon as FlyDSL is there.

    :param stamps: gives their paths, without a suffix, when they are needed. A later call's take the place of an
        earlier one's as long as FlyDSL has not been imported.
    """
    global _stamps
    if _stamps is not None or AWAITED not in sys.modules:
        if not any(isinstance(finder, _Waiting) for finder in sys.meta_path) and AWAITED not in sys.modules:
            sys.meta_path.insert(0, _Waiting())
        _stamps = stamps
        return
    _stamps = stamps
    _enable(sys.modules[AWAITED])


def _enable(jit: Any) -> None:
    """Never raises: FlyDSL works without."""
    from .enable import enable

    if _stamps is not None:
        enable(jit, _stamps)


class _Waiting:
    """A finder that finds one module, with a loader that runs :func:`_enable` behind it, and is gone then."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != AWAITED:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """A module's own loader, and what comes after."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # What asks the module for its loader gets its own.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _enable(module)
