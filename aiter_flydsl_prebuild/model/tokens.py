"""Ranges of token counts."""

from __future__ import annotations

from collections.abc import Sequence

Range = tuple[int, int]
"""Token counts from the first number to the second, both included."""

Ranges = tuple[Range, ...]
"""Ranges that are sorted and disjoint, and do not touch."""


def merge_ranges(ranges: Sequence[Range]) -> Ranges:
    """Any ranges, sorted, and joined where they touch."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def without(ranges: Sequence[Range], taken: Sequence[Range]) -> Ranges:
    """The token counts of ranges that are in none of ``taken``."""
    left = []
    others = merge_ranges(taken)
    for first, last in merge_ranges(ranges):
        for low, high in others:
            if high < first or low > last:
                continue
            if low > first:
                left.append((first, low - 1))
            first = high + 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def within(ranges: Sequence[Range], wanted: Range) -> Ranges:
    """The token counts of ranges that are in ``wanted``."""
    first, last = wanted
    return merge_ranges([(max(a, first), min(b, last)) for a, b in ranges if a <= last and b >= first])


def count(ranges: Sequence[Range]) -> int:
    """How many token counts disjoint ranges have."""
    return sum(last - first + 1 for first, last in ranges)


def spelled(ranges: Sequence[Sequence[int]], separator: str = ", ") -> str:
    """Ranges for people: ``1..8, 16``."""
    return separator.join(f"{first}..{last}" if last > first else str(first) for first, last in ranges)
