"""Seeding at the start of a process, for servers whose code cannot be changed.

* :func:`vllm_plugin` is an entry point of the group ``vllm.general_plugins``: vLLM calls it in each of its processes.
* :func:`at_startup` is called by start-up files in site-packages, which ``aiter-flydsl-prebuild startup --install``
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
    """Seed in a process of vLLM, before it loads a model, and have its JIT monitor see FlyDSL's compiles.

    Watches the process where AITER_FLYDSL_PREBUILD_LOG names a file.
    """
    from . import seed
    from .errors import PrebuildError
    from .monitor import VARIABLE, start
    from .vllm_monitor import follow

    seed()
    _follow_vllm()
    follow()
    if os.environ.get(VARIABLE):
        try:
            start()
        except ImportError:
            return  # without FlyDSL there is nothing to watch
        except PrebuildError as error:
            from .seeding import log

            log([f"{VARIABLE} is set, and nothing is watched: {error}"])


def _follow_vllm() -> None:
    """Seed the folder that vLLM's monokernel uses in place of one that the user set and that cannot be used.

    seed() has said what is wrong with that one. The variable stays as it is: other kernels are looked for there.
    """
    from .discovery import CACHE_VARIABLE
    from .places import vllm_folder

    if (folder := vllm_folder(os.environ)) is None:
        return
    from .seeding import log, seed

    report = seed(cache_dir=folder, environ={**os.environ, CACHE_VARIABLE: folder})
    if report.kernels:
        log([f"vLLM's monokernel uses {folder} instead: {report.kernels} kernels are in place there"])


def startup_files() -> dict[str, str]:
    """Path -> content of what seeds at the start of every Python of this environment.

    A ``.pth`` file with an import line; from Python 3.15 on a ``.start`` file (PEP 829), since 3.18 ignores the former.
    Both outlive this package, and do nothing then. site executes a line at a time, hence the line breaks in a string.
    A ``.start`` file cannot hold code, and Python prints a traceback at every start for a function that is not there,
    so it names one in a module of its own.
    """
    import sysconfig

    folder = sysconfig.get_path("purelib")
    if sys.version_info < (3, 15):
        return {os.path.join(folder, "aiter_flydsl_prebuild.pth"): f"{_COMMENT}import sys; exec({_START!r})\n"}
    module = "_aiter_flydsl_prebuild_startup"
    return {
        os.path.join(folder, f"{module}.py"): f"{_COMMENT}\n\ndef at_startup():\n{_indented(_START)}",
        os.path.join(folder, "aiter_flydsl_prebuild.start"): f"{_COMMENT}{module}:at_startup\n",
    }


_COMMENT = "# Written by `aiter-flydsl-prebuild startup --install`. Without that package it does nothing: remove it.\n"

_START = """\
try:
    from aiter_flydsl_prebuild.startup import at_startup as start
except ModuleNotFoundError:
    pass
else:
    start()
"""


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())
