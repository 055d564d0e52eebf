"""Where to seed: the folder that FlyDSL will read in this process, and what speaks against it.

    FLYDSL_RUNTIME_CACHE_DIR set by the user        ──▶ that folder, whatever it is
    not set, FlyDSL's own default, or AITER's own   ──▶ ~/.flydsl/cache, else the XDG cache, else a private temporary
                                                        folder

Where the choice is not what FlyDSL would take by itself, the variable is set for this process and its children.

FlyDSL locks a file beside an entry to read it as well as to write it (``compiler/jit_function.py``, FileLock in
JitCacheManager.get and .compile_lock, 0.3.1 to 0.5.0). Where it cannot make or open that file, the read counts as a
miss, and the compile that follows raises: such a folder is no cache that is always cold, it is one in which every call
fails. A compiled entry that cannot be written afterwards (a full disk) is a warning of FlyDSL's alone.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .discovery import CACHE_VARIABLE, default_cache_dir, folder_in_use, listed
from .files import create, make_folders, temporary_path
from .flydsl import cache
from .marker import foreign_locks
from .paths import home, temporary_folders, user_cache
from .target import driver_arches, environment_arch, featured

# FlyDSL utils/env.py, OptBool: what counts as true.
_TRUE = ("1", "true", "yes", "on")

_TEMPORARY = "aiter-flydsl-prebuild-"
"""What a private folder in the temporary folder is called, before the user's number."""


class Place(NamedTuple):
    """A folder to seed; with ``announce``, FlyDSL takes it only if the variable says so.

    ``chosen`` says that the user named it: then there is no other.
    """

    folder: str
    announce: bool
    chosen: bool = False


class Choice(NamedTuple):
    """What :func:`choose` found: a folder, and lines about it; without ``usable``, nothing can be seeded there."""

    folder: str
    problems: list[str]
    usable: bool


def places(environ: Mapping[str, str], bundled: str | None) -> list[Place]:
    """The folders to try, best first.

    :param bundled: :func:`discovery.bundled_folder`; FlyDSL must lock what it reads, which it cannot do in an
        installed package.
    """
    own, chosen = default_cache_dir(), environ.get(CACHE_VARIABLE)
    # FlyDSL's own default is nobody's choice: vLLM sets the variable to it (see vllm_folder).
    if chosen and os.path.normpath(chosen) != own and (bundled is None or os.path.realpath(chosen) != bundled):
        return [Place(chosen, announce=False, chosen=True)]
    found = []
    if os.path.isabs(own):
        # With a folder in its package, AITER would set the variable to that one unless it is set already.
        found.append(Place(own, announce=bundled is not None))
    if xdg := user_cache(environ):
        found.append(Place(os.path.join(xdg, "flydsl"), announce=True))
    for parent in temporary_folders(environ):
        private = os.path.join(parent, f"{_TEMPORARY}{os.geteuid()}")
        found.append(Place(private, announce=True))
        if _taken(private):
            # Whoever made a folder of that name cannot make all of them.
            others = (f"{private}-{number}" for number in itertools.count(1))
            found.append(Place(next(path for path in others if not _taken(path)), announce=True))
    return found


def vllm_folder(environ: Mapping[str, str]) -> str | None:
    """Where vLLM moves FlyDSL's cache to when it makes its monokernel runner, None where it leaves it.

    vLLM 0.33.0 ``models/deepseek_v41/amd/mono/runner.py``, _ensure_writable_flydsl_cache: unless the variable names a
    folder that can be written to, it is set to ``~/.flydsl/cache``, which is FlyDSL's own where it is not set.
    """
    chosen = environ.get(CACHE_VARIABLE)
    if chosen is None or (chosen and os.access(chosen, os.W_OK)):
        return None
    own = default_cache_dir()
    return None if os.path.normpath(chosen) == own else own


def choose(environ: Mapping[str, str], bundled: str | None) -> Choice:
    """The folder that seeding takes, found out without writing: whether there is room, only seeding tells."""
    refusals: list[str] = []
    for place in places(environ, bundled):
        if why := refusal(place):
            refusals.append(why)
            continue
        return Choice(place.folder, [*passed_over(refusals, place, place.folder), *doubts(place.folder)], usable=True)
    folder = folder_in_use(environ)
    return Choice(folder, passed_over(refusals, None, folder), usable=False)


def refusal(place: Place) -> str | None:
    """Why a folder is passed over, in a few words, without writing to it; None where nothing speaks against it."""
    try:
        _check(place.folder)
    except OSError as error:
        return refused(place.folder, error)
    # One that the user named is seeded all the same: doubts() tells of it.
    if not place.chosen and (shut := _foreign_locks(place.folder)):
        return f"{_locked(shut, place.folder)} (to remove: {_remove_locks(place.folder)})"
    return None


