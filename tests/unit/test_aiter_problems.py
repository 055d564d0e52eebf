"""The problems that AITER's kernels are executed on: rows, workgroups of a tile, layouts. No AITER is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from aiter_flydsl_prebuild.execution.faults import UnsupportedKernel  # noqa: E402
from aiter_flydsl_prebuild.sources.aiter import problems  # noqa: E402
from aiter_flydsl_prebuild.sources.aiter.ops import MxscaleBmm  # noqa: E402

BMM = "flydsl_bmm_mxfp8_mfma_t16x32x128_w1x1_nb4_sk{}"


def job(name: str, *tokens: tuple[int, int], block: str = "128x128") -> Any:
    shape = SimpleNamespace(n=64, k=512, w_scale_block=block, op="mxscale_bmm")
    return SimpleNamespace(name=name, tokens=tokens, arch="gfx950", shape=shape)


@pytest.mark.parametrize(
    ("name", "tokens", "rows"),
    [
        ("a_t16x32x128_w1x1", ((1, 1),), [1]),
        ("a_t16x32x128_w1x1", ((1, 1), (8, 16)), [1, 21, 16]),
        ("a_t16x32x128_w1x1_xcd", ((2, 9),), [21, 16]),
        ("a_t16x32x128_w1x1_xcd4_sps", ((2, 9),), [69, 16]),
    ],
)
def test_rows_cover_a_ragged_tile_and_a_whole_group(name: str, tokens: Any, rows: list[int]) -> None:
    assert problems._rows(job(name, *tokens), 16) == rows


def test_the_splits_of_a_tile_lie_on_one_xcd() -> None:
    groups = problems._splits(3)((48, 1, 1))
    assert len(groups) == 16
    assert sorted(one for group in groups for one in group) == [(x, 0, 0) for x in range(48)]
    assert all(len({x % 8 for x, _, _ in group}) == 1 for group in groups)


def operands(block: str, m: int) -> Any:
    op: Any = object.__new__(MxscaleBmm)
    found = {
        p.operands["y"].array.shape[0]: p for p in problems.problems(op, job(BMM.format(1), (1, 9), block=block), (), 0)
    }
    return found[m]


def test_scales_of_several_rows_are_column_major_where_blocks_are_128_wide() -> None:
    """The reference reads [M, K / width]; memory has the columns one after the other, but for a single row."""
    for block, column_major in (("128x128", True), ("32x32", False)):
        problem = operands(block, 21)
        stored = problem.operands["x_scale"].array
        width = int(block.partition("x")[2])
        rows = problem.expected.x(slice(0, 21))
        x = problem.operands["x"].array
        read = stored.reshape(512 // width, 21).T if column_major else stored
        factors = np.exp2(np.repeat(read, width, axis=1).astype(float) - 127)
        from aiter_flydsl_prebuild.execution.floats import E4M3

        assert np.array_equal(rows, E4M3[x] * factors)
    assert operands("128x128", 1).operands["x_scale"].array.shape == (1, 4)


def test_operands_hold_the_extreme_values_and_nan() -> None:
    ragged, whole = operands("32x32", 21), operands("32x32", 16)
    for code in (0x00, 0x80, 0x01, 0x81, 0x07, 0x7E, 0xFE):  # zeros, subnormals, the largest finite values
        assert (ragged.operands["x"].array == code).any()
    assert not (ragged.operands["x"].array == 0x7F).any()
    assert (whole.operands["x"].array == 0x7F).sum() == 1
    assert np.isnan(whole.expected(slice(0, 16), slice(0, 64)).exact).any()


def test_what_is_not_modelled() -> None:
    other = job(BMM.format(1), (1, 9))
    other.arch = "gfx942"
    op: Any = object.__new__(MxscaleBmm)
    with pytest.raises(UnsupportedKernel, match="gfx942"):
        next(problems.problems(op, other, (), 0))
