"""What a pack says of itself: its manifest as typed, immutable objects (docs/pack-format.md).

:mod:`.reader` reads and checks one; whoever has a :class:`Manifest` may rely on all of it. Writing it gives
back what was read: keys that this version does not know stay in ``extra`` of their object, so that a pack of a newer
version survives an older ``merge``.

Named tuples, since a server's first start reads this, and importing dataclasses alone takes longer. In all of them a
field without a default is always written, and one with a default only where it has another value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..model.shape import Shape, kernel_label
from ..model.tokens import Range

FORMAT: Final = 1

_NOTHING: Final[Mapping[str, Any]] = {}


class FlyDSL(NamedTuple):
    """The FlyDSL that compiled. ``identities`` maps each CPython ABI to the wheels known to be this same compiler."""

    version: str
    generation: str
    identities: dict[str, list[str]]
    extra: Mapping[str, Any] = _NOTHING


SourceFile = tuple[str, str]
"""A source file that kernels are made from: its path below the import system's folders, and the sha256 of its bytes."""


class PackageFacts(NamedTuple):
    """A package that has code of the kernels; ``digest`` is over those of its files that any of them is made from."""

    version: str
    digest: str
    distribution: str | None = None
    commit: str | None = None
    extra: Mapping[str, Any] = _NOTHING


class SourceFacts(NamedTuple):
    """The source of the kernels: ``digest`` is of its code and identifies it, the rest describes it.

    ``packages`` are those that have code of the kernels, by their top-level names.
    """

    name: str
    digest: str
    version: str | None = None
    license: str | None = None
    commit: str | None = None
    packages: Mapping[str, PackageFacts] = _NOTHING
    extra: Mapping[str, Any] = _NOTHING

    def package(self, name: str) -> PackageFacts:
        """What is known of a package."""
        return self.packages.get(name) or PackageFacts("unknown", "")


class ToolchainFacts(NamedTuple):
    """What was beside FlyDSL: the linker's version, and the digest of the device bitcode (None: there was none)."""

    linker: str
    bitcode: str | None
    extra: Mapping[str, Any] = _NOTHING


class ShardFacts(NamedTuple):
    """Which part of a build this is: ``index`` (from 1) ``of`` so many; ``assignment`` says how kernels are spread."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    of: int
    assignment: str
    extra: Mapping[str, Any] = _NOTHING


class TableFacts(NamedTuple):
    """A tuned table that was read: its file name, and the SHA-256 of its bytes."""

    file: str
    sha256: str
    extra: Mapping[str, Any] = _NOTHING


class OtherFacts(NamedTuple):
    """Token counts of a shape that another library's kernel wins."""

    libtype: str
    tokens: tuple[Range, ...]
    extra: Mapping[str, Any] = _NOTHING


class SkippedFacts(NamedTuple):
    """A kernel name of the tables for which nothing is built, why, and the token counts that lead to it."""

    name: str
    reason: str
    tokens: tuple[Range, ...]
    extra: Mapping[str, Any] = _NOTHING


class ShapeFacts(NamedTuple):
    """A shape that was planned, who else wins token counts of it, and which of them no row serves (``uncovered``)."""

    shape: Shape
    other: tuple[OtherFacts, ...]
    uncovered: tuple[Range, ...]
    skipped: tuple[SkippedFacts, ...]
    extra: Mapping[str, Any] = _NOTHING


class LeftOut(NamedTuple):
    """Kernels that the tables reach and that are not built: ``kernels`` of ``op``, for ``shapes`` shapes, and why.

    ``names`` are theirs, where the reason lies in them.
    """

    op: str
    kernels: int
    shapes: int
    reason: str
    names: tuple[str, ...] = ()
    extra: Mapping[str, Any] = _NOTHING

    def __str__(self) -> str:
        names = f": {', '.join(self.names)}" if self.names else ""
        return f"{self.op}: {self.kernels} kernels of {self.shapes} shapes: {self.reason}{names}"


class PlanFacts(NamedTuple):
    """What was asked for, and what the tables have for it."""

    tokens: Range
    rule: str
    cu_num: tuple[int, ...]
    tables: tuple[TableFacts, ...]
    shapes: tuple[ShapeFacts, ...]
    undecodable: tuple[str, ...]
    unknown: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    left_out: tuple[LeftOut, ...]
    extra: Mapping[str, Any] = _NOTHING


class CodeFacts(NamedTuple):
    """One device function of a code object. Registers per lane (VGPR, AGPR) or wave (SGPR); LDS and scratch in bytes,
    per workgroup and per lane; spills in registers; ``code_object_bytes`` of the whole ELF image it is in."""

    symbol: str
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int
    workgroup: int
    wavefront: int
    code_object_bytes: int
    code_object_sha256: str
    extra: Mapping[str, Any] = _NOTHING

    @property
    def spills(self) -> int:
        """Registers of both kinds that it spills."""
        return self.vgpr_spills + self.sgpr_spills


