from __future__ import annotations

from aiter_flydsl_prebuild.model.tokens import count, merge_ranges, spelled, within, without


def test_ranges_are_joined_where_they_touch() -> None:
    assert merge_ranges([(5, 8), (1, 2), (3, 4), (7, 9), (11, 11)]) == ((1, 9), (11, 11))


def test_what_is_taken_is_cut_out() -> None:
    assert without([(1, 10)], [(3, 4), (6, 6), (9, 12)]) == ((1, 2), (5, 5), (7, 8))
    assert without([(1, 2), (5, 9)], [(9, 9), (1, 5)]) == ((6, 8),)
    assert without([(1, 4)], []) == ((1, 4),)
    assert without([(2, 3)], [(1, 9)]) == ()


def test_what_lies_within_a_range() -> None:
    assert within([(1, 4), (6, 9), (20, 30)], (3, 8)) == ((3, 4), (6, 8))


def test_ranges_are_counted_and_spelled() -> None:
    assert count([(1, 4), (9, 9)]) == 5
    assert spelled([(1, 4), (9, 9)]) == "1..4, 9"
