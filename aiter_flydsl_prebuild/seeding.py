"""Seeding: putting the kernels of the installed packs where FlyDSL of this process will look for them.

    packs on sys.path ──▶ what fits (fitting.py) ──▶ files in FlyDSL's cache folder (places.py) ──▶ a stamp

A stamp in the cache folder remembers what was done for a pack under the FlyDSL and ROCm at hand, so that a second start
costs a few stats and one listing. Files appear under their final names whole or not at all: each is written beside its
place and renamed. Two processes that seed at once write the same bytes; neither waits for the other, and FlyDSL's lock
files are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import flydsl_cache as cache
from .discovery import CACHE_VARIABLE, STAMPS, find_packs, fingerprint, marker_path, marker_text, rocm_root
from .errors import CheckError, InputError, PrebuildError
from .fitting import fit
from .flydsl_install import Install, read_install
from .pack import Pack, read_header
from .places import (
    Place,
    bundled_folder,
    cautions,
    defeated,
    make_private,
    not_private,
    places,
)
from .target import target_arches

MODE_VARIABLE = "AITER_FLYDSL_PREBUILD"
_STAMP_FORMAT = "2"
_TEMPORARY = ".afp-"
_STALE_SECONDS = 3600.0


class PackReport(NamedTuple):
    """What became of one pack. ``kernels`` fit and are in place; ``written`` files are new."""

    path: str
    arch: str
    version: str
    kernels: int
    written: int
    reasons: list[str]


class SeedReport(NamedTuple):
    """What :func:`seed` did. ``problems`` were logged; ``cache_dir`` is None where nothing was to do.

    ``bundled`` files were copied from the cache folder that AITER's own package ships.
    """

    mode: str
    arches: list[str]
    cache_dir: str | None
    packs: list[PackReport]
    bundled: int
    problems: list[str]
    seconds: float

    @property
    def kernels(self) -> int:
        """Kernels in place, over all packs."""
        return sum(pack.kernels for pack in self.packs)

    @property
    def written(self) -> int:
        """Files written by this call."""
        return sum(pack.written for pack in self.packs) + self.bundled


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
    arches: list[str] = []
    outcome = _Outcome()
    try:
        mode = _mode(mode, variables)
        strict = mode == "strict"
        if mode != "off" and (arches := target_arches(variables)):
            paths = find_packs(packages, variables) if packs is None else [os.path.realpath(p) for p in packs]
            # What AITER bundles is seeded where AITER's own kernels are looked for, not into a folder named by hand.
            bundled = bundled_folder() if cache_dir is None and packs is None else None
            if paths or bundled:
                tries = [Place(cache_dir, False)] if cache_dir is not None else places(variables, bundled)
                outcome = _seed_somewhere(tries, paths, bundled, arches, variables)
            if strict and not paths:
                outcome.problems.append("no pack of kernels is installed")
    except InputError as error:
        outcome.problems.append(str(error))
        mode = "on"
    except Exception as error:  # The host program's start is worth more than any kernel.
        outcome.problems.append(f"kernels were not seeded: {type(error).__name__}: {error}")
    if strict and outcome.problems:
        raise CheckError("aiter-flydsl-prebuild (strict): " + "; ".join(outcome.problems))
    if environ is None and outcome.place is not None:
        if outcome.place.announce:
            os.environ[CACHE_VARIABLE] = outcome.place.folder
        if strict:
            os.environ["FLYDSL_RUNTIME_RUN_ONLY"] = "1"
    _log(outcome.problems)
    folder = outcome.place.folder if outcome.place is not None else None
    seconds = time.perf_counter() - started
    return SeedReport(mode or "on", arches, folder, outcome.packs, outcome.bundled, outcome.problems, seconds)


class _Outcome:
    """What happened in the folder that was taken; ``place`` is None until one was."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.packs: list[PackReport] = []
        self.bundled = 0
        self.problems: list[str] = []

    @property
    def kernels(self) -> int:
        return sum(pack.kernels for pack in self.packs)


def _log(problems: list[str]) -> None:
    if problems:
        import logging

        for problem in problems:
            logging.getLogger("aiter_flydsl_prebuild").warning("aiter-flydsl-prebuild: %s", problem)


