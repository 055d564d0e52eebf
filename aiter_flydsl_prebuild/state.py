"""What would be seeded here, what is, and where: the state of this machine, read without changing anything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from . import flydsl_cache as cache
from .discovery import MODE_VARIABLE, bundled_folder, find_packs, folder_in_use, rocm_root
from .errors import PrebuildError
from .fitting import fit
from .flydsl_install import known_identities, read_install
from .pack import Pack
from .places import cautions, defeated
from .target import target_arches


def status(packages: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The state as JSON-able values: arches, FlyDSL, cache folder, and each installed pack with what of it is in place.

    ``in_place`` counts kernels' files that are there; ``oldest`` is the age in seconds of the oldest of them.
    """
    arches = target_arches(environ)
    install = read_install()
    folder = folder_in_use(environ)
    bitcode = cache.bitcode_digest(rocm_root(environ))
    found: dict[str, Any] = {
        "mode": environ.get(MODE_VARIABLE, "on"),
        "arches": arches,
        "flydsl": None,
        "cache_dir": folder,
        "defeated_by": defeated(environ),
        "cautions": cautions(environ),
        "bundled": bundled_folder(),
        "packs": [],
    }
    if install is not None:
        released = known_identities().get(install.version, {}).get(install.abi, [])
        found["flydsl"] = {
            "version": install.version,
            "abi": install.abi,
            "identity": install.identity,
            "released_wheel": install.identity in released,
        }
    for path in find_packs(packages, environ):
        try:
            pack = Pack(path)
        except PrebuildError as error:
            found["packs"].append({"path": path, "problem": str(error)})
            continue
        fitting = fit(pack, arches, install, bitcode)
        times = []
        for placement in fitting.placements:
            try:
                times.append(os.stat(os.path.join(folder, placement.path)).st_mtime)
            except OSError:
                continue
        found["packs"].append(
            {
                "path": path,
                "arch": pack.arch,
                "flydsl": pack.version,
                "source": pack.manifest["source"],
                "kernels": len(pack.kernels),
                "fitting": fitting.kernels,
                "files": len(fitting.placements),
                "in_place": len(times),
                "oldest": round(time.time() - min(times), 1) if times else None,
                "reasons": fitting.reasons,
            }
        )
    return found
