"""What of a pack may be used on this machine, and under which names: the decision, without any writing.

Never forced: what does not fit stays out, with the reason. Every name is the one that the FlyDSL at hand computes for
the same kernel, so at worst a kernel is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import flydsl_cache as cache
from .compute_units import unserved
from .flydsl_install import OWN_KEY, Install, ambiguity, imported_install
from .pack import Pack, PackedEntry, PackedKernel

_SHORT = 12
"""As many digits of a digest as tell two apart in a message."""
_NAMED = 3


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
    if shard := pack.manifest.get("shard"):
        return Fit([], 0, [f"is part {shard['index']} of {shard['of']} of a build, to be merged and not to be used"])
    if pack.arch not in arches:
        here = f"this machine needs {', '.join(arches)}" if arches else "this machine has no ROCm GPU"
        return Fit([], 0, [f"kernels are for {pack.arch}, {here}"])
    if install is None:
        return Fit([], 0, ["FlyDSL is not installed"])
    if twice := ambiguity(install):
        return Fit([], 0, [twice])
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
        known = ", ".join(i[:_SHORT] for i in pack.identities[install.abi])
        why = f"is another build than the one the kernels were made for ({known}, not {install.identity[:_SHORT]})"
        return Fit([], 0, [f"flydsl {install.version} {why}"])

    toolchain = cache.toolchain_key(install, bitcode) if pack.generation == cache.ARTIFACT_KEY else ""
    disk_key = cache.disk_keys(toolchain)
    placements: dict[str, Placement] = {}
    fitting = 0
    other_bitcode: list[PackedKernel] = []
    other_abi: list[PackedKernel] = []
    for kernel in pack.kernels:
        if kernel.bitcode not in (None, bitcode):
            other_bitcode.append(kernel)
            continue
        if any(entry.artifact_key is None and install.abi not in entry.paths for entry in kernel.entries):
            other_abi.append(kernel)
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
        theirs = ", ".join(sorted({str(kernel.bitcode)[:_SHORT] for kernel in other_bitcode}))
        what = f"linked the device bitcode of another ROCm ({theirs}, here it is {bitcode[:_SHORT]})"
        reasons.append(f"{_count(len(other_bitcode))} {what}: {_names([k.facts for k in other_bitcode])}")
    if other_abi:
        theirs = ", ".join(sorted({abi for kernel in other_abi for entry in kernel.entries for abi in entry.paths}))
        what = f"got keys for {theirs} alone, none for {install.abi}"
        reasons.append(f"{_count(len(other_abi))} {what}: {_names([k.facts for k in other_abi])}")
    reasons += lost(pack)
    return Fit(list(placements.values()), fitting, reasons)


def lost(pack: Pack) -> list[str]:
    """One reason for all kernels that a pack should have and could not be built with; none where it has all."""
    if not pack.missing:
        return []
    return [f"{_count(len(pack.missing))} could not be built and will be compiled: {_names(pack.missing)}"]


def other_units(pack: Pack, counts: Sequence[int]) -> list[str]:
    """One reason for all kernels whose layers have rows for other numbers of compute units than these GPUs' alone.

    They are put in place all the same: a GPU may be partitioned anew.
    """
    lost = unserved(pack, counts)
    if not lost:
        return []
    theirs = " or ".join(map(str, sorted({number for _, numbers in lost for number in numbers})))
    here = f"this GPU has {counts[0]}" if len(counts) == 1 else f"these GPUs have {' and '.join(map(str, counts))}"
    if len(lost) == len(pack.kernels):
        return [f"kernels are for {theirs} compute units, {here}"]
    what = f"{_count(len(lost))} {'are' if len(lost) > 1 else 'is'} for {theirs} compute units"
    return [f"{what}, {here}: {_names([kernel.facts for kernel, _ in lost])}"]


def tokens_of(pack: Pack) -> str:
    """The range of token counts that a pack was built for, as ``1..8192``; empty where it does not say."""
    try:
        first, last = pack.manifest["plan"]["tokens"]
    except (KeyError, TypeError, ValueError):
        return ""
    return f"{first}..{last}" if type(first) is int and type(last) is int else ""


def _count(kernels: int) -> str:
    return f"{kernels} kernel{'s' if kernels > 1 else ''}"


def _names(kernels: Sequence[dict[str, Any]]) -> str:
    """Which kernels, the first ones by name. What a pack says is quoted where it could forge lines of a log."""
    named = [f"{ascii(k['name'])[1:-1]:.100} (N={k.get('n')!r:.20}, K={k.get('k')!r:.20})" for k in kernels[:_NAMED]]
    more = len(kernels) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
