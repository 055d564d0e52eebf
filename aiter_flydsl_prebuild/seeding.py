"""Seeding: putting the kernels of the installed packs where FlyDSL of this process will look for them.

    packs on sys.path ──▶ do they fit this arch, FlyDSL and ROCm? ──▶ files in FlyDSL's cache folder ──▶ a stamp

A stamp in the cache folder remembers what was done for a pack under the FlyDSL and ROCm at hand, so that a second start
costs a few stats and one listing. Files appear under their final names whole or not at all: each is written beside its
place and renamed. Two processes that seed at once write the same bytes; neither waits for the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import flydsl_cache as cache
from .errors import CheckError, InputError, PrebuildError
from .flydsl_install import Install, locate, read_install
from .pack import FOLDER, SUFFIX, Pack, read_header
from .target import target_arches

MODE_VARIABLE = "AITER_FLYDSL_PREBUILD"
PACKS_VARIABLE = "AITER_FLYDSL_PREBUILD_PACKS"
"""Further packs: files, or folders that hold some, joined as in PATH."""

KERNEL_PACKAGES = ("aiter_flydsl_kernels", "aiter", "aiter_flydsl_prebuild")
"""Packages whose ``flydsl_kernels`` folder is looked at without being asked."""

_STAMPS = ".aiter-flydsl-prebuild"
_STAMP_FORMAT = "1"
_TEMPORARY = ".afp-"
_STALE_SECONDS = 3600.0


class Placement(NamedTuple):
    """Where one cache entry goes: its path below the cache root, its payload and the rest of its state."""

    path: str
    payload: int
    fields: dict[str, Any]


class Fit(NamedTuple):
    """What of a pack fits this machine: ``placements`` to write, ``kernels`` they make, and why the rest stays out."""

    placements: list[Placement]
    kernels: int
    reasons: list[str]


class PackReport(NamedTuple):
    """What became of one pack. ``kernels`` fit and are in place; ``written`` files are new."""

    path: str
    arch: str
    version: str
    kernels: int
    written: int
    reasons: list[str]


class SeedReport(NamedTuple):
    """What :func:`seed` did. ``problems`` were logged; ``cache_dir`` is None where nothing was to do."""

    mode: str
    arches: list[str]
    cache_dir: str | None
    packs: list[PackReport]
    problems: list[str]
    seconds: float

    @property
    def kernels(self) -> int:
        """Kernels in place, over all packs."""
        return sum(pack.kernels for pack in self.packs)

    @property
    def written(self) -> int:
        """Files written by this call."""
        return sum(pack.written for pack in self.packs)


def find_packs(packages: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> list[str]:
    """Paths of the packs of ``packages``, of :data:`KERNEL_PACKAGES` and of PACKS_VARIABLE, each once."""
    names = (*packages, *(p for p in KERNEL_PACKAGES if p not in packages))
    folders: list[str] = []
    for name in names:
        module = sys.modules.get(name)
        # An imported package knows where it is, also when it was installed in editable form.
        homes = list(getattr(module, "__path__", ())) if module else []
        homes += [os.path.join(entry or os.getcwd(), *name.split(".")) for entry in sys.path]
        folders += [os.path.join(home, FOLDER) for home in homes]
    found: dict[str, None] = {}
    for place in [*folders, *filter(None, environ.get(PACKS_VARIABLE, "").split(os.pathsep))]:
        if place.endswith(SUFFIX):
            found[os.path.realpath(place)] = None
            continue
        try:
            names_here = sorted(os.listdir(place))
        except OSError:
            continue
        found.update((os.path.realpath(os.path.join(place, n)), None) for n in names_here if n.endswith(SUFFIX))
    return list(found)


def cache_folder(environ: Mapping[str, str] = os.environ) -> str:
    """The cache root that FlyDSL reads in this process (it takes FLYDSL_RUNTIME_CACHE_DIR as it stands)."""
    return environ.get("FLYDSL_RUNTIME_CACHE_DIR", cache.default_cache_dir())


def settings_that_defeat(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why no prebuilt kernel can be used under these FlyDSL settings, or None."""
    # utils/env.py, OptBool: what counts as true.
    if environ.get("FLYDSL_RUNTIME_ENABLE_CACHE", "1").strip().lower() not in ("1", "true", "yes", "on"):
        return "FLYDSL_RUNTIME_ENABLE_CACHE turns FlyDSL's cache off; unset it"
    if environ.get("FLYDSL_RUNTIME_CACHE_DIR") == "":
        return "FLYDSL_RUNTIME_CACHE_DIR is empty, which turns FlyDSL's cache off; unset it or name a folder"
    if changed := [name for name in cache.KEYED_VARIABLES if environ.get(name)]:
        return f"{', '.join(changed)} is set and enters FlyDSL's keys; kernels are built with it unset"
    return None


