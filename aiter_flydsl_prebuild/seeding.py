"""Seeding: putting the kernels of the installed packs where FlyDSL of this process will look for them.

    packs on sys.path ──▶ what fits (fitting.py) ──▶ files in FlyDSL's cache folder (places.py) ──▶ a stamp

A stamp in the cache folder remembers what was done for a pack under the FlyDSL and ROCm at hand, which it knows by
their content: it holds in every container of an image. A marker remembers that all was done, by states of files
(marker.py), so that a second start on the same machine costs a stat a file. Files appear under their final names whole
or not at all: each is written beside its place and renamed. Two processes that seed at once write the same bytes;
neither waits for the other, and FlyDSL's lock files are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from . import flydsl_cache as cache
from .binding import InstalledCode
from .discovery import (
    CACHE_VARIABLE,
    MODE_VARIABLE,
    RUN_ONLY_VARIABLE,
    STAMPS,
    TEMPORARY,
    bundled_folder,
    folder_in_use,
    listed,
    look_for_packs,
    mode_of,
    rocm_root,
)
from .errors import CheckError, InputError, PrebuildError
from .fitting import Placement, fit, other_units, tokens_of
from .flydsl_install import Install, checked, read_install
from .marker import UncertainError, flydsl_state, gpus, in_place, marked_sources, marker_head, marker_path, marker_text
from .pack import Pack, read_header
from .places import Place, cautions, defeated, doubts, make_private, passed_over, places, refusal, refused
from .report import PackReport, SeedReport, announce, covered
from .target import Target, read_target

Pieces = Sequence[bytes]
"""The content of a file, end to end."""

_STAMP_FORMAT = "4"
_STALE_SECONDS = 3600.0
_TRIES = 5
"""How often a file is written that somebody deletes meanwhile."""


def seed(
    packages: Iterable[str] = (),
    *,
    mode: str | None = None,
    packs: Iterable[str] | None = None,
    cache_dir: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> SeedReport:
    """Put the kernels of the installed packs into the folder that FlyDSL will read; a second call is nearly free.

    Does nothing on a machine without a ROCm GPU, unless AITER_FLYDSL_PREBUILD_ARCH or FlyDSL's own settings name an
    arch. What does not fit is left out and logged, one line a pack. Where FlyDSL's own folder cannot be written to,
    another is seeded and FLYDSL_RUNTIME_CACHE_DIR set for this process; a value that the user set is never changed.

    :param packages: packages beside the known ones that carry packs.
    :param mode: ``off``, ``on`` or ``strict``; by default what AITER_FLYDSL_PREBUILD says, else ``on``.
    :param packs: exactly these packs, in place of looking for them.
    :param cache_dir: the cache root, in place of the one that FlyDSL reads in this process.
    :param environ: what stands for the environment, in tests; then no variable is set.
    :raises CheckError: in strict mode alone, when a kernel could not be put in place. There, FlyDSL is also forbidden
        to compile in this process (FLYDSL_RUNTIME_RUN_ONLY).
    """
    started = time.perf_counter()
    variables = os.environ if environ is None else environ
    strict = False
    target = Target([], {})
    outcome = _Outcome()
    wrong: list[str] = []
    try:
        mode = _mode(mode, variables, wrong)
        strict = mode == "strict"
        if mode != "off" and (target := read_target(variables)).arches:
            paths, empty = look_for_packs(packages, variables) if packs is None else (list(packs), [])
            paths = [os.path.realpath(path) for path in paths]
            # What AITER bundles is seeded where AITER's own kernels are looked for, not into a folder named by hand.
            here = cache_dir in (None, variables.get(CACHE_VARIABLE))
            bundled = bundled_folder() if here and packs is None else None
            if paths or bundled:
                named = [Place(cache_dir, announce=False, chosen=True)] if cache_dir is not None else None
                tries = named or places(variables, bundled)
                outcome = _seed_somewhere(tries, paths, bundled, _Machine(target, variables, strict), variables)
            if strict and not paths:
                outcome.problems.append("no pack of kernels is installed")
            if strict:
                outcome.problems += outcome.notes
            outcome.problems += empty
    except Exception as error:  # The host program's start is worth more than any kernel.
        outcome.problems.append(f"kernels were not seeded: {type(error).__name__}: {error}")
    outcome.problems += wrong
    if strict and outcome.problems:
        built_for = covered(outcome.packs)
        more = f" ({built_for})" if built_for else ""
        raise CheckError("strict: " + "; ".join(outcome.problems) + more)
    if environ is None and outcome.place is not None:
        if outcome.place.announce:
            os.environ[CACHE_VARIABLE] = outcome.place.folder
        if strict:
            os.environ[RUN_ONLY_VARIABLE] = "1"
    log(outcome.problems)
    folder = outcome.place.folder if outcome.place is not None else None
    seconds = time.perf_counter() - started
    report = SeedReport(mode or "on", target.arches, folder, outcome.packs, outcome.bundled, outcome.problems, seconds)
    announce(report)
    return report


class _Outcome:
    """What happened in the folder that was taken; ``place`` is None until one was."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.packs: list[PackReport] = []
        self.bundled = 0
        self.problems: list[str] = []
        self.notes: list[str] = []

    @property
    def kernels(self) -> int:
        return sum(pack.kernels for pack in self.packs)


