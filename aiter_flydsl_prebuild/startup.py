"""Seeding at the start of a process, for servers whose code cannot be changed.

* :func:`vllm_plugin` is an entry point of the group ``vllm.general_plugins``: vLLM calls it in each of its processes.
* :func:`at_startup` is called by a start-up file in site-packages, which ``aiter-flydsl-prebuild startup --install``
  puts there: every Python process of that environment runs it. Where nothing is to do (no GPU, or all is in place) that
  takes a fraction of a millisecond, since it imports nothing.

All may run many times, in any process, and after a fork.
"""

from __future__ import annotations

import os

from .marker import recall


def at_startup() -> None:
    """Seed unless it is plain that nothing is to do. Ends the process in strict mode alone, with the reason."""
    if recall() is not None:
        return
    from .errors import CheckError
    from .seeding import seed

    try:
        seed()
    except CheckError as error:
        # site passes over what a start-up file raises, and makes a fatal error with a traceback of SystemExit.
        os.write(2, f"{error}\n".encode())
        os._exit(1)


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
