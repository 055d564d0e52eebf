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
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping

from .discovery import (
    CACHE_VARIABLE,
    MODE_VARIABLE,
    RUN_ONLY_VARIABLE,
    STAMPS,
    UncertainError,
    bundled_folder,
    folder_in_use,
    look_for_packs,
    mode_of,
)
from .entries import copy_bundled, write_entries
from .errors import CheckError, PrebuildError
from .files import Pieces, publish, sweep
from .fitting import Placement, fit, other_units, tokens_of
from .flydsl import cache
from .marker import marked_sources, marker_head, marker_path, marker_text
from .packs.format import Pack, read_header
from .places import Place, cautions, defeated, doubts, make_private, passed_over, places, refusal, refused
from .report import PackReport, SeedReport, announce, covered
from .stamps import Machine, Seeded, read_stamp
from .target import Target, read_target


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
            outcome = _look_and_seed(packages, packs, cache_dir, Machine(target, variables, strict), variables)
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


def _look_and_seed(
    packages: Iterable[str],
    packs: Iterable[str] | None,
    cache_dir: str | None,
    machine: Machine,
    environ: Mapping[str, str],
) -> _Outcome:
    """Find the packs, unless they are named, and seed them."""
    outcome = _Outcome()
    paths, empty = look_for_packs(packages, environ) if packs is None else (list(packs), [])
    paths = [os.path.realpath(path) for path in paths]
    # What AITER bundles is seeded where AITER's own kernels are looked for, not into a folder named by hand.
    here = cache_dir in (None, environ.get(CACHE_VARIABLE))
    bundled = bundled_folder() if here and packs is None else None
    if paths or bundled:
        named = [Place(cache_dir, announce=False, chosen=True)] if cache_dir is not None else None
        outcome = _seed_somewhere(named or places(environ, bundled), paths, bundled, machine, environ)
    if machine.strict and not paths:
        outcome.problems.append("no pack of kernels is installed")
    if machine.strict:
        outcome.problems += outcome.notes
    outcome.problems += empty
    return outcome


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
        wrong.append(f"{MODE_VARIABLE}={said}: not one of off, on, strict; using on")
    return found or "on"


def _seed_somewhere(
    tries: list[Place], paths: list[str], bundled: str | None, machine: Machine, environ: Mapping[str, str]
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
            copied, copies = copy_bundled(bundled, place.folder, files) if bundled else (0, {})
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


def _mark(folder: str, head: str | None, done: list[Seeded], files: Mapping[str, int], machine: Machine) -> None:
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
        sweep(stamps, os.listdir(stamps))
        publish(marker_path(folder), text.encode(errors="surrogateescape"))


def _seed_packs(paths: list[str], folder: str, machine: Machine) -> tuple[list[Seeded], list[str]]:
    done: list[Seeded] = []
    broken: list[str] = []
    stamps: dict[str, bytes] = {}
    taken: dict[str, int] = {}
    for path in paths:
        try:
            stamp = machine.stamp(folder, read_header(path).pack_id)
            seeded = read_stamp(stamp, path, folder, machine.code)
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


def _seed_pack(path: str, machine: Machine, folder: str, taken: Mapping[str, int]) -> tuple[Seeded, bytes]:
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

        written, sizes = write_entries(folder, [one.path for some in users.values() for one in some], contents)
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
    return Seeded(report, files, code, fitting.notes), json.dumps(record).encode()
