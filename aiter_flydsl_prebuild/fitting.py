"""What of a pack may be used on this machine, and under which names: the decision, without any writing.

Never forced: what does not fit stays out, with the reason. Every name is the one that the FlyDSL at hand computes for
the same kernel, so at worst a kernel is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import flydsl_cache as cache
from .flydsl_install import OWN_KEY, Install, imported_install
from .pack import Pack, PackedEntry, PackedKernel


class Placement(NamedTuple):
    """Where one cache entry of a kernel goes: its path below the cache root."""

    path: str
    kernel: PackedKernel
    entry: PackedEntry


class Fit(NamedTuple):
    """What of a pack fits this machine: ``placements`` to write, ``kernels`` they make, and why the rest stays out."""

    placements: list[Placement]
    kernels: int
    reasons: list[str]


def fit(pack: Pack, arches: Sequence[str], install: Install | None, bitcode: str) -> Fit:
    """Which kernels of a pack may be used here, and under which names.

    :param bitcode: :func:`flydsl_cache.bitcode_digest` of the ROCm folder that FlyDSL takes in this process.
    """
    if pack.arch not in arches:
        here = f"this machine needs {', '.join(arches)}" if arches else "this machine has no ROCm GPU"
        return Fit([], 0, [f"kernels are for {pack.arch}, {here}"])
    if install is None:
        return Fit([], 0, ["FlyDSL is not installed"])
    if install.identity is None and any(i.startswith(OWN_KEY) for known in pack.identities.values() for i in known):
        # Only a pack that was built with such a FlyDSL makes it worth the import.
        install = imported_install(install)
    if install.version != pack.version:
        version = install.version or "of an unknown version"
        return Fit([], 0, [f"kernels are for flydsl {pack.version}, installed is {version}"])
    if install.identity is None:
        why = "was not installed from a wheel, and only one built with exactly it fits"
        return Fit([], 0, [f"flydsl {install.version} {why}"])
    if install.identity not in pack.identities.get(install.abi, ()):
        if install.abi not in pack.identities:
            have = ", ".join(sorted(pack.identities))
            return Fit([], 0, [f"kernels are for FlyDSL on {have}, this Python is {install.abi}"])
        return Fit([], 0, [f"flydsl {install.version} is another build than the one the kernels were made for"])

    toolchain = cache.toolchain_key(install, bitcode) if pack.generation == cache.ARTIFACT_KEY else ""
    disk_key = cache.disk_keys(toolchain)
    placements: dict[str, Placement] = {}
    fitting = 0
    other_bitcode = 0
    other_abi = 0
    for kernel in pack.kernels:
        if kernel.bitcode not in (None, bitcode):
            other_bitcode += 1
            continue
        if any(entry.artifact_key is None and install.abi not in entry.paths for entry in kernel.entries):
            other_abi += 1
            continue
        fitting += 1
        for entry in kernel.entries:
            if entry.artifact_key is not None:
                path = cache.artifact_path(entry.launcher, disk_key(entry.artifact_key))
            else:
                path = entry.paths[install.abi]
            placements[path] = Placement(path, kernel, entry)
    reasons = []
    if other_bitcode:
        reasons.append(f"{other_bitcode} kernels link the device bitcode of another ROCm")
    if other_abi:
        reasons.append(f"{other_abi} kernels have no key for {install.abi}")
    return Fit(list(placements.values()), fitting, reasons)