def _mode(mode: str | None, environ: Mapping[str, str]) -> str:
    value = environ.get(MODE_VARIABLE, "on").strip().lower() if mode is None else mode
    value = {"": "on", "0": "off", "1": "on"}.get(value, value)
    if value not in ("off", "on", "strict"):
        raise InputError(f"{MODE_VARIABLE}={value}: not one of off, on, strict; taken as on")
    return value


def _seed_somewhere(
    tries: list[Place], paths: list[str], bundled: str | None, arches: list[str], environ: Mapping[str, str]
) -> _Outcome:
    """Seed the first of the folders that takes it; one that is read-only or full is passed over, with one line."""
    outcome = _Outcome()
    if why := defeated(environ):
        outcome.problems.append(f"prebuilt kernels are not used: {why}")
        return outcome
    outcome.problems += cautions(environ)
    machine = _Machine(arches, environ)
    refusals: list[str] = []
    for place in tries:
        try:
            reports, problems = _seed_packs(paths, place.folder, machine)
            outcome.bundled = _copy_bundled(bundled, place.folder) if bundled else 0
        except OSError as error:
            refusals.append(f"cannot write to {place.folder} ({error.strerror or error})")
            continue
        outcome.place, outcome.packs = place, reports
        outcome.problems += problems + not_private(place.folder)
        if outcome.kernels and not outcome.problems:
            # A process that starts with nothing to say may skip all this (startup.py).
            _publish(marker_path(place.folder), marker_text(paths, arches, environ).encode())
        break
    if refusals:
        used = f"using {outcome.place.folder}" if outcome.place else "kernels will be compiled"
        outcome.problems.append(f"{'; '.join(refusals)}: {used}")
    return outcome


class _Machine:
    """What decides the fit of a pack, read when first needed: a start that finds its stamps needs little of it."""

    def __init__(self, arches: list[str], environ: Mapping[str, str]) -> None:
        self.arches = arches
        self._root = rocm_root(environ)
        self._read: tuple[Install | None, str] | None = None
        self._token = f"{_STAMP_FORMAT}\n{fingerprint(arches, environ)}"

    def read(self) -> tuple[Install | None, str]:
        """The FlyDSL at hand and the digest of the device bitcode."""
        if self._read is None:
            self._read = read_install(), cache.bitcode_digest(self._root)
        return self._read

    def stamp(self, folder: str, pack_id: str) -> str:
        """The path of the stamp for a pack on this machine."""
        name = hashlib.sha256(f"{pack_id}\n{self._token}".encode()).hexdigest()[:32]
        return os.path.join(folder, STAMPS, f"{name}.json")


def _seed_packs(paths: list[str], folder: str, machine: _Machine) -> tuple[list[PackReport], list[str]]:
    reports: list[PackReport] = []
    broken: list[str] = []
    stamps: dict[str, bytes] = {}
    for path in paths:
        try:
            stamp = machine.stamp(folder, read_header(path).pack_id)
            report = _read_stamp(stamp, path, folder)
            if report is None:
                report, stamps[stamp] = _seed_pack(path, machine, folder)
            reports.append(report)
        except PrebuildError as error:
            broken.append(str(error))
    # Stamps come after the files they speak of. Where nothing fits, nothing is left behind.
    if stamps and any(report.kernels for report in reports):
        make_private(os.path.join(folder, STAMPS))
        for stamp, record in stamps.items():
            _publish(stamp, record)
    # Packs for another arch or FlyDSL are expected beside the right one: news is what leaves a kernel out, or all.
    served = any(report.kernels for report in reports)
    lines = [f"{os.path.basename(r.path)}: {why}" for r in reports if r.kernels or not served for why in r.reasons]
    return reports, broken + lines


def _seed_pack(path: str, machine: _Machine, folder: str) -> tuple[PackReport, bytes]:
    """Write what fits of a pack; returns the report, and the stamp's content."""
    pack = Pack(path)
    install, bitcode = machine.read()
    fitting = fit(pack, machine.arches, install, bitcode)
    written = 0
    if fitting.placements:
        texts = list(pack.payloads())
        make_private(folder)
        made: set[str] = set()
        for placement in fitting.placements:
            target = os.path.join(folder, placement.path)
            _make_parent(target, made)
            entry = placement.entry
            data = cache.encode_entry(cache.Entry(texts[entry.payload], entry.fields))
            written += _publish(target, data)
    record = {
        "pack": path,
        "pack_id": pack.header.pack_id,
        "arch": pack.arch,
        "version": pack.version,
        "kernels": fitting.kernels,
        "reasons": fitting.reasons,
        "files": [p.path for p in fitting.placements],
    }
    report = PackReport(path, pack.arch, pack.version, fitting.kernels, written, fitting.reasons)
    return report, json.dumps(record).encode()


