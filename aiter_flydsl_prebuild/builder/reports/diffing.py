"""What is different between two wheels of kernels: kernel by kernel, and in what describes them.

Kernels are the same one if they compute the same: operand contract, N, K, scale blocks, weight type and name. Reads
manifests alone; needs neither FlyDSL nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...packs.format import Pack
from ...packs.manifest import Manifest, PackedKernel, to_json

# Of a kernel's code objects: names in the manifest, summed where a kernel has several.
_FACTS = ("vgpr", "agpr", "sgpr", "lds", "scratch", "vgpr_spills", "sgpr_spills", "code_object_bytes")


@dataclass(frozen=True)
class KernelChange:
    """A kernel that both wheels have, and each of its properties that differs: its value before and after.

    ``code`` is the sha256 of its code objects. ``host code`` and ``key`` are named, without values, where the code
    objects are the same: the payload around them differs, or the name under which FlyDSL looks for it.
    """

    kernel: str
    changes: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class PackDifference:
    """Two packs of one arch and one FlyDSL. ``about`` is what describes them as a whole, where it differs."""

    arch: str
    flydsl: str
    about: dict[str, tuple[Any, Any]]
    added: list[str]
    dropped: list[str]
    changed: list[KernelChange]
    same: int


@dataclass(frozen=True)
class Difference:
    """Two wheels. Packs for another arch or FlyDSL have no partner: ``only_old`` and ``only_new`` name them."""

    packs: list[PackDifference]
    only_old: list[str]
    only_new: list[str]
    bytes: tuple[int, int]

    @property
    def same_kernels(self) -> bool:
        """Whether a server finds the same code under the same keys for the same token counts."""
        parts = [part for pack in self.packs for part in (pack.added, pack.dropped, pack.changed)]
        return not any(parts) and not self.only_old and not self.only_new

    @property
    def identical(self) -> bool:
        """Whether nothing at all differs."""
        return self.same_kernels and not any(pack.about for pack in self.packs)

    def to_json(self) -> dict[str, Any]:
        """As ``diff --json`` prints it."""
        return {"identical": self.identical, "same_kernels": self.same_kernels, **asdict(self)}


def diff(old: Sequence[Pack], new: Sequence[Pack]) -> Difference:
    """What became of the packs of one wheel in another."""
    before, after = _by_target(old), _by_target(new)
    both = sorted(before.keys() & after.keys())
    return Difference(
        packs=[_diff_packs(before[target], after[target]) for target in both],
        only_old=[_called(*target) for target in sorted(before.keys() - after.keys())],
        only_new=[_called(*target) for target in sorted(after.keys() - before.keys())],
        bytes=(sum(len(pack.content) for pack in old), sum(len(pack.content) for pack in new)),
    )


def _by_target(packs: Sequence[Pack]) -> dict[tuple[str, str, str], Pack]:
    return {(pack.arch, pack.version, pack.manifest.source.name): pack for pack in packs}


def _called(arch: str, flydsl: str, source: str) -> str:
    return f"{source} kernels for {arch} and flydsl {flydsl}"


def _diff_packs(old: Pack, new: Pack) -> PackDifference:
    before, after = ({kernel.label: kernel for kernel in pack.kernels} for pack in (old, new))
    added = [label for label in after if label not in before]
    dropped = [label for label in before if label not in after]
    common = [label for label in before if label in after]
    changes = {label: dict(_changes(old, before[label], new, after[label])) for label in common}
    changed = [KernelChange(label, found) for label, found in changes.items() if found]
    about = dict(_about(old, new))
    return PackDifference(old.arch, old.version, about, added, dropped, changed, len(common) - len(changed))


def _changes(old: Pack, before: PackedKernel, new: Pack, after: PackedKernel) -> Iterator[tuple[str, tuple[Any, Any]]]:
    ours, theirs = before.code, after.code
    digests = [[code.code_object_sha256 for code in codes] for codes in (ours, theirs)]
    if digests[0] != digests[1]:
        yield "code", (digests[0], digests[1])
    for name in _FACTS:
        values = [sum(getattr(code, name) for code in codes) for codes in (ours, theirs)]
        if values[0] != values[1]:
            yield name, (values[0], values[1])
    if digests[0] == digests[1] and _payloads(old, before) != _payloads(new, after):
        yield "host code", (None, None)
    if _keys(before) != _keys(after):
        yield "key", (None, None)
    if before.bitcode != after.bitcode:
        yield "bitcode", (before.bitcode, after.bitcode)
    for name in ("tokens", "cu_num"):
        values = [to_json(getattr(kernel, name)) for kernel in (before, after)]
        if values[0] != values[1]:
            yield name, (values[0], values[1])
    if before.extra != after.extra:
        yield "other facts", (before.extra, after.extra)


def _payloads(pack: Pack, kernel: PackedKernel) -> list[Any]:
    return [(pack.manifest.payloads[entry.payload].sha256, entry.fields) for entry in kernel.entries]


def _keys(kernel: PackedKernel) -> list[Any]:
    return [(entry.launcher, sorted(entry.names)) for entry in kernel.entries]


def _about(old: Pack, new: Pack) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What describes the packs as a whole, by dotted names; shapes by what no kernel or another library serves."""
    before, after = dict(_flat(_described(old.manifest))), dict(_flat(_described(new.manifest)))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, (before.get(name), after.get(name))


def _described(manifest: Manifest) -> dict[str, Any]:
    plan = manifest.plan
    return {
        "made_by": manifest.made_by,
        "source": to_json(manifest.source),
        "toolchain": to_json(manifest.toolchain),
        "identities": manifest.flydsl.identities,
        "plan": {name: value for name, value in to_json(plan).items() if name not in ("shapes", "tables")},
        "tables": {table.file: table.sha256 for table in plan.tables},
        "uncovered": {shape.shape.label: to_json(shape.uncovered) for shape in plan.shapes},
        "other": {shape.shape.label: to_json(shape.other) for shape in plan.shapes},
        "missing": [kernel.label for kernel in manifest.missing],
        **manifest.extra,
    }


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{name}: " if prefix else f"{name}.")
        else:
            yield prefix + name, inner
