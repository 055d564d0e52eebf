"""Precompiled FlyDSL kernels for AITER: seeded at import, proven at build time.

``seed()`` puts the kernels of the installed packs into FlyDSL's cache folder. Importing this package loads nothing
else; neither it nor ``seed`` imports torch, numpy or FlyDSL.
"""

from __future__ import annotations

# typing alone costs more than this whole package may.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .monitor import Monitor
    from .report import SeedReport
    from .warming import WarmReport

__version__ = "0.1.0"
__all__ = ["__version__", "seed", "status", "warm", "watch"]


def seed(packages: Iterable[str] = (), **options: Any) -> SeedReport:
    """Seed FlyDSL's cache from the installed packs; see :func:`aiter_flydsl_prebuild.seeding.seed`."""
    names = tuple(packages)
    if not options:
        import time

        from .marker import recall

        # All that a start with everything in place needs: what follows takes ten times as long to import as to run.
        started = time.perf_counter()
        if (found := recall(names)) is not None:
            from .report import recalled

            return recalled(started, *found)
    from .seeding import seed as run

    return run(names, **options)


def status(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """What fits here, what is seeded, and where; see :func:`aiter_flydsl_prebuild.state.status`."""
    from .state import status as run

    return run(*args, **kwargs)


def watch(log: str | None = None) -> Monitor:
    """Count what FlyDSL finds and compiles in this process; see :mod:`aiter_flydsl_prebuild.monitor`."""
    from .monitor import start

    return start(log)


def warm(packages: Iterable[str] = (), **options: Any) -> WarmReport:
    """Pay for the first call of every kernel now; see :func:`aiter_flydsl_prebuild.warming.warm`."""
    from .warming import warm as run

    return run(packages, **options)
