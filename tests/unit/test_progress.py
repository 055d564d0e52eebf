"""What a person sees while kernels compile."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.progress import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_come_at_the_start_every_tenth_and_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(100, stream=stream, clock=clock) as progress:
        for number in range(100):
            clock.now += 0.5
            progress.advance(number != 41, f"kernel {number}")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "compiling 100 kernels"
    assert lines[1] == "10 of 100 kernels, 5 s elapsed, about 45 s left"
    assert lines[5] == "failed: kernel 41"
    assert lines[-1] == "100 of 100 kernels, 1 failed, 50 s elapsed"
    assert len(lines) == 1 + 10 + 1


def test_plain_lines_come_after_ten_seconds_too() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(1000, action="proving", unit="calls", stream=stream, clock=clock) as progress:
        for _ in range(3):
            clock.now += 6
            progress.advance(True, "")
        clock.now += 4000
        progress.advance(True, "")
    assert stream.getvalue().splitlines() == [
        "proving 1000 calls",
        "2 of 1000 calls, 12 s elapsed, about 1 h 39 min left",
        "4 of 1000 calls, 1 h 6 min elapsed, about 277 h 54 min left",
    ]


def test_work_that_stops_early_says_where() -> None:
    stream = io.StringIO()

    def interrupted() -> None:
        with Progress(3, stream=stream, clock=Clock()) as progress:
            progress.advance(True, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().splitlines()[-1].startswith("compiling stopped: 1 of 3 kernels")


def test_no_work_at_all() -> None:
    stream = io.StringIO()
    with Progress(0, stream=stream, clock=Clock()):
        pass
    assert stream.getvalue().splitlines() == ["compiling 0 kernels", "0 of 0 kernels, 0 s elapsed"]


SCRIPT = """
import sys
from aiter_flydsl_prebuild.progress import Progress
with Progress(4) as progress:
    for n in range(4):
        progress.advance(n != 2, f"[bold]kernel {n}")
print("result on stdout")
print(progress.done, progress.failed)
"""


def test_stdout_stays_clean() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["result on stdout", "4 1"]
    assert "4 of 4 kernels, 1 failed" in done.stderr


@pytest.mark.parametrize("terminal", ["xterm-256color", "dumb"])
def test_a_bar_on_a_terminal_that_can_draw_one(tmp_path: Path, terminal: str) -> None:
    pytest.importorskip("rich")
    master, slave = pty.openpty()
    out = tmp_path / "out"
    with out.open("w") as stdout:
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": terminal, "COLUMNS": "100"},
            stdout=stdout,
            stderr=slave,
            check=True,
        )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # how Linux reports the end of a terminal
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert out.read_text().splitlines() == ["result on stdout", "4 1"]
    text = shown.decode()
    assert "failed: [bold]kernel 2" in text, "a label is no markup"
    assert ("\x1b[" in text) == (terminal != "dumb")
    assert ("4/4" in text) == (terminal != "dumb")
    assert "1 failed" in text
