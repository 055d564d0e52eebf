"""What takes seconds to make and is only read by tests: made once for all processes of a run (pytest-xdist)."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path


class Shared:
    """A folder of all processes of a run, below the run's own temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def get(self, name: str, make: Callable[[Path], None]) -> Path:
        """The folder that ``make`` filled, in whichever process asked first; the others wait for it.

        Where making it fails, each process fails for itself.
        """
        folder, done = self._folder / name, self._folder / f"{name}.done"
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                done.touch()
        return folder
