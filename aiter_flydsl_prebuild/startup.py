"""Seeding at the start of a process, for servers whose code cannot be changed.

* :func:`vllm_plugin` is an entry point of the group ``vllm.general_plugins``: vLLM calls it in each of its processes.
* :func:`at_startup` is called by a start-up file in site-packages, which ``aiter-flydsl-prebuild startup --install``
  puts there: every Python process of that environment runs it. It seeds when the process first imports AITER or FlyDSL,
  so that one that never does pays for this module alone, which imports nothing.

All may run many times, in any process, and after a fork.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_AWAITED = ("aiter", "flydsl")
"""Packages without which no kernel is called."""


class _SeedFirst:
    """A finder of modules that finds none: it seeds when one of :data:`_AWAITED` is looked for, and is gone then."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in _AWAITED and self in sys.meta_path:
            sys.meta_path.remove(self)
            from . import seed

            seed()


def at_startup() -> None:
    """Seed as soon as this process imports AITER or FlyDSL. In strict mode that import raises what seeding raises."""
    if any(name in sys.modules for name in _AWAITED):
        from . import seed

        seed()
    elif not any(isinstance(finder, _SeedFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SeedFirst())


def vllm_plugin() -> None:
    """Seed in a process of vLLM, before it loads a model, and watch it where AITER_FLYDSL_PREBUILD_LOG names a file."""
    from . import seed
    from .monitor import VARIABLE, start

    seed()
    if os.environ.get(VARIABLE):
        try:
            start()
        except ImportError:
            return  # without FlyDSL there is nothing to watch


def startup_file() -> tuple[str, str]:
    """Path and content of the start-up file for this environment.

    A ``.pth`` file with an import line; from Python 3.15 on a ``.start`` file (PEP 829), since 3.18 ignores the former.
    """
    import sys
    import sysconfig

    folder = sysconfig.get_path("purelib")
    if sys.version_info >= (3, 15):
        return os.path.join(folder, "aiter_flydsl_prebuild.start"), "aiter_flydsl_prebuild.startup:at_startup\n"
    line = "import aiter_flydsl_prebuild.startup; aiter_flydsl_prebuild.startup.at_startup()\n"
    return os.path.join(folder, "aiter_flydsl_prebuild.pth"), line
