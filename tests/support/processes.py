"""Processes that the tests start, and where the files for them are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain, scrubbed_environment

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
ARCH = "gfx950"


def flydsl_environment(toolchain: Toolchain, cache_dir: Path, **more: str) -> dict[str, str]:
    """A clean environment in which FlyDSL compiles for gfx950 and does not launch."""
    environment = scrubbed_environment(os.environ, rocm_root=toolchain.rocm_root, arch=ARCH, cache_dir=cache_dir)
    return {**environment, "COMPILE_ONLY": "1", **more}


def run_python(
    arguments: list[str], environment: dict[str, str], python: str | Path = sys.executable, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a Python process to its end; its output comes back as text."""
    return subprocess.run(
        [str(python), *arguments], env=environment, capture_output=True, text=True, check=False, **options
    )


def prebuild(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = ["-m", "aiter_flydsl_prebuild", *map(str, arguments)]
    return run_python(command, dict(os.environ) if environment is None else environment)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether this became so in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start_interruptible(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process that SIGINT and SIGHUP end, also where this one ignores them: in the background, or under nohup.

    A child inherits an ignored signal, and Python then sets no handler of its own.
    """

    def heed() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(command, text=True, preexec_fn=heed, **options)
