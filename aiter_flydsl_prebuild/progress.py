"""How far a long piece of work is, for people: a bar on a terminal, plain lines elsewhere. Never on stdout."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_SHARE, PLAIN_SECONDS = 0.1, 10.0
"""A plain line is due after this share of the work, or this time, whichever is first."""


class Progress:
    """A context manager around ``total`` steps; :meth:`advance` after each.

    ``action`` and ``unit`` are words for the display: "compiling", "kernels". ``stream`` is stderr unless given, so
    that stdout stays clean for ``--json``. The bar needs rich and a terminal that can move its cursor; without either,
    each failure gets a line, and the work one at its start, about every 10 % or 10 s, and at its end.
    """

    def __init__(
        self,
        total: int,
        *,
        action: str = "compiling",
        unit: str = "kernels",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._action, self._unit = action, unit
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._began = self._last_time = clock()
        self._last_done = 0
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        self._began = self._last_time = self._clock()
        if _can_draw(self._stream):
            self._bar = self._make_bar()
            self._bar.start()
        else:
            self._say(f"{self._action} {self.total} {self._unit}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is not None:
            self._say(f"{self._action} stopped: {self._state()}")
        elif self._last_done != self.done or self.total == 0:
            self._say(self._state())

    def advance(self, ok: bool, label: str) -> None:
        """One step is done. ``label`` names it; it is shown when the step failed."""
        self.done += 1
        self.failed += not ok
        if self._bar is not None and self._task is not None:
            if not ok:
                self._bar.console.print(f"failed: {label}", style="red", markup=False, highlight=False)
            self._bar.update(self._task, completed=self.done, failures=f"{self.failed} failed" if self.failed else "")
            return
        if not ok:
            self._say(f"failed: {label}")
        now = self._clock()
        due = self.done - self._last_done >= PLAIN_SHARE * self.total or now - self._last_time >= PLAIN_SECONDS
        if due or self.done == self.total:
            self._last_done, self._last_time = self.done, now
            self._say(self._state())

    def _state(self) -> str:
        elapsed = self._clock() - self._began
        parts = [f"{self.done} of {self.total} {self._unit}", f"{self.failed} failed" if self.failed else ""]
        parts.append(f"{_duration(elapsed)} elapsed")
        if 0 < self.done < self.total:
            parts.append(f"about {_duration(elapsed / self.done * (self.total - self.done))} left")
        return ", ".join(part for part in parts if part)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _make_bar(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self._unit),
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("[red]{task.fields[failures]}"),
            console=Console(file=self._stream),
            # Else rich would put what others print to stdout on its own stream.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = bar.add_task(self._action, total=self.total, failures="")
        return bar


def _can_draw(stream: TextIO) -> bool:
    if not stream.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return False
    return importlib.util.find_spec("rich") is not None


def _duration(seconds: float) -> str:
    """Seconds in words that stay short: 42 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
