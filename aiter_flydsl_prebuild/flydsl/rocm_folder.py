"""The small per-user folder that stands for a ROCm installation in a compile; toolchain.py says why, and its layout."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..paths import user_cache
from ..scratch import lasting_scratch_folder, scratch_folder

APP_FOLDER = "aiter-flydsl-prebuild"


def cache_base(environment: Mapping[str, str]) -> Path:
    """The user's cache folder for this project. Raises OSError where it would not be private to this user."""
    cache = user_cache(environment)
    if cache is None:
        raise FileNotFoundError("this user has no home")
    base = Path(cache) / APP_FOLDER
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = base.stat()
    # What lies in it is run: nobody else may be able to rename or replace it.
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{base} belongs to another user, or others can write to it")
    return base


@functools.lru_cache(maxsize=1)
def temporary_base() -> Path:
    return lasting_scratch_folder("toolchain")


def publish(base: Path, script: str, bitcode: Path | None) -> Path:
    """The folder with exactly these contents below ``base``, made anew unless it is there and right.

    One builder at a time makes it, under another name, and renames it: others see all of it or nothing. Raises OSError.
    """
    digest = hashlib.sha256(f"{script}\0{bitcode or ''}".encode()).hexdigest()[:16]
    final = base / f"toolchain-{digest}"
    if _is_right(final, script, bitcode):
        return final
    # Without the lock, what another builder has just made could be taken for what has to go. It ends with the file.
    with (base / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_right(final, script, bitcode):
            with scratch_folder("toolchain", beside=base) as scratch:
                _fill(scratch / "new", script, bitcode)
                if os.path.lexists(final):
                    final.rename(scratch / "old")
                (scratch / "new").rename(final)
    return final


def _fill(folder: Path, script: str, bitcode: Path | None) -> None:
    linker = folder / "llvm" / "bin" / "ld.lld"
    linker.parent.mkdir(parents=True)
    linker.write_text(script)
    linker.chmod(0o700)
    if bitcode is not None:
        (folder / "amdgcn").mkdir()
        (folder / "amdgcn" / "bitcode").symlink_to(bitcode, target_is_directory=True)
    folder.chmod(0o700)


def _is_right(folder: Path, script: str, bitcode: Path | None) -> bool:
    """Whether the folder is this user's alone and holds exactly what it should."""
    linker, link = folder / "llvm" / "bin" / "ld.lld", folder / "amdgcn" / "bitcode"
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return False
        if linker.read_text() != script or not os.access(linker, os.X_OK):
            return False
        if bitcode is None:
            return not os.path.lexists(folder / "amdgcn")
        return link.is_symlink() and link.readlink() == bitcode
    except (OSError, UnicodeDecodeError):
        return False
