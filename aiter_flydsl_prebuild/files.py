"""Files that appear under their names whole or not at all, and what is left of those that never did."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from .discovery import TEMPORARY

Pieces = Sequence[bytes]
"""The content of a file, end to end."""

TRIES = 5
"""How often a file is written that somebody deletes meanwhile."""

_STALE_SECONDS = 3600.0


def temporary_path(folder: str) -> str:
    """A name in a folder for what is being written there."""
    return os.path.join(folder, f"{TEMPORARY}{os.urandom(8).hex()}.tmp")


def write_whole(target: str, *pieces: bytes, mode: int = 0o600) -> None:
    """Make ``target`` hold these bytes by rename: nobody ever sees a part of them.

    :param mode: of which the process's umask takes away.
    """
    temporary = temporary_path(os.path.dirname(target))
    try:
        create(temporary, pieces, mode)
        os.replace(temporary, target)
    except BaseException:
        remove(temporary)
        raise


def publish(target: str, *pieces: bytes) -> None:
    """:func:`write_whole` for a folder that others may delete meanwhile: it is made anew."""
    for attempt in range(1, TRIES + 1):
        try:
            write_whole(target, *pieces)
            return
        except FileNotFoundError:
            # Somebody deleted the folder meanwhile, or swept the file: a clock that was set looks like an hour gone by.
            if attempt == TRIES:
                raise
            make_folders(os.path.dirname(target))
    raise AssertionError("unreachable")


def make_folders(folder: str) -> None:
    """Make a folder and those above it that are missing, for their owner alone."""
    missing = []
    above = os.path.abspath(folder)
    while not os.path.isdir(above) and above != os.path.dirname(above):
        missing.append(above)
        above = os.path.dirname(above)
    for path in reversed(missing):
        # makedirs gives the mode to the last folder alone.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode=0o700)


def create(path: str, pieces: Pieces, mode: int = 0o600) -> None:
    """Make a new file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        taken = os.writev(descriptor, pieces)
        # One call may take less, on a network's file system or a full one.
        rest = memoryview(b"".join(pieces))[taken:] if taken < sum(map(len, pieces)) else b""
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def holds(target: str, pieces: Pieces) -> bool:
    """Whether a file is there and holds exactly these bytes."""
    data = b"".join(pieces)
    try:
        with open(target, "rb") as file:
            return file.read(len(data) + 1) == data
    except (FileNotFoundError, PermissionError):
        # What another user wrote for themselves, FlyDSL cannot read either.
        return False


def size_of(path: str) -> int | None:
    """How many bytes a file has; None where there is none."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove(path: str) -> bool:
    """Remove a file; returns whether there was one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_folder(folder: str) -> None:
    """Remove a folder of files, as far as that goes, if it is there."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def sweep(folder: str, names: Iterable[str]) -> None:
    """Remove what a process that was killed while seeding left behind, once it is surely dead.

    What is as far in the future was written before the clock was set back.
    """
    left = [os.path.join(folder, name) for name in names if name.startswith(TEMPORARY)]
    if not left:
        return
    with contextlib.suppress(OSError):
        # The clock that stamps these files may be a file server's, and this process's may be wrong.
        probe = os.path.join(folder, f"{TEMPORARY}{os.urandom(8).hex()}.now")
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        now = os.fstat(descriptor).st_mtime
        os.close(descriptor)
        for path in [probe, *left]:
            with contextlib.suppress(OSError):
                if path == probe or abs(now - os.stat(path).st_mtime) > _STALE_SECONDS:
                    remove_folder(path) if os.path.isdir(path) else os.unlink(path)
