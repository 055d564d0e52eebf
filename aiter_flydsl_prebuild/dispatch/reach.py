"""Reach: for every shape, which kernel the run-time dispatch picks for which token counts.

Exact for every token count, and computed without walking over them: each row's M is served to a few ranges of token
counts (:func:`rules.served_ranges`), and between the ends of all these ranges the winning row cannot change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ..errors import InputError
from ..model.shape import Shape
from ..model.tokens import Range, Ranges
from . import rules
from .tables import Row, Tables

OTHER_GFX: Final = "other gfx"
OTHER_CU_NUM: Final = "other cu_num"
OTHER_LIBTYPE: Final = "other libtype"
DUPLICATE: Final = "duplicate"
UNREACHABLE: Final = "unreachable"
SKIP_REASONS: Final = (OTHER_GFX, OTHER_CU_NUM, OTHER_LIBTYPE, DUPLICATE, UNREACHABLE)
"""Why a row gives no kernel: filtered away; of a library that is not FlyDSL (whether it wins token counts or not); an
exact repetition of an earlier row; a FlyDSL row that no token count in the range is looked up under."""


@dataclass(frozen=True, slots=True)
class KernelReach:
    """The token counts that one FlyDSL kernel serves."""

    name: str
    tokens: Ranges


@dataclass(frozen=True, slots=True)
class OtherReach:
    """The token counts that rows of another library win; nothing is compiled for them."""

    libtype: str
    tokens: Ranges


UNDECODABLE: Final = "undecodable"
UNKNOWN: Final = "unknown"
"""Why a FlyDSL kernel that wins token counts is not built: AITER's dispatch cannot decode its name and runs another
library, so that there is nothing to compile; or no grammar of :mod:`.rules` has its name."""


@dataclass(frozen=True, slots=True)
class SkippedReach:
    """The token counts of a FlyDSL kernel that is not built; ``reason`` is :data:`UNDECODABLE` or :data:`UNKNOWN`."""

    name: str
    tokens: Ranges
    reason: str


@dataclass(frozen=True, slots=True)
class ShapeReach:
    """Who serves one shape. Kernels and libraries are in the order of their first token count.

    ``kernels`` are those that are to be built, ``skipped`` those that the tables name beside them.
    """

    shape: Shape
    kernels: tuple[KernelReach, ...]
    other: tuple[OtherReach, ...]
    uncovered: Ranges
    skipped: tuple[SkippedReach, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """The reach of the selected rows over ``tokens`` (first and last token count).

    ``skipped_rows`` counts rows for each of :data:`SKIP_REASONS`.
    """

    tokens: Range
    rule: str
    shapes: tuple[ShapeReach, ...]
    skipped_rows: dict[str, int]

    @property
    def distinct_kernels(self) -> int:
        """How many kernels are to be built: those that differ in arch, name or layer."""
        return len(distinct((entry.shape, kernel.name) for entry in self.shapes for kernel in entry.kernels))

    def skipped(self, reason: str) -> dict[str, list[ShapeReach]]:
        """The names of kernels that are skipped for a reason, sorted, and the shapes that have them."""
        found: dict[str, list[ShapeReach]] = {}
        for entry in self.shapes:
            for one in entry.skipped:
                if one.reason == reason:
                    found.setdefault(one.name, []).append(entry)
        return dict(sorted(found.items()))


def distinct(kernels: Iterable[tuple[Shape, str]]) -> set[tuple[Any, ...]]:
    """What tells one kernel from another, of kernels given by shape and name: each once."""
    return {(shape.gfx, name, *shape.layer().values()) for shape, name in kernels}


def parse_tokens(text: str) -> Range:
    """A range of token counts: ``1..8192``, or ``8192`` for everything up to it. Raises InputError."""
    match = re.fullmatch(r"(?:([0-9]{1,18})\.\.)?([0-9]{1,18})", text.strip())
    if match is None:
        raise InputError(f"token range {text!r} is neither FIRST..LAST nor LAST; write for example 1..8192")
    first, last = match.groups()
    return _checked_tokens((int(first) if first else 1, int(last)))


def _checked_tokens(tokens: Range) -> Range:
    first, last = tokens
    if not 1 <= first <= last <= rules.MAX_TOKENS:
        raise InputError(
            f"token range {first}..{last} is not within 1..{rules.MAX_TOKENS} in ascending order; "
            "write for example 1..8192"
        )
    return first, last


def plan_reach(
    tables: Tables, *, gfx: Sequence[str], cu_num: Sequence[int], tokens: Range, rule: str = "newest"
) -> Reach:
    """The kernels that AITER's dispatch picks, shape by shape, for every token count from the first to the last.

    ``gfx`` and ``cu_num`` select rows exactly; an empty sequence selects all. ``rule`` is one of :data:`rules.RULES`.

    Raises InputError where one of the wanted values leaves nothing, and for a bad token range; ValueError for an
    unknown rule.
    """
    rules.check_rule(rule)
    first, last = _checked_tokens(tokens)
    selected = _select(tables.rows, gfx, cu_num)
    skipped = dict.fromkeys(SKIP_REASONS, 0)
    rows_of = _group(tables.rows, selected, frozenset(gfx), skipped)

    shapes = []
    for shape in sorted(rows_of, key=_shape_order):
        by_m = rows_of[shape]
        flydsl = sum(row.libtype == rules.FLYDSL for row in by_m.values())
        skipped[OTHER_LIBTYPE] += len(by_m) - flydsl
        if shape.op not in rules.OPS:
            continue
        reuse = rules.reuses_largest_row(shape.op, rule)
        winners = _winners(tuple(sorted(by_m)), rules.padding_n(shape.n), rule, reuse, first, last)
        reached = {m for _, _, m in winners if m is not None and by_m[m].libtype == rules.FLYDSL}
        skipped[UNREACHABLE] += flydsl - len(reached)
        shapes.append(_shape_reach(shape, by_m, winners))

    return Reach((first, last), rule, tuple(shapes), skipped)


def to_json(reach: Reach) -> dict[str, Any]:
    """The reach as one JSON object. Ranges are ``[first, last]``; a field that does not apply to an op is null."""

    def ranges(tokens: Ranges) -> list[list[int]]:
        return [[first, last] for first, last in tokens]

    return {
        "tokens": list(reach.tokens),
        "rule": reach.rule,
        "shapes": [
            {
                "op": one.shape.op,
                "gfx": one.shape.gfx,
                "cu_num": one.shape.cu_num,
                "n": one.shape.n,
                "k": one.shape.k,
                "w_scale_block": one.shape.w_scale_block,
                "q_dtype_w": one.shape.q_dtype_w,
                "kernels": [{"name": kernel.name, "tokens": ranges(kernel.tokens)} for kernel in one.kernels],
                "other": [{"libtype": other.libtype, "tokens": ranges(other.tokens)} for other in one.other],
                "uncovered": ranges(one.uncovered),
                "skipped": [{"name": s.name, "reason": s.reason, "tokens": ranges(s.tokens)} for s in one.skipped],
            }
            for one in reach.shapes
        ],
        "distinct_kernels": reach.distinct_kernels,
        "undecodable": list(reach.skipped(UNDECODABLE)),
        "unknown": list(reach.skipped(UNKNOWN)),
        "skipped_rows": dict(reach.skipped_rows),
    }


def _select(rows: Iterable[Row], gfx: Sequence[str], cu_num: Sequence[int]) -> frozenset[tuple[str, int]]:
    """The wanted (gfx, cu_num) pairs among those present. A wanted value that matches none is an error."""
    present = {(shape.gfx, shape.cu_num) for shape in {row.shape for row in rows}}
    selected = {pair for pair in present if (not gfx or pair[0] in gfx) and (not cu_num or pair[1] in cu_num)}
    there = ", ".join(f"{one_gfx} with cu_num {one_cu}" for one_gfx, one_cu in sorted(present))
    with_cu = f" with cu_num {' or '.join(map(str, cu_num))}" if cu_num else ""
    of_gfx = f" of {' or '.join(gfx)}" if gfx else ""
    if not selected and gfx:  # one fact, whichever of the two is looked at
        raise InputError(f"no row is for {' or '.join(gfx)}{with_cu}; the tables hold {there}")
    problems = [
        f"no row is for {one}{with_cu}; the tables hold {there}"
        for one in gfx
        if one not in {pair[0] for pair in selected}
    ]
    problems += [
        f"no row{of_gfx} is for cu_num {one}; the tables hold {there}"
        for one in cu_num
        if one not in {pair[1] for pair in selected}
    ]
    if problems:
        raise InputError(problems)
    return frozenset(selected)


def _group(
    rows: Iterable[Row], selected: frozenset[tuple[str, int]], gfx: frozenset[str], skipped: dict[str, int]
) -> dict[Shape, dict[int, Row]]:
    """The selected rows by shape and M, the first of equal ones; the others are counted in ``skipped``."""
    rows_of: dict[Shape, dict[int, Row]] = {}
    shape: Shape | None = None
    by_m: dict[int, Row] | None = None
    reason = ""
    for row in rows:
        if row.shape is not shape:  # rows of one shape mostly follow one another: hash it once
            shape = row.shape
            if (shape.gfx, shape.cu_num) in selected:
                by_m = rows_of.setdefault(shape, {})
            else:
                by_m = None
                reason = OTHER_GFX if gfx and shape.gfx not in gfx else OTHER_CU_NUM
        if by_m is None:
            skipped[reason] += 1
        elif by_m.setdefault(row.m, row) is not row:
            skipped[DUPLICATE] += 1
    return rows_of


def _shape_order(shape: Shape) -> tuple[int, str, int, int, int, str]:
    op = rules.OPS.index(shape.op) if shape.op in rules.OPS else len(rules.OPS)
    return op, shape.gfx, shape.cu_num, shape.n, shape.k, shape.w_scale_block or shape.q_dtype_w or ""


# Shapes of one model are mostly tuned at the same M values, and N matters only through rules.padding_n.
@lru_cache(maxsize=256)
def _winners(
    ms: tuple[int, ...], n: int, rule: str, reuse: bool, first: int, last: int
) -> tuple[tuple[int, int, int | None], ...]:
    """(first token, last token, M of the row that wins or None), over all of ``first``..``last``, ascending."""
    largest = ms[-1]
    starts = {first}
    for m in ms:
        for low, high in rules.served_ranges(m, n, rule):
            starts.add(low)
            starts.add(high + 1)
    edges = sorted(start for start in starts if first <= start <= last)
    tuned = frozenset(ms)
    pieces: list[tuple[int, int, int | None]] = []
    for start, end in zip(edges, [*edges[1:], last + 1], strict=True):
        winner = next((m for m in rules.m_candidates(start, n, rule) if m in tuned), None)
        if winner is None and reuse and start > largest:
            winner = largest
        if pieces and pieces[-1][2] == winner:  # fewer pieces for every shape that shares them
            pieces[-1] = (pieces[-1][0], end - 1, winner)
        else:
            pieces.append((start, end - 1, winner))
    return tuple(pieces)


def _shape_reach(shape: Shape, by_m: dict[int, Row], winners: Iterable[tuple[int, int, int | None]]) -> ShapeReach:
    kernels: dict[str, list[Range]] = {}
    other: dict[str, list[Range]] = {}
    uncovered: list[Range] = []
    for low, high, m in winners:
        if m is None:
            ranges = uncovered
        elif by_m[m].libtype == rules.FLYDSL:
            ranges = kernels.setdefault(by_m[m].name, [])
        else:
            ranges = other.setdefault(by_m[m].libtype, [])
        if ranges and ranges[-1][1] + 1 == low:  # two rows that name one kernel
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    reasons = {name: _why_skipped(name) for name in kernels}
    return ShapeReach(
        shape,
        tuple(KernelReach(name, tuple(ranges)) for name, ranges in kernels.items() if reasons[name] is None),
        tuple(OtherReach(libtype, tuple(ranges)) for libtype, ranges in other.items()),
        tuple(uncovered),
        tuple(SkippedReach(name, tuple(kernels[name]), reason) for name, reason in reasons.items() if reason),
    )


@lru_cache(maxsize=1 << 16)
def _why_skipped(name: str) -> str | None:
    """By the grammars alone; a source that has the dispatch at hand asks that (:meth:`sources.base.Source.refine`)."""
    try:
        return None if rules.parse_kernel_name(name).decodable else UNDECODABLE
    except ValueError:
        return UNKNOWN
