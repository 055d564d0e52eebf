"""What is different between two wheels of kernels: kernel by kernel, and in what describes them.

Kernels are the same one if they compute the same: operand contract, N, K, scale blocks, weight type and name. Reads
manifests alone; needs neither FlyDSL nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..pack import Pack, PackedKernel
from .tables import LAYER

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
    return {(pack.arch, pack.version, _source(pack)): pack for pack in packs}


def _source(pack: Pack) -> str:
    return str(pack.manifest["source"].get("name", ""))


def _called(arch: str, flydsl: str, source: str) -> str:
    return f"{source} kernels for {arch} and flydsl {flydsl}"


def _diff_packs(old: Pack, new: Pack) -> PackDifference:
    before, after = _by_layer(old), _by_layer(new)
    added = [_label(after[key]) for key in after if key not in before]
    dropped = [_label(before[key]) for key in before if key not in after]
    common = [key for key in before if key in after]
    changes = {key: dict(_changes(old, before[key], new, after[key])) for key in common}
    changed = [KernelChange(_label(after[key]), changes[key]) for key in common if changes[key]]
    about = dict(_about(old, new))
    return PackDifference(old.arch, old.version, about, added, dropped, changed, len(common) - len(changed))


def _by_layer(pack: Pack) -> dict[tuple[Any, ...], PackedKernel]:
    return {tuple(kernel.facts.get(name) for name in (*LAYER, "name")): kernel for kernel in pack.kernels}


def _label(kernel: PackedKernel) -> str:
    facts = kernel.facts
    scale = f", scales {facts['w_scale_block']}" if facts.get("w_scale_block") else ""
    return f"{kernel.name} (N={facts.get('n')}, K={facts.get('k')}{scale})"


def _changes(old: Pack, before: PackedKernel, new: Pack, after: PackedKernel) -> Iterator[tuple[str, tuple[Any, Any]]]:
    ours, theirs = list(_codes(before)), list(_codes(after))
    digests = [[code.get("code_object_sha256") for code in codes] for codes in (ours, theirs)]
    if digests[0] != digests[1]:
        yield "code", (digests[0], digests[1])
    for name in _FACTS:
        values = [sum(code.get(name, 0) for code in codes) for codes in (ours, theirs)]
        if values[0] != values[1]:
            yield name, (values[0], values[1])
    if digests[0] == digests[1] and _payloads(old, before) != _payloads(new, after):
        yield "host code", (None, None)
    if _keys(before) != _keys(after):
        yield "key", (None, None)
    if before.bitcode != after.bitcode:
        yield "bitcode", (before.bitcode, after.bitcode)
    if before.facts.get("tokens") != after.facts.get("tokens"):
        yield "tokens", (before.facts.get("tokens"), after.facts.get("tokens"))


def _codes(kernel: PackedKernel) -> Iterator[dict[str, Any]]:
    for entry in kernel.facts["entries"]:
        yield from entry.get("code", ())


def _payloads(pack: Pack, kernel: PackedKernel) -> list[Any]:
    payloads = pack.manifest["payloads"]
    return [(payloads[entry.payload]["sha256"], entry.fields) for entry in kernel.entries]


def _keys(kernel: PackedKernel) -> list[Any]:
    return [(entry.launcher, entry.artifact_key, sorted(entry.paths.items())) for entry in kernel.entries]


def _about(old: Pack, new: Pack) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What describes the packs as a whole, by dotted names; shapes by what no kernel or another library serves."""
    before, after = dict(_flat(_described(old))), dict(_flat(_described(new)))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, (before.get(name), after.get(name))


def _described(pack: Pack) -> dict[str, Any]:
    manifest = pack.manifest
    plan = manifest.get("plan", {})
    shapes = {_shape(shape): shape for shape in plan.get("shapes", ())}
    return {
        "made_by": manifest.get("made_by"),
        "source": manifest["source"],
        "toolchain": manifest.get("toolchain"),
        "identities": manifest["flydsl"]["identities"],
        "plan": {name: value for name, value in plan.items() if name not in ("shapes", "tables")},
        "tables": {table["file"]: table["sha256"] for table in plan.get("tables", ())},
        "uncovered": {name: shape.get("uncovered", []) for name, shape in shapes.items()},
        "other": {name: shape.get("other", []) for name, shape in shapes.items()},
        "missing": [f"{kernel['name']} (N={kernel.get('n')}, K={kernel.get('k')})" for kernel in pack.missing],
    }


def _shape(shape: dict[str, Any]) -> str:
    parts = [f"N={shape.get('n')}", f"K={shape.get('k')}"]
    parts += [f"{shape['w_scale_block']}"] if shape.get("w_scale_block") else []
    parts += [f"{shape['cu_num']} CUs"] if shape.get("cu_num") else []
    return ", ".join(parts)


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{name}: " if prefix else f"{name}.")
        else:
            yield prefix + name, inner
