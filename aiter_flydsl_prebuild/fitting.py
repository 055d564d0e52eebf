"""What of a pack may be used on this machine, and under which names: the decision, without any writing.

Never forced: what does not fit stays out, with the reason. Every name is the one that the FlyDSL at hand computes for
the same kernel, so at worst a kernel is not found; where a name does not say enough, the code that the kernel was
compiled from is compared with what is installed (binding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .binding import InstalledCode, called, installed_version, package_of
from .compute_units import unserved
from .errors import few
from .flydsl import cache
from .flydsl.install import OWN_KEY, Install, ambiguity, imported_install
from .packs.format import Pack

if TYPE_CHECKING:
    from .packs.manifest import MissingKernel, PackedEntry, PackedKernel

_SHORT = 12
"""As many digits of a digest as tell two apart in a message."""


class Placement(NamedTuple):
    """Where one cache entry of a kernel goes: its path below the cache root."""

    path: str
    kernel: PackedKernel
    entry: PackedEntry


class Fit(NamedTuple):
    """What of a pack fits this machine: ``placements`` to write, ``kernels`` they make, and why the rest stays out.

    ``notes`` are no news to a server: kernels of packages that are not installed here, which nothing here can call.
    """

    placements: list[Placement]
    kernels: int
    reasons: list[str]
    notes: list[str]


class OtherCode(NamedTuple):
    """Kernels that were not compiled from the code that is installed here.

    ``differing`` maps a package to its kernels and to the files of theirs that are others here, or are not there;
    ``absent`` maps one that is not installed to its kernels.
    """

    differing: dict[str, tuple[list[PackedKernel], list[str]]]
    absent: dict[str, list[PackedKernel]]

    @property
    def kernels(self) -> list[PackedKernel]:
        """All of them."""
        return [kernel for kernels, _ in self.differing.values() for kernel in kernels] + [
            kernel for kernels in self.absent.values() for kernel in kernels
        ]


def fit(
    pack: Pack, arches: Sequence[str], install: Install | None, bitcode: str, code: InstalledCode | None = None
) -> Fit:
    """Which kernels of a pack may be used here, and under which names.

    :param bitcode: :func:`flydsl.cache.bitcode_digest` of the ROCm folder that FlyDSL takes in this process.
    :param code: what was read of the installed packages before.
    """
    if install is not None and install.identity is None and not ambiguity(install) and _built_without_record(pack):
        # Only a pack that was built with such a FlyDSL makes it worth the import.
        install = imported_install(install)
    if why := _misfit(pack, arches, install):
        return Fit([], 0, [why], [])
    assert install is not None
    code = code or InstalledCode()
    toolchain = cache.toolchain_key(install, bitcode) if pack.generation == cache.ARTIFACT_KEY else ""
    disk_key = cache.disk_keys(toolchain)
    # From 0.5 a kernel of other code has another key, and is not found.
    other = OtherCode({}, {}) if toolchain else other_code(pack, code)
    not_this_code = {id(kernel) for kernel in other.kernels}
    placements: dict[str, Placement] = {}
    fitting = 0
    other_bitcode: list[PackedKernel] = []
    other_abi: list[PackedKernel] = []
    for kernel in pack.kernels:
        if id(kernel) in not_this_code:
            continue
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
    reasons = differences(pack, other, code)
    if other_bitcode:
        theirs = ", ".join(sorted({str(kernel.bitcode)[:_SHORT] for kernel in other_bitcode}))
        what = f"linked the device bitcode of another ROCm ({theirs}, here it is {bitcode[:_SHORT]})"
        reasons.append(f"{_count(len(other_bitcode))} {what}: {_names(other_bitcode)}")
    if other_abi:
        theirs = ", ".join(sorted({abi for kernel in other_abi for entry in kernel.entries for abi in entry.paths}))
        have = "have" if len(other_abi) > 1 else "has"
        what = f"{have} keys only for {theirs}, none for {install.abi}"
        reasons.append(f"{_count(len(other_abi))} {what}: {_names(other_abi)}")
    reasons += lost(pack)
    return Fit(list(placements.values()), fitting, reasons, absences(other))


def _built_without_record(pack: Pack) -> bool:
    return any(i.startswith(OWN_KEY) for known in pack.identities.values() for i in known)


def _misfit(pack: Pack, arches: Sequence[str], install: Install | None) -> str | None:
    """Why nothing of a pack fits, None where something may."""
    if shard := pack.manifest.shard:
        return f"is part {shard.index} of {shard.of} of a build: merge the parts, and install the result"
    if pack.arch not in arches:
        here = f"this machine needs {', '.join(arches)}" if arches else "this machine has no ROCm GPU"
        return f"kernels are for {pack.arch}, {here}"
    if install is None:
        return "FlyDSL is not installed"
    if twice := ambiguity(install):
        return twice
    if install.version != pack.version:
        version = install.version or "of an unknown version"
        return f"kernels are for flydsl {pack.version}, installed is {version}"
    if install.identity is None:
        why = "was not installed from a wheel: only kernels that were built with exactly this FlyDSL fit"
        return f"flydsl {install.version} {why}"
    if install.identity not in pack.identities.get(install.abi, ()):
        if install.abi not in pack.identities:
            have = ", ".join(sorted(pack.identities))
            return f"kernels are for FlyDSL on {have}, this Python is {install.abi}"
        known = ", ".join(i[:_SHORT] for i in pack.identities[install.abi])
        why = f"is not the build that the kernels were made for ({known}, not {install.identity[:_SHORT]})"
        return f"flydsl {install.version} {why}"
    return install.other_keys


def other_code(pack: Pack, code: InstalledCode) -> OtherCode:
    """The kernels of a pack whose source files are not those that are installed here.

    A kernel of several packages counts for the first of them that differs or is absent.
    """
    found = OtherCode({}, {})
    by_set: dict[int | None, tuple[str, list[str]] | None] = {None: None}
    for kernel in pack.kernels:
        if kernel.files not in by_set:
            by_set[kernel.files] = _first_difference(pack.manifest.files_of(kernel), code)
        if (difference := by_set[kernel.files]) is None:
            continue
        package, files = difference
        if not files:
            found.absent.setdefault(package, []).append(kernel)
            continue
        kernels, named = found.differing.setdefault(package, ([], []))
        kernels.append(kernel)
        named += [path for path in files if path not in named]
    return found


def _first_difference(files: Sequence[tuple[str, str]], code: InstalledCode) -> tuple[str, list[str]] | None:
    """A package and which of its files are others here: none of them where it is not installed at all."""
    wrong: dict[str, list[str]] = {}
    for path, digest in dict.fromkeys(files):
        package = package_of(path)
        if not code.folders(package):
            return package, []
        if code.digest(path) != digest:
            wrong.setdefault(package, []).append(path)
    return next(iter(wrong.items()), None)


def differences(pack: Pack, other: OtherCode, code: InstalledCode) -> list[str]:
    """A line for each package whose code is another than the one that kernels were compiled from."""
    lines = []
    for package, (kernels, files) in other.differing.items():
        known = pack.manifest.source.package(package)
        theirs = called(package, known.version)
        ours = called(package, installed_version(package, known.distribution, code.folders(package)))
        what = f"compiled from {theirs}, installed is {ours} with different code ({few(files)})"
        lines.append(f"{_count(len(kernels))} {'were' if len(kernels) > 1 else 'was'} {what}: {_names(kernels)}")
    return lines


def absences(other: OtherCode) -> list[str]:
    """A line for each package that is not installed here and has kernels in a pack."""
    return [
        f"{_count(len(kernels))} of {package}, which is not installed here: {_names(kernels)}"
        for package, kernels in other.absent.items()
    ]


def code_notes(pack: Pack, code: InstalledCode) -> list[str]:
    """What ``status`` says of the code that kernels were compiled from, beside the reasons of :func:`fit`."""
    other = other_code(pack, code)
    notes = absences(other)
    if pack.generation == cache.ARTIFACT_KEY:
        notes += [f"{line}; where that changes a kernel, its key differs" for line in differences(pack, other, code)]
    if unbound := [kernel for kernel in pack.kernels if kernel.files is None]:
        what = "built by a release that does not record which code kernels are compiled from: not compared"
        notes.append(f"{_count(len(unbound))} {what}")
    return notes


def lost(pack: Pack) -> list[str]:
    """One reason for all kernels that a pack should have and could not be built with; none where it has all."""
    if not pack.missing:
        return []
    return [f"{_count(len(pack.missing))} could not be built, so FlyDSL will compile them: {_names(pack.missing)}"]


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
    return [f"{what}, {here}: {_names([kernel for kernel, _ in lost])}"]


def tokens_of(pack: Pack) -> str:
    """The range of token counts that a pack was built for, as ``1..8192``."""
    first, last = pack.manifest.plan.tokens
    return f"{first}..{last}"


def _count(kernels: int) -> str:
    return f"{kernels} kernel{'s' if kernels > 1 else ''}"


def _names(kernels: Sequence[PackedKernel | MissingKernel]) -> str:
    """Which kernels, the first ones by name."""
    return few([f"{kernel.label:.160}" for kernel in kernels])
