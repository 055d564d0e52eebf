"""Processes of a build: their environment, and how they end, with all that they started and nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import types
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class _Terminated(BaseException):
    """A signal, on its way to the end of :func:`terminated_cleanly`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def terminated_cleanly() -> Iterator[None]:
    """Let the default action of SIGTERM and SIGHUP wait until everything inside has been cleaned up.

    Does nothing off the main thread, or where somebody else handles the signal; so it may be nested.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [number for number in _ENDINGS if signal.getsignal(number) == signal.SIG_DFL]

    def handle(number: int, frame: types.FrameType | None) -> None:
        raise _Terminated(number)

    for number in mine:
        signal.signal(number, handle)
    try:
        yield
    except _Terminated as end:
        if end.number not in mine:
            raise
        signal.signal(end.number, signal.SIG_DFL)
        os.kill(os.getpid(), end.number)
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent ends, however that happens (Linux: prctl PR_SET_PDEATHSIG).

    :param number: the signal: SIGKILL, or SIGTERM inside :func:`terminated_cleanly` where something is to be removed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of this process for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
