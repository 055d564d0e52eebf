"""What would be seeded here, what is, and where: the state of this machine, read without changing anything."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .binding import InstalledCode
from .compute_units import serving
from .discovery import MODE_VARIABLE, STAMPS, bundled_folder, look_for_packs, rocm_root
from .errors import PrebuildError
from .files import publish
from .fitting import Fit, code_notes, fit, other_units, tokens_of
from .flydsl import cache
from .flydsl.install import Install, ambiguity, checked, known_identities, read_install
from .packs.format import Pack
from .packs.manifest import to_json
from .places import cautions, choose, defeated, make_private
from .target import read_target

_FIRST_CALLS = "first-calls.json"


class FirstCalls(NamedTuple):
    """What first calls cost where ``warm`` was last run: seconds of all ``kernels``, and of the slowest.

    Without ``launched`` the calls ended at FlyDSL's look-up, for want of a GPU.
    """

    flydsl: str
    launched: bool
    kernels: int
    seconds: float
    slowest: str
    slowest_seconds: float


def write_first_calls(folder: str, measured: FirstCalls) -> None:
    """Keep it in a cache root.

    :raises OSError: that cannot be written to.
    """
    make_private(os.path.join(folder, STAMPS))
    publish(os.path.join(folder, STAMPS, _FIRST_CALLS), json.dumps(measured._asdict()).encode())


def read_first_calls(folder: str) -> dict[str, Any] | None:
    """What :func:`write_first_calls` kept, and its ``age`` in seconds; None where there is nothing, or nonsense."""
    path = os.path.join(folder, STAMPS, _FIRST_CALLS)
    try:
        with open(path, encoding="utf-8") as file:
            measured = FirstCalls(**json.load(file))
        return {**measured._asdict(), "age": round(time.time() - os.stat(path).st_mtime, 1)}
    except (OSError, ValueError, TypeError):
        return None


def status(packages: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The state as JSON-able values: arches, FlyDSL, cache folder, and each installed pack with what of it is in place.

    ``compute_units`` are those of the GPUs of each arch, where the driver tells; ``serving`` counts, for each number of
    them, the kernels that such a GPU calls, None where the pack does not tell; ``empty`` has a line for each place that
    was named and holds no pack. ``cache_dir`` is the folder that seeding takes, and ``cautions`` say what is wrong with
    it, or with the settings; ``in_place`` counts kernels' files that are there and of the right size; ``oldest`` is the
    age in seconds of the oldest of them; ``reasons`` say what of a pack does not fit, ``notes`` what is worth knowing
    of the code that it was compiled from; FlyDSL's ``damage`` says which of its sources are not as its RECORD says,
    None where all are; ``first_calls`` is what ``warm`` measured here, None before.
    """
    target = read_target(environ)
    arches = target.arches
    packs, empty = look_for_packs(packages, environ)
    install = read_install()
    if install is not None:
        install = checked(install)
    code = InstalledCode()
    bundled = bundled_folder()
    folder, problems, _ = choose(environ, bundled)
    bitcode = cache.bitcode_digest(rocm_root(environ))
    found: dict[str, Any] = {
        "mode": environ.get(MODE_VARIABLE, "on"),
        "arches": arches,
        "compute_units": target.units,
        "flydsl": None,
        "cache_dir": folder,
        "defeated_by": defeated(environ),
        "cautions": [*cautions(environ), *problems],
        "bundled": bundled,
        "first_calls": read_first_calls(folder),
        "packs": [],
        "empty": empty,
    }
    if install is not None:
        found["flydsl"] = _flydsl(install)
    for path in packs:
        try:
            pack = Pack(path)
        except PrebuildError as error:
            found["packs"].append({"path": path, "problem": str(error)})
            continue
        fitting = fit(pack, arches, install, bitcode, code)
        found["packs"].append(_pack(pack, fitting, folder, target.units.get(pack.arch, ()), code))
    return found


def _flydsl(install: Install) -> dict[str, Any]:
    released = known_identities().get(install.version, {}).get(install.abi, [])
    return {
        "version": install.version,
        "abi": install.abi,
        "identity": install.identity,
        "released_wheel": install.identity in released,
        "problem": ambiguity(install),
        "damage": install.damage,
    }


def _pack(pack: Pack, fitting: Fit, folder: str, units: Sequence[int], code: InstalledCode) -> dict[str, Any]:
    """What :func:`status` says of one pack."""
    counted = serving(pack, units) if fitting.kernels else None
    times = []
    for placement in fitting.placements:
        try:
            there = os.stat(os.path.join(folder, placement.path))
        except OSError:
            continue
        if there.st_size == cache.entry_size(placement.entry.fields, pack.payload_size(placement.entry)):
            times.append(there.st_mtime)
    return {
        "path": pack.path,
        "arch": pack.arch,
        "flydsl": pack.version,
        "source": to_json(pack.manifest.source),
        "kernels": len(pack.kernels),
        "fitting": fitting.kernels,
        "files": len(fitting.placements),
        "in_place": len(times),
        "oldest": round(time.time() - min(times), 1) if times else None,
        "reasons": [*fitting.reasons, *(other_units(pack, units) if fitting.kernels else ())],
        "notes": code_notes(pack, code),
        "tokens": tokens_of(pack) or None,
        "serving": None if counted is None else [one._asdict() for one in counted],
    }