def log(problems: list[str]) -> None:
    """Give lines to the logger, which is loaded for nothing else."""
    if problems:
        import logging

        for problem in problems:
            logging.getLogger("aiter_flydsl_prebuild").warning("aiter-flydsl-prebuild: %s", problem)


def _mode(mode: str | None, environ: Mapping[str, str], wrong: list[str]) -> str:
    said = environ.get(MODE_VARIABLE, "") if mode is None else mode
    found = mode_of({MODE_VARIABLE: said})
    if found is None:
        wrong.append(f"{MODE_VARIABLE}={said}: not one of off, on, strict; taken as on")
    return found or "on"


def _seed_somewhere(
    tries: list[Place], paths: list[str], bundled: str | None, machine: _Machine, environ: Mapping[str, str]
) -> _Outcome:
    """Seed the first of the folders that takes it; one that is read-only or full is passed over, with one line."""
    outcome = _Outcome()
    if why := defeated(environ):
        outcome.problems.append(f"prebuilt kernels are not used: {why}")
        return outcome
    outcome.problems += cautions(environ)
    head = _head(paths, bundled, machine.target, environ)
    refusals: list[str] = []
    for place in tries:
        if why := refusal(place):
            refusals.append(why)
            continue
        try:
            done, problems = _seed_packs(paths, place.folder, machine)
            files = {path: size for one in done for path, size in one.files.items()}
            copied, copies = _copy_bundled(bundled, place.folder, files) if bundled else (0, {})
        except OSError as error:
            refusals.append(refused(place.folder, error))
            continue
        outcome.place, outcome.packs, outcome.bundled = place, [one.report for one in done], copied
        outcome.problems += problems + doubts(place.folder)
        install, _ = machine.read()
        if machine.strict and install is not None and install.damage and not install.other_keys:
            outcome.problems.append(install.damage)
        outcome.notes = [f"{os.path.basename(one.report.path)}: {note}" for one in done for note in one.notes]
        if (outcome.kernels or copies) and not outcome.problems and not outcome.notes and not refusals:
            _mark(place.folder, head, done, {**copies, **files}, machine)
        break
    read = tries[0].folder if tries[0].chosen else folder_in_use(environ)
    outcome.problems += passed_over(refusals, outcome.place, read, probe=True)
    return outcome


def _head(paths: list[str], bundled: str | None, target: Target, environ: Mapping[str, str]) -> str | None:
    """The head of the marker, made before anything of what it speaks of is read; None where there can be no marker."""
    try:
        return marker_head(paths, bundled, target, environ)
    except (OSError, UncertainError):
        return None


def _mark(folder: str, head: str | None, done: list[_Seeded], files: Mapping[str, int], machine: _Machine) -> None:
    """Leave word for the next process that all is in place; without it that one only looks longer."""
    if head is None:
        return
    try:
        code = machine.code.states(path for one in done for path in one.code)
    except UncertainError:
        return
    install, _ = machine.read()
    if install is None or not install.record:
        sources: str | None = ""
    else:
        # Only strict mode looks at all of FlyDSL's sources, and asks for them.
        sources = install.states if machine.strict else marked_sources(folder, head)
    text = marker_text(head, [one.report for one in done], files, code, sources)
    if text is None:
        return
    stamps = os.path.join(folder, STAMPS)
    with contextlib.suppress(OSError):
        make_private(stamps)
        _sweep(stamps, os.listdir(stamps))
        publish(marker_path(folder), text.encode(errors="surrogateescape"))


