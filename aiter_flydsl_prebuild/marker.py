"""The marker of a finished seeding: what a process that finds all in place reads, and next to nothing else.

It is written where a seeding had nothing to report. It has a head, which :func:`recall` makes again and compares:
FlyDSL's RECORD word for word, the state of the device bitcode, the arches, the packs, and what AITER bundles. After it
come the code that kernels are bound to (binding.py), FlyDSL's own sources for strict mode, what was reported, and the
names and sizes of the files. Where one of these changed, a file is gone or has another size, or anything is unusual,
:func:`recall` has no answer and seeding takes its full course.

What is too large to compare word for word is known by its state (:func:`discovery.state_of`).

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
    bitcode_files,
    bundled_folder,
    folder_in_use,
    locate_flydsl,
    look_for_packs,
    mode_of,
    rocm_root,
    state_of,
    states,
    unchanged,
)
from .target import Target, driver_arches, environment_arch, featured, read_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping

    from .report import PackReport

    # Mode, arches, cache folder (None: nothing to seed), and for each pack the words of its line.
    Recalled = tuple[str, list[str], "str | None", list[list[str]]]

_FORMAT = "3"
_END = "\n\n"

_UNKNOWN = "?"
"""A section that could not be written: for whom it matters, the marker has no answer."""

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
        text = _read(marker_path(folder))
        head = marker_head(packs, bundled, target, environ)
        lines = _lines(text[len(head) :], folder, mode) if text.startswith(head) else None
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
    head: str, reports: list[PackReport], files: Mapping[str, int], code: str, sources: str | None
) -> str | None:
    """What :func:`recall` reads; None where a name has a character that divides the marker's lines.

    :param head: :func:`marker_head`, made before what it speaks of was read.
    :param files: path below the cache root and size.
    :param code: lines of :func:`binding.InstalledCode.states`.
    :param sources: lines of :func:`discovery.states` for FlyDSL's sources, as compared with RECORD; None if unknown.
    """
    packs = [[r.path, r.arch, r.version, str(r.kernels), r.tokens, *r.reasons] for r in reports]
    launchers: dict[str, dict[str, int]] = {}
    for path, size in files.items():
        launcher, name = path.split("/")
        launchers.setdefault(launcher, {})[name] = size
    there = [[launcher, str([*sizes.values()]), *sizes] for launcher, sizes in launchers.items()]
    if any("\t" in word or "\n" in word for line in packs + there for word in line):
        return None
    lines = ["\n".join(map("\t".join, section)) for section in (packs, there)]
    return head + _END.join([code, _UNKNOWN if sources is None else sources, *lines])


def marked_sources(folder: str, head: str) -> str | None:
    """FlyDSL's sources as the marker of a cache root holds them, if it has this head and they are still as they were.

    Only strict mode compares them; what it found need not be lost where another mode writes the marker anew.
    """
    try:
        text = _read(marker_path(folder))
        _, sources, _, _ = text[len(head) :].split(_END)
    except (OSError, ValueError):
        return None
    return sources if text.startswith(head) and sources != _UNKNOWN and unchanged(sources) else None


def marker_head(
    packs: Iterable[str], bundled: str | None, target: Target, environ: Mapping[str, str] = os.environ
) -> str:
    """All that decides what fits but the code of packages: seeding again would come to the same while this is equal.

    :raises UncertainError: the state of something cannot be told from the outside.
    :raises OSError: a pack cannot be read.
    """
    lines = [_FORMAT, sys.implementation.cache_tag or sys.version, *gpus(target), flydsl_state()]
    lines += map(state_of, bitcode_files(rocm_root(environ)))
    lines += map(_pack_state, packs)
    if bundled:
        lines += map(state_of, (bundled, *(os.path.join(bundled, name) for name in sorted(os.listdir(bundled)))))
    return "\n".join(lines) + _END


def gpus(target: Target) -> list[str]:
    """What kernels are wanted for, a word or more for each arch."""
    return [" ".join([arch, *map(str, target.units.get(arch, ()))]) for arch in target.arches]


def flydsl_state() -> str:
    """Where FlyDSL is, and its RECORD; of one that has none, or whose RECORD lists none of it, the state of each file.

    RECORD holds a hash of every file: that they are as it says is looked at elsewhere (flydsl_install.checked).

    :raises UncertainError: there is no RECORD, and the file system keeps no time of change.
    """
    found = locate_flydsl()
    if found is None:
        return "no flydsl"
    root, info = found
    record = ""
    if info:
        record = _read(os.path.join(info, "RECORD"))
    if "\nflydsl/__init__.py," not in "\n" + record:
        record += states(_code_files(os.path.join(root, "flydsl"), set()))
    return f"{root}\n{info}\n{record}"


def _read(path: str) -> str:
    """The text of a file; without Python's layers of buffers in half the time."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # As much as there is and a byte more: memory that is not used would have to be given back.
        wanted = os.fstat(descriptor).st_size + 1
        pieces = []
        while piece := os.read(descriptor, wanted):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode(errors="surrogateescape")


def _code_files(folder: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """The sources and libraries below a folder, those behind links included: a build tree links its native half."""
    state = os.stat(folder)
    if (state.st_dev, state.st_ino) in seen:
        return
    seen.add((state.st_dev, state.st_ino))
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir():
            yield from _code_files(entry.path, seen)
        elif entry.name.endswith((".py", ".so")):
            yield entry.path


def _pack_state(path: str) -> str:
    # Magic and id, which is a hash over all the rest. Opening a pipe waits for its writer unless told not to.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return f"{path} {os.read(descriptor, 40).hex()}"
    finally:
        os.close(descriptor)


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


def _lines(text: str, folder: str, mode: str) -> list[list[str]] | None:
    """The packs' lines of a marker, if what follows its head still holds and FlyDSL can lock the files."""
    state = os.stat(folder)
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        return None
    code, sources, packs, launchers = text.split(_END)
    if mode == "strict" and (sources == _UNKNOWN or not unchanged(sources)):
        return None
    if code:
        from .binding import holds

        if not holds(code):
            return None
    for line in launchers.split("\n"):
        launcher, sizes, *names = line.split("\t")
        there = os.path.join(folder, launcher)
        present = os.listdir(there)
        if _leftovers(present) or not in_place(there, present, names, sizes):
            return None
    if _leftovers(os.listdir(folder)) or _leftovers(os.listdir(os.path.join(folder, STAMPS))):
        return None
    return [line.split("\t") for line in packs.split("\n") if line]


def in_place(folder: str, present: Iterable[str], names: Iterable[str], sizes: str) -> bool:
    """Whether a folder has files of these names and sizes, and FlyDSL can lock what is in it.

    :param present: all names in the folder.
    :param sizes: as a list of integers is printed; comparing texts costs less than reading the numbers.
    """
    if not os.access(folder, os.W_OK | os.X_OK) or foreign_locks(folder, present):
        return False
    # Names relative to an open folder are found faster than paths: a fifth less.
    stat, descriptor = os.stat, os.open(folder, os.O_RDONLY)
    try:
        return str([stat(name, dir_fd=descriptor).st_size for name in names]) == sizes
    except FileNotFoundError:
        return False
    finally:
        os.close(descriptor)


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
