"""The plan of a source: what its tables reach and its heuristics add, as jobs. Builds, proofs and ``plan`` share it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..dispatch.reach import UNKNOWN, Reach, ShapeReach, distinct, plan_reach
from ..dispatch.tables import Tables, read_tables
from ..errors import InputError
from ..model.job import Job
from ..model.shape import Shape
from ..model.tokens import Range, Ranges, without
from ..packs.manifest import LeftOut
from .base import Source


@dataclass(frozen=True)
class Plan:
    """What a build will compile, and what it cannot. ``beside`` are the jobs that no table names."""

    source: Source
    tables: Tables
    reach: Reach
    reached: tuple[Job, ...]
    beside: tuple[Job, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Every compile, each distinct kernel once."""
        return self.reached + self.beside


def plan_source(source: Source, *, arch: str, cu_num: Sequence[int], tokens: Range, rule: str | None = None) -> Plan:
    """Read a source's tables and resolve every token count, by its own rule unless another is named.

    :raises InputError: a table is wrong, or the filters leave nothing of it.
    """
    tables = read_tables(source.tables())
    reach = plan_reach(tables, gfx=[arch], cu_num=cu_num, tokens=tokens, rule=rule or source.rule())
    untuned = tuple(ShapeReach(shape, (), (), (reach.tokens,)) for shape in source.untuned_shapes(arch))
    reach, left_out = source.refine(replace(reach, shapes=reach.shapes + untuned), arch)
    beside, left_out_beside = source.beside_tables(arch)
    left_out = (*(one for one in left_out if one.kernels), *unknown_kernels(reach), *left_out_beside)
    return Plan(source, tables, reach, tuple(source.jobs(reach, arch)), tuple(beside), left_out)


@dataclass(frozen=True)
class Layer:
    """A linear layer: its weight [n, k], and the block of it that shares a scale, None for a scale per channel."""

    n: int
    k: int
    block: str | None


def parse_layer(text: str) -> Layer:
    """``5120,1536,32x32``, or without the block.

    :raises InputError: it is of another form.
    """
    match = re.fullmatch(r"([1-9]\d{0,8}),([1-9]\d{0,8})(?:,([1-9]\d*x[1-9]\d*))?", text.strip(), re.ASCII)
    if match is None:
        raise InputError(f"--shape {text}: write N,K or N,K,BLOCK, as in 7168,2048 or 7168,2048,32x32")
    return Layer(int(match[1]), int(match[2]), match[3])


@dataclass(frozen=True)
class LayerPlan:
    """What layers get: ``reach`` of their shapes alone, and by shape the token counts that a heuristic decides."""

    reach: Reach
    heuristic: dict[Shape, Ranges]
    left_out: tuple[LeftOut, ...]


def plan_layers(
    source: Source,
    layers: Sequence[Layer],
    tables: Tables,
    *,
    arch: str,
    cu_num: Sequence[int],
    tokens: Range,
    rule: str,
) -> LayerPlan:
    """What each layer gets for every token count, whether or not a table has it.

    Where no ``cu_num`` is asked for, on the GPUs that the tables have rows of the same op for; 0 stands for any where
    they have none.

    :raises InputError: the source has no kernels for such a layer.
    """
    shapes: dict[Shape, None] = {}
    for layer in layers:
        for shape in source.layer(layer.n, layer.k, layer.block, arch):
            tuned = {row.cu_num for row in tables.rows if (row.op, row.gfx) == (shape.op, arch)}
            shapes |= {shape._replace(cu_num=units): None for units in cu_num or sorted(tuned) or [0]}
    rows = tuple(row for row in tables.rows if row.shape in shapes)
    reach = plan_reach(Tables(tables.files, rows), gfx=[], cu_num=[], tokens=tokens, rule=rule)
    found = {entry.shape: entry for entry in reach.shapes}
    every = [found.get(shape) or ShapeReach(shape, (), (), (reach.tokens,)) for shape in shapes]
    refined, left_out = source.refine(replace(reach, shapes=tuple(every)), arch)
    before = {entry.shape: entry.uncovered for entry in every}
    heuristic = {entry.shape: without(before[entry.shape], entry.uncovered) for entry in refined.shapes}
    return LayerPlan(refined, heuristic, (*left_out, *unknown_kernels(refined)))


def unknown_kernels(reach: Reach) -> tuple[LeftOut, ...]:
    """The kernels of a reach whose names nobody here knows, op by op: what a server may still compile."""
    found: dict[str, dict[str, list[ShapeReach]]] = {}
    for name, entries in reach.skipped(UNKNOWN).items():
        for entry in entries:
            found.setdefault(entry.shape.op, {}).setdefault(name, []).append(entry)
    return tuple(
        LeftOut(
            op,
            len(distinct((entry.shape, name) for name, entries in names.items() for entry in entries)),
            len({entry.shape for entries in names.values() for entry in entries}),
            "no kernel family known here has such names",
            tuple(names),
        )
        for op, names in sorted(found.items())
    )