class PackedEntry(NamedTuple):
    """One cache entry of a kernel.

    ``artifact_key`` names it under FlyDSL 0.5; ``paths`` maps an ABI to its path below the cache root for 0.3.1 to
    0.4.2. ``payload`` indexes the manifest's payloads; ``fields`` is the rest of the artifact's state.
    """

    launcher: str
    payload: int
    fields: dict[str, Any]
    code: tuple[CodeFacts, ...]
    artifact_key: str | None = None
    paths: Mapping[str, str] = _NOTHING
    extra: Mapping[str, Any] = _NOTHING

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """What no entry of other content may be called, each name with the ABI that it is for."""
        return (("", f"{self.launcher}/{self.artifact_key}"),) if self.artifact_key else tuple(self.paths.items())


class PackedKernel(NamedTuple):
    """One kernel: what it computes, the tokens it serves, the device bitcode it linked or None, and its entries.

    ``cu_num`` are the numbers of compute units whose rows lead to it, 0 for the heuristic; None where no table does.
    ``files`` is the number of its set of source files; None in a pack that does not say.
    """

    source: str
    name: str
    op: str
    n: int | None
    k: int | None
    w_scale_block: str | None
    q_dtype_w: str | None
    tokens: tuple[Range, ...]
    bitcode: str | None
    entries: tuple[PackedEntry, ...]
    cu_num: tuple[int, ...] | None = None
    files: int | None = None
    extra: Mapping[str, Any] = _NOTHING

    @property
    def layer(self) -> tuple[Any, ...]:
        """The values of :data:`model.shape.LAYER`."""
        return self.op, self.n, self.k, self.w_scale_block, self.q_dtype_w

    @property
    def label(self) -> str:
        """See :func:`model.shape.kernel_label`."""
        return kernel_label(self.name, *self.layer)

    @property
    def code(self) -> list[CodeFacts]:
        """The device functions of all its entries."""
        return [code for entry in self.entries for code in entry.code]


class MissingKernel(NamedTuple):
    """A kernel that is planned and not in the pack."""

    source: str
    name: str
    op: str
    n: int | None
    k: int | None
    w_scale_block: str | None
    q_dtype_w: str | None
    tokens: tuple[Range, ...]
    reason: str
    cu_num: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = _NOTHING

    @property
    def layer(self) -> tuple[Any, ...]:
        """The values of :data:`model.shape.LAYER`."""
        return self.op, self.n, self.k, self.w_scale_block, self.q_dtype_w

    @property
    def label(self) -> str:
        """See :func:`model.shape.kernel_label`."""
        return kernel_label(self.name, *self.layer)


class PayloadPlace(NamedTuple):
    """Where a payload is in the unpacked stream."""

    offset: int
    size: int
    sha256: str
    extra: Mapping[str, Any] = _NOTHING


class About(NamedTuple):
    """What a manifest says of the pack as a whole, beside arch and FlyDSL; see :class:`Manifest`."""

    source: SourceFacts
    toolchain: ToolchainFacts
    plan: PlanFacts
    shard: ShardFacts | None = None
    seconds: float | None = None
    extra: Mapping[str, Any] = _NOTHING


class Manifest(NamedTuple):
    """All of it.

    ``seconds`` is what compiling took, in the packs of one kernel that the store keeps. ``files`` are the source files
    of all kernels, ``file_sets`` the sets of them, as indices, that kernels are made from.
    """

    format: int
    made_by: str
    arch: str
    flydsl: FlyDSL
    source: SourceFacts
    toolchain: ToolchainFacts
    plan: PlanFacts
    missing: tuple[MissingKernel, ...]
    kernels: tuple[PackedKernel, ...]
    payloads: tuple[PayloadPlace, ...]
    files: tuple[SourceFile, ...] = ()
    file_sets: tuple[tuple[int, ...], ...] = ()
    shard: ShardFacts | None = None
    seconds: float | None = None
    extra: Mapping[str, Any] = _NOTHING

    @property
    def about(self) -> About:
        """What it says of the pack as a whole."""
        return About(self.source, self.toolchain, self.plan, self.shard, self.seconds, self.extra)

    def files_of(self, kernel: PackedKernel) -> tuple[SourceFile, ...]:
        """The source files that a kernel is made from; none where the pack does not say."""
        return () if kernel.files is None else tuple(self.files[index] for index in self.file_sets[kernel.files])

    def users(self) -> list[list[PackedKernel]]:
        """For each payload, the kernels that have it. Several may: what differs between them is not in the code."""
        found: list[list[PackedKernel]] = [[] for _ in self.payloads]
        for kernel in self.kernels:
            for index in sorted({entry.payload for entry in kernel.entries}):
                found[index].append(kernel)
        return found


def to_json(value: Any) -> Any:
    """One of the objects above, or what is in them, as JSON holds it."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [to_json(item) for item in value]
        defaults = value._field_defaults  # type: ignore[attr-defined]
        named = {
            name: to_json(item)
            for name, item in zip(fields, value, strict=True)
            if name != "extra" and (name not in defaults or item != defaults[name])
        }
        return {**named, **getattr(value, "extra", _NOTHING)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return value
