"""Stamps: what was done for a pack in a cache root, under the FlyDSL and ROCm at hand, which they know by content."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .binding import InstalledCode
from .discovery import STAMPS, UncertainError, rocm_root
from .errors import InputError, PrebuildError
from .files import remove, sweep
from .flydsl import cache
from .flydsl.install import Install, checked, read_install
from .marker import flydsl_state, gpus, in_place
from .packs.format import read_header
from .report import PackReport
from .target import Target

_FORMAT = "4"


class Seeded(NamedTuple):
    """A pack that was seeded: its files by path below the cache root with their sizes, and what they depend on.

    ``code`` maps the source files that its kernels are bound to to their sha256 here, None for one that is not there.
    """

    report: PackReport
    files: dict[str, int]
    code: dict[str, str | None]
    notes: list[str]


class Machine:
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
        return "\n".join([_FORMAT, python, *gpus(self.target), flydsl, bitcode])


def read_stamp(stamp: str, path: str, folder: str, code: InstalledCode) -> Seeded | None:
    """What the stamp of a pack remembers, if every file that it names is there with its size, and can be locked."""
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
            sweep(there, present)
            readable = all(os.access(os.path.join(there, entry), os.R_OK) for entry in sizes)
            if not readable or not in_place(there, present, sizes, str([*sizes.values()])):
                return None
        arch, version, kernels, reasons = (record[key] for key in ("arch", "version", "kernels", "reasons"))
        report = PackReport(path, arch, version, kernels, 0, reasons, record["tokens"])
        return Seeded(report, files, bound, record["notes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


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
        removed = [path for path in removed if remove(os.path.join(folder, path))]
        for name in gone:
            remove(os.path.join(stamps, name))
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
