"""Temporary folders that do not outlive their process, however it ends.

A process that is killed cannot remove its folder, and neither can one on a machine that loses power. So the owner of a
folder holds a lock on a file in it (flock, which the kernel drops when the process ends), and whoever makes the next
folder beside it removes those whose lock nobody holds. Process ids would not do: they are reused, and containers that
share a temporary folder count their own.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "afp-"
"""How the names of this project's temporary folders begin; with a dot in front where they lie beside results."""

_LOCK = ".afp-lock"


@contextlib.contextmanager
def scratch_folder(purpose: str, beside: Path | None = None) -> Iterator[Path]:
    """A private temporary folder, removed at the end. Those of dead processes are removed first.

    :param purpose: one word for the folder's name.
    :param beside: the folder to make it in, for files that are renamed into place there; by default the system's.
    :raises OSError: it cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if beside is None else beside
    remove_abandoned(parent)
    prefix = f"{'' if beside is None else '.'}{PREFIX}{purpose}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute()
    owner, lock = os.getpid(), -1
    try:
        lock = _lock(folder)
        yield folder
    finally:
        # A forked child that ends here must not take its parent's folder away.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
        # Unlocked last: until then nobody else removes it.
        if lock >= 0:
            os.close(lock)


def lasting_scratch_folder(purpose: str) -> Path:
    """A scratch folder for the rest of this process.

    :raises OSError: it cannot be made.
    """
    stack = contextlib.ExitStack()
    folder = stack.enter_context(scratch_folder(purpose))
    atexit.register(stack.close)
    return folder


def _lock(folder: Path) -> int:
    """Make the lock file, which appears under its name once it is locked; programs started from here do not."""
    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # A file system without locks: then nobody else removes this folder.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        new.rename(folder / _LOCK)
    return descriptor


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove this user's folders in ``parent`` whose process is dead; returns them."""
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(parent.iterdir()):
            if path.name.removeprefix(".").startswith(PREFIX) and _remove_if_abandoned(path):
                removed.append(path)
    return removed


def _remove_if_abandoned(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # No folder of ours, or gone already.
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # Its owner is alive.
        return False
    finally:
        os.close(descriptor)
    return not folder.exists()
