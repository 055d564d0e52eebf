"""The marker of a finished seeding: what a process that finds all in place reads, and next to nothing else.

It is written where a seeding had nothing to say. First it holds what seeding again would look at: FlyDSL's RECORD, the
device bitcode, the arches, the packs, and what AITER bundles; then what was reported; then the names of the files.
Where one of these changed, a file is gone, or anything is unusual, :func:`recall` has no answer and seeding takes its
full course.

Imports nothing that a bare interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys

from .discovery import (
    CACHE_VARIABLE,
    RUN_ONLY_VARIABLE,
    STAMPS,
    TEMPORARY,
    bundled_folder,
    file_state,
    fingerprint,
    folder_in_use,
    look_for_packs,
    mode_of,
)
from .target import Target, driver_arches, environment_arch, featured, read_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    from .report import PackReport

    # Mode, arches, cache folder (None: nothing to seed), and for each pack the words of its line.
    Recalled = tuple[str, list[str], "str | None", list[list[str]]]

_END = "\n\n"

# FlyDSL's variables that say nothing about its cache but where it is; any other gets a closer look (places.py).
_USUAL = ("FLYDSL_GPU_ARCH", CACHE_VARIABLE, RUN_ONLY_VARIABLE)


def recall(packages: Iterable[str] = (), environ: MutableMapping[str, str] = os.environ) -> Recalled | None:
    """What :func:`report.recalled` makes a report of, if it is plain that nothing is to do; None where it is not.

    Sets the variables that seeding sets.
    """
    mode = mode_of(environ)
    if mode is None:
        return None
    target = read_target(environ) if mode != "off" else Target([], {})
    arches = target.arches
    if not arches:
        return mode, arches, None, []
    try:
        packs, empty = look_for_packs(packages, environ)
        if empty:
            return None
        bundled = bundled_folder()
        if not packs and not bundled and mode != "strict":
            return mode, arches, None, []
        if _unusual(environ):
            return None
        folder = folder_in_use(environ)
        with open(marker_path(folder), encoding="utf-8") as file:
            text = file.read()
        head = _head(packs, bundled, target, environ)
        lines = _lines(text[len(head) :], folder) if text.startswith(head) else None
    except (OSError, ValueError):
        return None
    if lines is None:
        return None
    if mode == "strict":
        environ[RUN_ONLY_VARIABLE] = "1"
    if bundled:
        # Else AITER points FlyDSL into its own package.
        environ[CACHE_VARIABLE] = folder
    return mode, arches, folder, lines


def marker_path(folder: str) -> str:
    """The marker of a cache root, for this Python."""
    return os.path.join(folder, STAMPS, f"seeded-{sys.implementation.cache_tag}")


def marker_text(
    reports: list[PackReport],
    files: Iterable[str],
    bundled: str | None,
    target: Target,
    environ: MutableMapping[str, str],
) -> str | None:
    """What :func:`recall` reads; None where a name has a character that divides the marker's lines."""
    packs = [[r.path, r.arch, r.version, str(r.kernels), r.tokens, *r.reasons] for r in reports]
    launchers: dict[str, list[str]] = {}
    for path in files:
        launcher, name = path.split("/")
        launchers.setdefault(launcher, []).append(name)
    there = [[launcher, *names] for launcher, names in launchers.items()]
    if any("\t" in word or "\n" in word for line in packs + there for word in line):
        return None
    head = _head([r.path for r in reports], bundled, target, environ)
    return head + "\n".join(map("\t".join, packs)) + _END + "\n".join(map("\t".join, there))


def _head(packs: list[str], bundled: str | None, target: Target, environ: MutableMapping[str, str]) -> str:
    lines = [fingerprint(target, environ), *map(_pack_state, packs)]
    if bundled:
        lines.append(file_state(bundled))
    return "\n".join(lines) + _END


def _pack_state(path: str) -> str:
    # Magic and id; times say little where an image's layers were made with all of them equal.
    with open(path, "rb") as file:
        return f"{path} {file.read(40).hex()}"


def _unusual(environ: MutableMapping[str, str]) -> bool:
    """Whether settings are such that seeding might have a word to say about them."""
    if any(name.startswith("FLYDSL_") and name not in _USUAL for name in environ):
        return True
    if not os.path.isabs(environ.get(CACHE_VARIABLE, "/")):
        return True
    if featured(environ):
        return True
    wanted = environment_arch(environ)
    return wanted is not None and wanted not in (driver_arches() or [wanted])


def _lines(text: str, folder: str) -> list[list[str]] | None:
    """The packs' lines of a marker, if its files are there and FlyDSL can lock them."""
    state = os.stat(folder)
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        return None
    packs, _, launchers = text.partition(_END)
    for line in launchers.split("\n"):
        launcher, *names = line.split("\t")
        there = os.path.join(folder, launcher)
        present = os.listdir(there)
        if _leftovers(present) or not in_place(there, present, names):
            return None
    if _leftovers(os.listdir(folder)) or _leftovers(os.listdir(os.path.join(folder, STAMPS))):
        return None
    return [line.split("\t") for line in packs.split("\n") if line]


def in_place(folder: str, present: Iterable[str], names: Iterable[str]) -> bool:
    """Whether a folder has files of these names, and FlyDSL can lock what is in it."""
    there = set(present)
    return there.issuperset(names) and os.access(folder, os.W_OK | os.X_OK) and not foreign_locks(folder, there)


def foreign_locks(folder: str, present: Iterable[str]) -> int:
    """How many of the lock files in a folder this user cannot open as FlyDSL does.

    It makes them with mode 0644: nobody but their owner, and root, can ever lock them.
    """
    if os.geteuid() == 0:
        return 0
    locks = [name for name in present if name.endswith(".lock")]
    # Names relative to the folder cost half of what paths do.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return [os.access(name, os.W_OK, dir_fd=descriptor) for name in locks].count(False)
    finally:
        os.close(descriptor)


def _leftovers(present: Iterable[str]) -> bool:
    """Whether somebody is writing here, or was killed while doing so: seeding sweeps that away in time."""
    # Searching all names at once takes a third of the time.
    return f"\n{TEMPORARY}" in "\n" + "\n".join(present)