def _copy_bundled(bundled: str, folder: str) -> int:
    """Copy the entries of a folder laid out as FlyDSL's cache that are not here yet; returns how many."""
    if os.path.realpath(folder) == bundled:
        return 0
    copied = 0
    make_private(folder)
    made: set[str] = set()
    for launcher in sorted(os.listdir(bundled)):
        source = os.path.join(bundled, launcher)
        if launcher.startswith(".") or not os.path.isdir(source):
            continue
        there = os.path.join(folder, launcher)
        present = set(os.listdir(there)) if os.path.isdir(there) else set()
        for name in sorted(os.listdir(source)):
            if not name.endswith(".pkl") or name in present:
                continue
            try:
                with open(os.path.join(source, name), "rb") as file:
                    data = file.read()
            except OSError:
                continue  # FlyDSL writes entries for their owner alone
            _make_parent(os.path.join(there, name), made)
            copied += _publish(os.path.join(there, name), data)
    return copied


def prune(folder: str, packs: Iterable[str]) -> list[str]:
    """Remove what was seeded into a folder from packs that are not among ``packs`` any more.

    Files that a pack that stays has too are kept, and so is all that FlyDSL compiled itself. Returns the removed paths,
    relative to the folder.

    :raises InputError: the folder cannot be changed.
    """
    stay = set()
    for path in packs:
        try:
            stay.add(read_header(path).pack_id)
        except PrebuildError:
            continue
    stamps = os.path.join(folder, STAMPS)
    keep: set[str] = set()
    gone: dict[str, list[str]] = {}
    try:
        for name in sorted(os.listdir(stamps)) if os.path.isdir(stamps) else ():
            try:
                with open(os.path.join(stamps, name), encoding="utf-8") as file:
                    record = json.load(file)
                files = [path for path in record["files"] if _is_entry(path)]
                pack_id = record["pack_id"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if pack_id in stay:
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


def _is_entry(path: object) -> bool:
    """Whether a name out of a stamp is one that seeding gives: a launcher's folder and a file in it."""
    return isinstance(path, str) and path.count("/") == 1 and path.endswith(".pkl") and not path.startswith(".")


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _make_parent(target: str, made: set[str]) -> None:
    parent = os.path.dirname(target)
    if parent not in made:
        make_private(parent)
        _sweep(parent)
        made.add(parent)


def _publish(target: str, data: bytes) -> bool:
    """Make ``target`` hold ``data`` by rename; False where it already did. Nobody ever sees a part of it."""
    try:
        with open(target, "rb") as file:
            if file.read(len(data) + 1) == data:
                return False
    except FileNotFoundError:
        pass
    parent, name = os.path.split(target)
    for attempt in (1, 2):
        temporary = os.path.join(parent, f"{_TEMPORARY}{os.getpid()}-{time.monotonic_ns()}-{name[:40]}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, target)
            except BaseException:
                _remove(temporary)
                raise
            return True
        except FileNotFoundError:
            # Somebody deleted the folder meanwhile; once is an accident.
            if attempt == 2:
                raise
            make_private(parent)
    raise AssertionError("unreachable")


def _sweep(folder: str) -> None:
    """Remove what a process that was killed while seeding left behind, once it is surely dead."""
    for name in os.listdir(folder):
        if name.startswith(_TEMPORARY):
            path = os.path.join(folder, name)
            try:
                if time.time() - os.stat(path).st_mtime > _STALE_SECONDS:
                    os.unlink(path)
            except OSError:
                continue


def _read_stamp(stamp: str, path: str, folder: str) -> PackReport | None:
    """What the stamp remembers, if every file it names is still there."""
    try:
        with open(stamp, encoding="utf-8") as file:
            record = json.load(file)
        listed: dict[str, set[str]] = {}
        for name in record["files"]:
            launcher, entry = name.split("/")
            listed.setdefault(launcher, set()).add(entry)
        for launcher, names in listed.items():
            if not names.issubset(os.listdir(os.path.join(folder, launcher))):
                return None
        return PackReport(path, record["arch"], record["version"], record["kernels"], 0, record["reasons"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