class _Seeded(NamedTuple):
    """A pack that was seeded: its files by path below the cache root with their sizes, and what they depend on.

    ``code`` maps the source files that its kernels are bound to to their sha256 here, None for one that is not there.
    """

    report: PackReport
    files: dict[str, int]
    code: dict[str, str | None]
    notes: list[str]


class _Machine:
    """What decides the fit of a pack, read when first needed."""

    def __init__(self, target: Target, environ: Mapping[str, str], strict: bool = False) -> None:
        self.target = target
        self.strict = strict
        self.code = InstalledCode()
        self._root = rocm_root(environ)
        self._read: tuple[Install | None, str] | None = None
        self._token: str | None = None

    def read(self) -> tuple[Install | None, str]:
        """The FlyDSL at hand, compared with its RECORD, and the digest of the device bitcode."""
        if self._read is None:
            install = read_install()
            if install is not None:
                install = checked(install, "sources" if self.strict else "keyed")
            self._read = install, cache.bitcode_digest(self._root)
        return self._read

    def stamp(self, folder: str, pack_id: str) -> str:
        """The path of the stamp for a pack on this machine."""
        if self._token is None:
            self._token = self._make_token()
        name = hashlib.sha256(f"{pack_id}\n{self._token}".encode()).hexdigest()[:32]
        return os.path.join(folder, STAMPS, f"{name}.json")

    def _make_token(self) -> str:
        install, bitcode = self.read()
        if install is None:
            flydsl = ""
        elif install.identity is not None:
            flydsl = "\n".join((install.version, install.identity, *install.altered))
        else:
            try:
                flydsl = hashlib.sha256(flydsl_state().encode(errors="surrogateescape")).hexdigest()
            except (OSError, UncertainError):
                flydsl = os.urandom(16).hex()  # it cannot be told from another
        python = sys.implementation.cache_tag or sys.version
        return "\n".join([_STAMP_FORMAT, python, *gpus(self.target), flydsl, bitcode])


def _seed_packs(paths: list[str], folder: str, machine: _Machine) -> tuple[list[_Seeded], list[str]]:
    done: list[_Seeded] = []
    broken: list[str] = []
    stamps: dict[str, bytes] = {}
    taken: dict[str, int] = {}
    for path in paths:
        try:
            stamp = machine.stamp(folder, read_header(path).pack_id)
            seeded = _read_stamp(stamp, path, folder, machine.code)
            if seeded is None:
                seeded, stamps[stamp] = _seed_pack(path, machine, folder, taken)
            done.append(seeded)
            taken.update(seeded.files)
        except PrebuildError as error:
            broken.append(str(error))
    reports = [one.report for one in done]
    served = any(report.kernels for report in reports)
    # Stamps come after the files they speak of. Where nothing fits, nothing is left behind.
    if stamps and served:
        make_private(os.path.join(folder, STAMPS))
        for stamp, record in stamps.items():
            publish(stamp, record)
    # Packs for another arch or FlyDSL are expected beside the right one: news is what leaves a kernel out, or all.
    lines = [f"{os.path.basename(r.path)}: {why}" for r in reports if r.kernels or not served for why in r.reasons]
    return done, broken + lines


def _seed_pack(path: str, machine: _Machine, folder: str, taken: Mapping[str, int]) -> tuple[_Seeded, bytes]:
    """Write what fits of a pack; returns the report, and the stamp's content.

    :param taken: files of the packs before this one. The same kernel may be in two packs in two forms (another
        linker's): the first one stays, else they would replace each other at every start.
    """
    pack = Pack(path)
    install, bitcode = machine.read()
    fitting = fit(pack, machine.target.arches, install, bitcode, machine.code)
    reasons = fitting.reasons
    if fitting.kernels:
        reasons = [*reasons, *other_units(pack, machine.target.units.get(pack.arch, ()))]
    files = {placement.path: taken[placement.path] for placement in fitting.placements if placement.path in taken}
    users: dict[int, list[Placement]] = {}
    for placement in fitting.placements:
        if placement.path not in files:
            users.setdefault(placement.entry.payload, []).append(placement)
    written = 0
    if users:

        def contents() -> Iterator[tuple[str, Pieces]]:
            for index, text in enumerate(pack.raw_payloads()):
                for placement in users.get(index, ()):
                    yield placement.path, cache.entry_pieces(placement.entry.fields, text)

        written, sizes = _write_all(folder, [one.path for some in users.values() for one in some], contents)
        files.update(sizes)
    bound = pack.files if pack.generation == cache.CALL_KEY else ()
    code = {name: machine.code.digest(name) for name, _ in bound}
    record = {
        "pack": path,
        "pack_id": pack.header.pack_id,
        "arch": pack.arch,
        "version": pack.version,
        "kernels": fitting.kernels,
        "reasons": reasons,
        "notes": fitting.notes,
        "tokens": tokens_of(pack),
        "files": files,
        "code": code,
    }
    report = PackReport(path, pack.arch, pack.version, fitting.kernels, written, reasons, tokens_of(pack))
    return _Seeded(report, files, code, fitting.notes), json.dumps(record).encode()