def refused(folder: str, error: OSError) -> str:
    """What is said of a folder that cannot be written to."""
    why = error.strerror or str(error)
    if isinstance(error, NotADirectoryError) and error.filename != os.path.abspath(folder):
        why = f"{error.filename} is {why}"
    return f"cannot write to {folder} ({why})"


def passed_over(refusals: Sequence[str], taken: Place | None, folder: str, *, probe: bool = False) -> list[str]:
    """The line, if any, on folders that were refused, and what comes of it.

    :param taken: the folder that was taken in their place.
    :param folder: the one that FlyDSL reads.
    :param probe: whether that may be written to, to see if FlyDSL can.
    """
    if not refusals:
        return []
    what = "; ".join(refusals)
    if taken is not None:
        return [f"{what}: using {taken.folder}"]
    if not _stuck(folder, probe):
        return [f"{what}: kernels will be compiled"]
    mend = f"set {CACHE_VARIABLE} to a folder that user {os.geteuid()} can write to"
    if (give := _give(folder)) and len(refusals) == 1:
        mend += f", or as root: {give}"
    return [f"{what}: calls of FlyDSL kernels will fail, since FlyDSL must lock a file there even to read; {mend}"]


def doubts(folder: str) -> list[str]:
    """What is to be said about a folder that is seeded: lock files of others, and who else can write there."""
    lines = not_private(folder)
    if shut := _foreign_locks(folder):
        lines.append(f"{_locked(shut, folder)}: calls of these kernels will fail; {_remove_locks(folder)}")
    return lines


def make_private(folder: str) -> None:
    """Make a folder and those above it that are missing, for their owner alone.

    :raises OSError: it cannot be made or written to, or it is a temporary folder that somebody else made.
    """
    make_folders(folder)
    _check(folder, made=True)


def _check(folder: str, *, made: bool = False) -> None:
    """See whether a folder can be written to, or made.

    :param made: it must be there.
    :raises OSError: it cannot, or it is a temporary folder that somebody else made.
    """
    there = os.path.abspath(folder)
    while not os.path.isdir(there):
        # No folder can be made of that name. Looked at again, since another process may just have made one.
        if made or (os.path.lexists(there) and not os.path.isdir(there)):
            dangling = os.path.islink(there) and not os.path.exists(there)
            raise NotADirectoryError(errno.ENOTDIR, "a link to nothing" if dangling else "not a folder", there)
        there = os.path.dirname(there)
    if not os.access(there, os.W_OK | os.X_OK):
        read_only = os.statvfs(there).f_flag & os.ST_RDONLY
        why = errno.EROFS if read_only else errno.EACCES
        raise OSError(why, os.strerror(why), there)
    # Anyone can make a folder, or a link to one, of that name in a shared temporary folder, and wait.
    if os.path.basename(folder).startswith(_TEMPORARY) and _taken(folder):
        raise PermissionError(errno.EACCES, "not private to this user", folder)


def _taken(folder: str) -> bool:
    """Whether something is there that is not a folder of this user alone."""
    return os.path.lexists(folder) and (
        os.path.islink(folder) or not os.path.isdir(folder) or bool(not_private(folder))
    )


def _stuck(folder: str, probe: bool) -> bool:
    """Whether FlyDSL cannot make its folders and lock files in a cache root."""
    try:
        _check(folder)
        if probe:
            # There may be no room for so much as a name.
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = temporary_path(folder)
            create(path, ())
            os.unlink(path)
    except OSError:
        return True
    return _foreign_locks(folder) > 0


def _foreign_locks(folder: str) -> int:
    """How many kernels of a cache root FlyDSL cannot lock, since another user called them there."""
    shut = 0
    for launcher in listed(folder):
        below = os.path.join(folder, launcher)
        if not launcher.startswith("."):
            with contextlib.suppress(OSError):
                shut += foreign_locks(below, os.listdir(below))
    return shut


def _locked(shut: int, folder: str) -> str:
    return f"{shut} lock {'files' if shut > 1 else 'file'} in {folder} made by another user"


def _remove_locks(folder: str) -> str:
    return f"find {shlex.quote(folder)} -name '*.lock' ! -user {os.geteuid()} -delete"


def _give(folder: str) -> str | None:
    """What root does so that this user can use a folder; None where that would not help."""
    there, user = os.path.abspath(folder), os.geteuid()
    if user == 0 or (os.path.lexists(there) and not os.path.isdir(there)):
        return None
    existing = there
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return None
    make = "" if existing == there else f"mkdir -p {shlex.quote(there)} && "
    return f"{make}chown -R {user} {shlex.quote(there)}"


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
    return [
        f"{folder} {what}: FlyDSL's entries are pickles, so anyone who can write there can run code in this process"
    ]


def defeated(environ: Mapping[str, str]) -> str | None:
    """Why no prebuilt kernel can be used under these settings, or None."""
    if home(environ) is None:
        # FlyDSL utils/env.py, RuntimeEnvManager.cache_dir: Path.home(), which raises.
        return f"user {os.geteuid()} has no home, without which FlyDSL cannot be imported; set HOME"
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
