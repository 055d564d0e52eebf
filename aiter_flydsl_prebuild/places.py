"""Where to seed: the folder that FlyDSL will read in this process, and what speaks against it.

    FLYDSL_RUNTIME_CACHE_DIR set by the user ──▶ that folder, whatever it is
    not set, or AITER's own package folder   ──▶ ~/.flydsl/cache, else the XDG cache, else a private temporary folder

Where the choice is not what FlyDSL would take by itself, the variable is set for this process and its children.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from . import flydsl_cache as cache
from .discovery import CACHE_VARIABLE, default_cache_dir
from .target import driver_arches, environment_arch, featured

# FlyDSL utils/env.py, OptBool: what counts as true.
_TRUE = ("1", "true", "yes", "on")

_TEMPORARY = "aiter-flydsl-prebuild-"
"""What a private folder in the temporary folder is called, before the user's number."""


class Place(NamedTuple):
    """A folder to seed; with ``announce``, FlyDSL takes it only if the variable says so."""

    folder: str
    announce: bool


def places(environ: Mapping[str, str], bundled: str | None) -> list[Place]:
    """The folders to try, best first.

    :param bundled: :func:`discovery.bundled_folder`; FlyDSL must lock what it reads, which it cannot do in an
        installed package.
    """
    chosen = environ.get(CACHE_VARIABLE)
    if chosen and (bundled is None or os.path.realpath(chosen) != bundled):
        return [Place(chosen, announce=False)]
    # With a folder in its package, AITER would set the variable to that one unless it is set already.
    home = os.path.expanduser("~")
    found = []
    if os.path.isabs(home):
        found.append(Place(default_cache_dir(), announce=bundled is not None))
        found.append(Place(os.path.join(environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "flydsl"), True))
    temporary = environ.get("TMPDIR") or "/tmp"
    found.append(Place(os.path.join(temporary, f"{_TEMPORARY}{os.geteuid()}"), announce=True))
    return found


def make_private(folder: str) -> None:
    """Make a folder and those above it that are missing, for their owner alone.

    :raises OSError: it cannot be made or written to, or it is a temporary folder that somebody else made.
    """
    missing = []
    above = os.path.abspath(folder)
    while not os.path.isdir(above) and above != os.path.dirname(above):
        missing.append(above)
        above = os.path.dirname(above)
    for path in reversed(missing):
        # makedirs gives the mode to the last folder alone.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode=0o700)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        why = errno.EROFS if read_only else errno.EACCES
        raise OSError(why, os.strerror(why), folder)
    # Anyone can make a folder, or a link to one, of that name in a shared temporary folder, and wait.
    if os.path.basename(folder).startswith(_TEMPORARY) and (os.path.islink(folder) or not_private(folder)):
        raise PermissionError(errno.EACCES, "not private to this user", folder)


def not_private(folder: str) -> list[str]:
    """A warning where others can write to a folder; none where it does not exist."""
    try:
        state = os.stat(folder)
    except OSError:
        return []
    foreign = state.st_uid != os.geteuid()
    if not foreign and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return []
    what = "belongs to another user" if foreign else "can be written to by others"
    return [f"{folder} {what}: FlyDSL's entries are pickles, so who can write there can run code in this process"]


def defeated(environ: Mapping[str, str]) -> str | None:
    """Why no prebuilt kernel can be used under these settings, or None."""
    if environ.get("FLYDSL_RUNTIME_ENABLE_CACHE", "1").strip().lower() not in _TRUE:
        return "FLYDSL_RUNTIME_ENABLE_CACHE turns FlyDSL's cache off; unset it"
    if environ.get(CACHE_VARIABLE) == "":
        return f"{CACHE_VARIABLE} is empty, which turns FlyDSL's cache off; unset it or name a folder"
    if named := featured(environ):
        return named
    if changed := [name for name in cache.KEYED_VARIABLES if environ.get(name)]:
        return f"{', '.join(changed)} is set and enters FlyDSL's keys; kernels are built with it unset"
    return None


def cautions(environ: Mapping[str, str]) -> list[str]:
    """Settings under which kernels may be missed, a line each: folders that are not what they look like, arches."""
    lines = []
    chosen = environ.get(CACHE_VARIABLE, "")
    if chosen.startswith("~"):
        lines.append(f"{CACHE_VARIABLE}={chosen}: FlyDSL does not expand ~, and takes a folder of that name here")
    elif chosen and not os.path.isabs(chosen):
        lines.append(f"{CACHE_VARIABLE}={chosen} is relative: a process in another folder will miss the kernels")
    wanted, present = environment_arch(environ), driver_arches()
    if wanted and present and wanted not in present:
        lines.append(f"the environment makes FlyDSL compile for {wanted}, the GPU is {', '.join(present)}")
    return lines
