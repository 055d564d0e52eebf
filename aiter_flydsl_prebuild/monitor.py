"""Seeing what FlyDSL does in a running process: how many kernels it found, and each one that it compiled.

    import aiter_flydsl_prebuild
    aiter_flydsl_prebuild.watch(log="compiles.jsonl")

Counts, warns at each compile with kernel, shape and seconds, and can append a line of JSON for each to a file, from
which ``plan --from-log`` tells what the next wheel should hold. Imports FlyDSL, and listens at three of its functions
that every release from 0.3.1 to 0.5 has (``compiler/jit_function.py``): the call of a launcher, JitCacheManager.get and
MlirCompiler.compile. Nothing is changed in what they do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

VARIABLE = "AITER_FLYDSL_PREBUILD_LOG"
"""A file for the compiles, in place of the argument ``log``."""

_LAUNCHED = re.compile(r"gpu\.launch_func\b[^@]*@\w+::@([\w.$-]+)")

_logger = logging.getLogger("aiter_flydsl_prebuild")
_lock = threading.Lock()
_calls = threading.local()


class Compile(NamedTuple):
    """One compile in this process.

    ``launcher`` is the host function, ``kernels`` the device functions' symbols, ``constants`` the numbers that were
    compiled in (from the launcher's and its kernels' closures, and arguments that are compile-time constants),
    ``arguments`` what it was called with: a tensor's dtype and shape, a number, or a type's name. ``time`` is seconds
    since the epoch, ``seconds`` what the compile took.
    """

    launcher: str
    kernels: list[str]
    constants: dict[str, Any]
    arguments: list[Any]
    seconds: float
    time: float
    pid: int


class Monitor:
    """Counts of this process: ``found`` kernels came out of the cache folder, ``compiles`` did not."""

    def __init__(self) -> None:
        self.found = 0
        self.compiles: list[Compile] = []
        self.log: str | None = None

    @property
    def compiled(self) -> int:
        """How many kernels FlyDSL compiled since the monitor started."""
        return len(self.compiles)

    def _add(self, event: Compile) -> None:
        with _lock:
            self.compiles.append(event)
        sizes = ", ".join(f"{name}={value}" for name, value in event.constants.items())
        name = event.kernels[0] if event.kernels else event.launcher
        shapes = ", ".join(str(a) for a in event.arguments if isinstance(a, str) and "[" in a)
        what = "; ".join(part for part in (sizes, shapes) if part)
        _logger.warning("aiter-flydsl-prebuild: FlyDSL compiled %s (%s) in %.2f s", name, what, event.seconds)
        if self.log is None:
            return
        line = json.dumps(event._asdict()) + "\n"
        try:
            # One write of one line, appended: lines of several processes do not mix.
            with open(self.log, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            _logger.warning("aiter-flydsl-prebuild: cannot write to %s: %s", self.log, error.strerror or error)
            self.log = None


_monitor: Monitor | None = None


def start(log: str | None = None) -> Monitor:
    """The monitor of this process, started if it was not; a second call changes the log alone.

    :param log: append each compile to this file as a line of JSON; by default what AITER_FLYDSL_PREBUILD_LOG names.
    :raises ImportError: FlyDSL cannot be imported.
    :raises PrebuildError: it is one that this project does not know.
    """
    global _monitor
    with _lock:
        if _monitor is None:
            monitor = Monitor()
            _listen(monitor)
            _monitor = monitor
        _monitor.log = log or os.environ.get(VARIABLE) or _monitor.log
        return _monitor


def _listen(monitor: Monitor) -> None:
    from .flydsl import listen

    def during_call(proceed: Callable[[], Any], launcher: Any, arguments: tuple[Any, ...], _: dict[str, Any]) -> Any:
        before = getattr(_calls, "current", None)
        _calls.current = (launcher, arguments)
        try:
            return proceed()
        finally:
            _calls.current = before

    def during_lookup(proceed: Callable[[], Any], manager: Any, key: str) -> Any:
        known = key in manager.memory_cache
        value = proceed()
        if value is not None and not known:
            with _lock:
                monitor.found += 1
        return value

    def during_compile(proceed: Callable[[], Any], module: Any, name: str) -> Any:
        started = time.perf_counter()
        result = proceed()
        launcher, arguments = getattr(_calls, "current", (None, ()))
        monitor._add(
            Compile(
                launcher=name or str(getattr(getattr(launcher, "func", None), "__name__", "")),
                kernels=device_functions(module),
                constants=_constants(launcher),
                arguments=[_describe(argument) for argument in arguments],
                seconds=round(time.perf_counter() - started, 4),
                time=round(time.time(), 3),
                pid=os.getpid(),
            )
        )
        return result

    with contextlib.ExitStack() as wrapped:
        wrapped.callback(listen.around_calls(during_call))
        wrapped.callback(listen.around_lookups(during_lookup))
        wrapped.callback(listen.around_compiles(during_compile))
        wrapped.pop_all()  # all three or none


def device_functions(module: Any) -> list[str]:
    """The device functions that an MLIR module's host function starts."""
    return sorted(set(_LAUNCHED.findall(str(module))))


def _constants(launcher: Any) -> dict[str, Any]:
    """The numbers and words in the closures of a launcher and of the kernels that it calls."""
    found: dict[str, Any] = {}
    waiting = [getattr(launcher, "func", None)]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        code = getattr(function, "__code__", None)
        if code is None or id(function) in seen:
            continue
        seen.add(id(function))
        for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if isinstance(value, (bool, int, float, str)):
                found.setdefault(name, value)
            else:
                waiting.append(getattr(value, "_func", None) or getattr(value, "func", None) or value)
    return dict(sorted(found.items()))


def _describe(argument: Any) -> Any:
    if isinstance(argument, (bool, int, float, str)) or argument is None:
        return argument
    shape, dtype = getattr(argument, "shape", None), getattr(argument, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
    return type(argument).__name__