def fit(pack: Pack, arches: Sequence[str], install: Install | None, bitcode: str) -> Fit:
    """Which kernels of a pack may be used here, and under which names.

    :param bitcode: :func:`flydsl_cache.bitcode_digest` of the ROCm folder that FlyDSL takes in this process.
    """
    if pack.arch not in arches:
        return Fit([], 0, [f"kernels are for {pack.arch}, this machine needs {', '.join(arches)}"])
    if install is None:
        return Fit([], 0, ["FlyDSL is not installed"])
    if install.version != pack.version:
        version = install.version or "of an unknown version"
        return Fit([], 0, [f"kernels are for flydsl {pack.version}, installed is {version}"])
    if install.identity is None:
        return Fit([], 0, [f"flydsl {install.version} was not installed from a wheel, so its compiler is unknown"])
    if install.identity not in pack.identities.get(install.abi, ()):
        if install.abi not in pack.identities:
            have = ", ".join(sorted(pack.identities))
            return Fit([], 0, [f"kernels are for FlyDSL on {have}, this Python is {install.abi}"])
        return Fit([], 0, [f"flydsl {install.version} is another build than the one the kernels were made for"])

    toolchain = cache.toolchain_key(install, bitcode) if pack.generation == cache.ARTIFACT_KEY else ""
    placements: dict[str, Placement] = {}
    fitting = 0
    other_bitcode = 0
    for kernel in pack.kernels:
        if kernel.bitcode not in (None, bitcode):
            other_bitcode += 1
            continue
        fitting += 1
        for entry in kernel.entries:
            if entry.artifact_key is not None:
                path = cache.artifact_path(entry.launcher, cache.disk_key(toolchain, entry.artifact_key))
            else:
                path = entry.paths[install.abi]
            placements[path] = Placement(path, entry.payload, entry.fields)
    reasons = []
    if other_bitcode:
        reasons.append(f"{other_bitcode} kernels link the device bitcode of another ROCm")
    return Fit(list(placements.values()), fitting, reasons)