def _write_all(
    folder: str, files: Collection[str], contents: Callable[[], Iterable[tuple[str, Pieces]]]
) -> tuple[int, dict[str, int]]:
    """Have all of ``files`` in place below a folder, each with what ``contents`` gives.

    Returns how many were written, and the size of each.

    :raises PrebuildError: from ``contents``; then nothing that was written stays.
    :raises OSError: the folder does not take them, or does not keep them.
    """
    written = 0
    launchers = {os.path.dirname(path) for path in files}
    for _ in range(_TRIES):
        make_private(folder)
        _sweep(folder, os.listdir(folder))
        homes: dict[str, _Home] = {}
        sizes = dict.fromkeys(files, -1)
        # What somebody deletes meanwhile is written again.
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            for launcher in launchers:
                homes[launcher] = stack.enter_context(_Home(folder, launcher))
            for path, pieces in contents():
                launcher, name = path.split("/")
                homes[launcher].put(name, pieces)
                sizes[path] = sum(map(len, pieces))
        written += sum(len(home.written) for home in homes.values())
        if not _missing(folder, sizes):
            return written, sizes
    raise OSError(errno.ENOENT, "files vanish as they are written", folder)


class _Home:
    """A launcher's folder to write to. One that is not there yet is written beside its place and renamed as a whole.

    When it is left by a :class:`PrebuildError`, what was written is taken back.
    """

    def __init__(self, root: str, launcher: str) -> None:
        self._final = os.path.join(root, launcher)
        self._new = os.path.join(root, f"{TEMPORARY}{os.urandom(8).hex()}.tmp")
        self._present: list[str] = []
        self.written: list[str] = []

    def __enter__(self) -> _Home:
        if os.path.isdir(self._final):
            self._new = ""
            make_private(self._final)
            self._present = os.listdir(self._final)
            _sweep(self._final, self._present)
        else:
            os.mkdir(self._new, mode=0o700)
        return self

    def put(self, name: str, pieces: Pieces) -> None:
        """Have a file hold these bytes."""
        if self._new:
            _create(os.path.join(self._new, name), pieces)
        else:
            target = os.path.join(self._final, name)
            # Which of two that write the same bytes at once comes last makes no difference.
            if name in self._present and _holds(target, pieces):
                return
            publish(target, *pieces)
        self.written.append(name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._new:
            try:
                if error is None:
                    os.rename(self._new, self._final)
                    return
            except OSError as failure:
                # Somebody was faster: what is missing there comes with the next try.
                if failure.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            finally:
                _remove_folder(self._new)
            self.written.clear()
        elif isinstance(error, PrebuildError):
            for name in self.written:
                _remove(os.path.join(self._final, name))


def _missing(folder: str, files: Mapping[str, int]) -> list[str]:
    """Which of ``files`` are not there with the size that they should have."""
    return [path for path, size in files.items() if _size(os.path.join(folder, path)) != size]


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _copy_bundled(bundled: str, folder: str, taken: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Copy the entries of a folder laid out as FlyDSL's cache that are not here yet, or have another size here.

    Returns how many were copied, and all that are there to be copied, with their sizes.

    :param taken: files of packs, which come first.
    """
    if os.path.realpath(folder) == bundled:
        return 0, {}
    files = {
        path: size
        for launcher in listed(bundled)
        if not launcher.startswith(".")
        for name in listed(os.path.join(bundled, launcher))
        # FlyDSL writes entries for their owner alone.
        if name.endswith(".pkl") and os.access(os.path.join(bundled, launcher, name), os.R_OK)
        if (path := f"{launcher}/{name}") not in taken and (size := _size(os.path.join(bundled, path))) is not None
    }
    absent = sorted(_missing(folder, files))

    def contents() -> Iterator[tuple[str, Pieces]]:
        for path in absent:
            with open(os.path.join(bundled, path), "rb") as file:
                yield path, (file.read(),)

    return _write_all(folder, absent, contents)[0] if absent else 0, files


def prune(folder: str, packs: Iterable[str]) -> list[str]:
    """Remove what was seeded into a folder from packs that are neither among ``packs`` nor where they were any more.

    Files that a pack that stays has too are kept, and so is all that FlyDSL compiled itself. Packs of another container
    or host that shares the folder are not seen from here. Returns the removed paths, relative to the folder.

    :raises InputError: the folder cannot be changed.
    """
    stay = {_id_of(path) for path in packs}
    stamps = os.path.join(folder, STAMPS)
    keep: set[str] = set()
    gone: dict[str, list[str]] = {}
    try:
        for name in sorted(os.listdir(stamps)) if os.path.isdir(stamps) else ():
            try:
                with open(os.path.join(stamps, name), encoding="utf-8") as file:
                    record = json.load(file)
                files = [path for path in record["files"] if _is_entry(path)]
                pack, pack_id = str(record["pack"]), record["pack_id"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if pack_id in stay or pack_id == _id_of(pack):
                keep.update(files)
            else:
                gone[name] = files
        removed = sorted({path for files in gone.values() for path in files} - keep)
        removed = [path for path in removed if _remove(os.path.join(folder, path))]
        for name in gone:
            _remove(os.path.join(stamps, name))
    except OSError as error:
        raise InputError(f"{folder}: cannot be pruned: {error.strerror or error}") from error
    return removed


def _id_of(path: str) -> str | None:
    try:
        return read_header(path).pack_id
    except PrebuildError:
        return None


def _is_entry(path: object) -> bool:
    """Whether a name out of a stamp is one that seeding gives: a launcher's folder and a file in it."""
    return isinstance(path, str) and path.count("/") == 1 and path.endswith(".pkl") and not path.startswith(".")


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _holds(target: str, pieces: Pieces) -> bool:
    """Whether a file is there and holds exactly these bytes."""
    data = b"".join(pieces)
    try:
        with open(target, "rb") as file:
            return file.read(len(data) + 1) == data
    except (FileNotFoundError, PermissionError):
        # What another user wrote for themselves, FlyDSL cannot read either.
        return False


def publish(target: str, *pieces: bytes) -> None:
    """Make ``target`` hold these bytes by rename: nobody ever sees a part of them."""
    parent = os.path.dirname(target)
    for attempt in range(1, _TRIES + 1):
        temporary = os.path.join(parent, f"{TEMPORARY}{os.urandom(8).hex()}.tmp")
        try:
            try:
                _create(temporary, pieces)
                os.replace(temporary, target)
            except BaseException:
                _remove(temporary)
                raise
            return
        except FileNotFoundError:
            # Somebody deleted the folder meanwhile, or swept the file: a clock that was set looks like an hour gone by.
            if attempt == _TRIES:
                raise
            make_private(parent)
    raise AssertionError("unreachable")


def _create(path: str, pieces: Pieces) -> None:
    """Make a new file, for its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        taken = os.writev(descriptor, pieces)
        # One call may take less, on a network's file system or a full one.
        rest = memoryview(b"".join(pieces))[taken:] if taken < sum(map(len, pieces)) else b""
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def _remove_folder(folder: str) -> None:
    """Remove a folder of files, as far as that goes, if it is there."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _sweep(folder: str, names: Iterable[str]) -> None:
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
                    _remove_folder(path) if os.path.isdir(path) else os.unlink(path)


def _read_stamp(stamp: str, path: str, folder: str, code: InstalledCode) -> _Seeded | None:
    """What the stamp remembers, if every file it names is still there, of the same size, and can be locked."""
    try:
        with open(stamp, encoding="utf-8") as file:
            record = json.load(file)
        bound = record["code"]
        if any(code.digest(name) != digest for name, digest in bound.items()):
            return None
        files = record["files"]
        listed: dict[str, dict[str, int]] = {}
        for name, size in files.items():
            launcher, entry = name.split("/")
            listed.setdefault(launcher, {})[entry] = size
        for launcher, sizes in listed.items():
            there = os.path.join(folder, launcher)
            present = os.listdir(there)
            _sweep(there, present)
            readable = all(os.access(os.path.join(there, entry), os.R_OK) for entry in sizes)
            if not readable or not in_place(there, present, sizes, str([*sizes.values()])):
                return None
        arch, version, kernels, reasons = (record[key] for key in ("arch", "version", "kernels", "reasons"))
        report = PackReport(path, arch, version, kernels, 0, reasons, record["tokens"])
        return _Seeded(report, files, bound, record["notes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
