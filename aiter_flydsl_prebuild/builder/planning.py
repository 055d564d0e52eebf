"""The plan of a source: what its tables reach and its heuristics add, as jobs. Builds, proofs and ``plan`` share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..sources.base import Job, LeftOut, Source
from .reach import UNKNOWN, Range, Reach, ShapeReach, distinct, plan_reach
from .tables import Tables, read_tables


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
    reach, left_out = source.refine(reach, arch)
    beside, left_out_beside = source.beside_tables(arch)
    left_out += (*unknown_kernels(reach), *left_out_beside)
    return Plan(source, tables, reach, tuple(source.jobs(reach, arch)), tuple(beside), left_out)


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