def seed(
    packages: Iterable[str] = (),
    *,
    mode: str | None = None,
    packs: Iterable[str] | None = None,
    cache_dir: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> SeedReport:
    """Put the kernels of the installed packs into the folder that FlyDSL will read; a second call is nearly free.

    Does nothing on a machine without a ROCm GPU, unless AITER_FLYDSL_PREBUILD_ARCH or FlyDSL's own settings name an
    arch. What does not fit is left out and logged in one line a pack.

    :param packages: packages beside the known ones that carry packs (``aiter`` calls ``seed(["aiter"])``).
    :param mode: ``off``, ``on`` or ``strict``; by default what AITER_FLYDSL_PREBUILD says, else ``on``.
    :param packs: exactly these packs, in place of looking for them.
    :param cache_dir: the cache root, in place of the one that FlyDSL reads in this process.
    :raises CheckError: in strict mode alone, when a kernel could not be put in place.
    """
    started = time.perf_counter()
    strict = False
    arches: list[str] = []
    folder: str | None = None
    reports: list[PackReport] = []
    problems: list[str] = []
    try:
        mode = _mode(mode, environ)
        strict = mode == "strict"
        if mode != "off" and (arches := target_arches(environ)):
            paths = find_packs(packages, environ) if packs is None else [os.path.realpath(p) for p in packs]
            if paths:
                folder = cache_folder(environ) if cache_dir is None else cache_dir
                reports, problems = _seed_packs(paths, arches, folder, environ)
            elif strict:
                problems.append("no pack of kernels is installed")
    except InputError as error:
        problems.append(str(error))
        mode = "on"
    except Exception as error:  # The host program's start is worth more than any kernel.
        problems.append(f"kernels were not seeded: {type(error).__name__}: {error}")
    if strict and problems:
        raise CheckError("aiter-flydsl-prebuild (strict): " + "; ".join(problems))
    if problems:
        import logging

        for problem in problems:
            logging.getLogger("aiter_flydsl_prebuild").warning("aiter-flydsl-prebuild: %s", problem)
    return SeedReport(mode or "on", arches, folder, reports, problems, time.perf_counter() - started)


def _mode(mode: str | None, environ: Mapping[str, str]) -> str:
    value = environ.get(MODE_VARIABLE, "on").strip().lower() if mode is None else mode
    value = {"": "on", "0": "off", "1": "on"}.get(value, value)
    if value not in ("off", "on", "strict"):
        raise InputError(f"{MODE_VARIABLE}={value}: not one of off, on, strict; taken as on")
    return value


def _seed_packs(
    paths: list[str], arches: list[str], folder: str, environ: Mapping[str, str]
) -> tuple[list[PackReport], list[str]]:
    if defeated := settings_that_defeat(environ):
        return [], [f"prebuilt kernels are not used: {defeated}"]
    root = cache.rocm_root(environ)
    token = _machine_token(arches, root)
    reports: list[PackReport] = []
    problems: list[str] = []
    install: Install | None = None
    bitcode: str | None = None
    for path in paths:
        try:
            stamp = os.path.join(folder, _STAMPS, _stamp_name(read_header(path).pack_id, token))
            report = _read_stamp(stamp, path, folder)
            if report is None:
                if bitcode is None:
                    install, bitcode = read_install(), cache.bitcode_digest(root)
                report = _seed_pack(path, arches, install, bitcode, folder, stamp)
        except PrebuildError as error:
            problems.append(str(error))
            continue
        except OSError as error:
            problems.append(f"{os.path.basename(path)}: cannot write to {folder}: {error.strerror or error}")
            continue
        reports.append(report)
        # Packs for another arch or FlyDSL are expected beside the right one: only a pack that nothing replaces is news.
        problems += [f"{os.path.basename(path)}: {reason}" for reason in report.reasons]
    if any(report.kernels for report in reports):
        idle = {os.path.basename(r.path) for r in reports if not r.kernels and r.reasons}
        problems = [p for p in problems if p.split(": ", 1)[0] not in idle]
    return reports, problems


def _seed_pack(
    path: str, arches: list[str], install: Install | None, bitcode: str, folder: str, stamp: str
) -> PackReport:
    pack = Pack(path)
    fitting = fit(pack, arches, install, bitcode)
    written = 0
    if fitting.placements:
        texts = list(pack.payloads())
        made: set[str] = set()
        for placement in fitting.placements:
            target = os.path.join(folder, placement.path)
            parent = os.path.dirname(target)
            if parent not in made:
                os.makedirs(parent, mode=0o700, exist_ok=True)
                _sweep(parent)
                made.add(parent)
            data = cache.encode_entry(cache.Entry(texts[placement.payload], placement.fields))
            written += _publish(target, data)
    record = {
        "arch": pack.arch,
        "version": pack.version,
        "kernels": fitting.kernels,
        "reasons": fitting.reasons,
        "files": [p.path for p in fitting.placements],
    }
    if fitting.placements:
        os.makedirs(os.path.dirname(stamp), mode=0o700, exist_ok=True)
        _publish(stamp, json.dumps(record).encode())
    return PackReport(path, pack.arch, pack.version, fitting.kernels, written, fitting.reasons)


def _publish(target: str, data: bytes) -> bool:
    """Make ``target`` hold ``data`` by rename; False where it already did. Nobody ever sees a part of it."""
    try:
        with open(target, "rb") as file:
            if file.read(len(data) + 1) == data:
                return False
    except FileNotFoundError:
        pass
    parent, name = os.path.split(target)
    temporary = os.path.join(parent, f"{_TEMPORARY}{os.getpid()}-{time.monotonic_ns()}-{name[:40]}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


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


def _machine_token(arches: list[str], root: str) -> str:
    """Changes whenever the fit of a pack could change: FlyDSL's RECORD, the device bitcode, the arches, the Python."""
    parts = [_STAMP_FORMAT, sys.implementation.cache_tag or sys.version, *arches]
    found = locate()
    watched = [os.path.join(found[1], "RECORD")] if found and found[1] else []
    watched += cache.bitcode_files(root)
    for path in watched:
        try:
            state = os.stat(path)
        except OSError:
            continue
        parts.append(f"{path} {state.st_mtime_ns} {state.st_size}")
    return "\n".join(parts)


def _stamp_name(pack_id: str, token: str) -> str:
    return hashlib.sha256(f"{pack_id}\n{token}".encode()).hexdigest()[:32] + ".json"


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
