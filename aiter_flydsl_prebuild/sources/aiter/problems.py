"""What AITER's ops compute, in numpy: operands, layouts, tolerance, and which workgroups make a tile.

The contracts are those that AITER's wrappers document (aiter/ops/gemm_op_a8w8.py, aiter/ops/flydsl/
batched_gemm_a8w8_gfx950.py); nothing of its kernels is used here. Each kernel is called through the wrapper that
:class:`.ops.Op` calls when it compiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...dispatch import rules
from ...execution import gemm
from ...execution.faults import UnsupportedKernel
from ...execution.floats import E4M3, Array
from ...execution.problem import Id, Operand, Problem, output
from ...model.job import Job
from .ops import DTYPES, MxscaleBmm, Op, PerToken

ARCH = "gfx950"
"""The only arch whose instructions are modelled."""

_TILE = re.compile(r"_t?(\d+)x(\d+)x(\d+)_", re.ASCII)
_GROUP = re.compile(r"_xcd(\d+)", re.ASCII)
_FP8 = "float8_e4m3fn"
_XCDS = 8


def problems(op: Op, job: Job, dtypes: Sequence[str], seed: int) -> Iterator[Problem]:
    """The problems of one kernel; none for an op without a reference.

    :raises UnsupportedKernel: the arch is not modelled, or the name has no tile.
    """
    if job.arch != ARCH:
        raise UnsupportedKernel(f"instructions of {job.arch} are not modelled, only those of {ARCH}")
    if isinstance(op, PerToken):
        for dtype in op.dtypes(job.name, dtypes):
            yield from _per_token(op, job, dtype, seed)
    elif isinstance(op, MxscaleBmm):
        yield from _mxscale(op, job, seed)


def traits(job: Job) -> frozenset[str]:
    """The tile, the op, the scale blocks, and each number of the rest of the name by its place."""
    found = {job.shape.op, str(job.shape.w_scale_block)}
    for place, part in enumerate(job.name.split("_")):
        numbers = part.split("x")
        # In the names of the per-token op, flags are numbers: asynchronous copies, waves, XCD groups, LDS stages.
        flags = job.shape.op == rules.BPRESHUFFLE and place > 2 and all(number.isdigit() for number in numbers)
        found |= {f"{place}.{i}={number}" for i, number in enumerate(numbers)} if flags else {part}
    return frozenset(found)


def _tile(name: str) -> tuple[int, int]:
    match = _TILE.search(name)
    if match is None:
        raise UnsupportedKernel(f"{name}: the name has no tile")
    return int(match[1]), int(match[2])


def _rows(job: Job, tile_m: int) -> list[int]:
    """A row alone, tiles of which the last is ragged, and a tile: those that the kernel was built for.

    The tiles are two; where an XCD takes its tiles in groups along M, a whole group and one more.
    """
    single = any(first <= 1 for first, _ in job.tokens)
    several = any(last > 1 for _, last in job.tokens)
    group = int(match[1]) if (match := _GROUP.search(job.name)) else 1
    return [1] * single + [gemm.ragged(tile_m) + tile_m * (group - 1), tile_m] * several


def _per_token(op: PerToken, job: Job, dtype: str, seed: int) -> Iterator[Problem]:
    """y = x @ w.T, each row times its fp32 scale and each column times its own."""
    (tile_m, tile_n), n, k = _tile(job.name), job.shape.n, job.shape.k
    kind = DTYPES[dtype]
    for number, m in enumerate(_rows(job, tile_m)):
        nan = m == tile_m
        random = np.random.default_rng([seed, m, n, k, nan])
        x = gemm.fp8(random, m, k, nan_at=(m - 1, k - 1) if nan else None)
        w = gemm.fp8(random, n, k, nan_at=(n - 1, 0) if nan else None)
        x_scale, w_scale = (_factors(random, count) for count in (m, n))

        def call(tensors: Mapping[str, Any]) -> None:
            op.run(job.name, *(tensors[name] for name in ("x", "w", "x_scale", "w_scale", "y")))

        yield Problem(
            label=f"M={m}, {dtype}{', with NaN' if nan else ''}",
            operands={
                "y": output(m, n, kind),
                "x": Operand(x, _FP8),
                "w": Operand(gemm.shuffled(w), _FP8),
                "x_scale": Operand(x_scale.reshape(m, 1), "float32"),
                "w_scale": Operand(w_scale.reshape(1, n), "float32"),
            },
            call=call,
            result="y",
            tile=(tile_m, tile_n),
            expected=gemm.Product(_times(x, x_scale), _times(w, w_scale), k, kind, roundings=2),
            end=number % 2 == 0,
        )


def _factors(random: np.random.Generator, count: int) -> Array:
    """Scales that keep float16 results finite."""
    return np.exp2(random.uniform(-9, -4, count)).astype(np.float32)


def _times(values: Array, factors: Array) -> Callable[[slice], Array]:
    def rows(which: slice) -> Array:
        scaled: Array = E4M3[values[which]] * factors[which, None].astype(np.float64)
        return scaled

    return rows


def _mxscale(op: MxscaleBmm, job: Job, seed: int) -> Iterator[Problem]:
    """y = x @ w.T with E8M0 block scales; x's are column-major for more than one row where blocks are 128 wide."""
    (tile_m, tile_n), shape = _tile(job.name), job.shape
    height, width = (int(edge) for edge in str(shape.w_scale_block).split("x"))
    n, k = shape.n, shape.k
    splits = int(match[1]) if (match := re.search(r"_sk(\d+)", job.name)) else 1
    for number, m in enumerate(_rows(job, tile_m)):
        nan = m == tile_m
        random = np.random.default_rng([seed, m, n, k, nan])
        x = gemm.fp8(random, m, k, nan_at=(m - 1, k - 1) if nan else None)
        # A last half step of K multiplies a neighbouring row's bytes with zeros: they must be finite.
        w = gemm.fp8(random, n, k, nan_at=(n - 1, 0) if nan and k % 128 == 0 else None)
        x_scale = gemm.block_scales(random, m, k // width)
        w_scale = gemm.block_scales(random, -(-n // height), k // width)
        column_major = width == op.scale_column_major and m > 1
        operands = {
            "y": output(m, n, "bfloat16"),
            "x": Operand(x, _FP8),
            "w": Operand(gemm.shuffled(w), _FP8),
            "x_scale": Operand(_stored(x_scale, column_major), "float8_e8m0fnu"),
            "w_scale": Operand(w_scale, "float8_e8m0fnu"),
        }
        counters = np.zeros(-(-m // tile_m) * (n // tile_n), np.int32)
        if splits > 1:
            operands["counters"] = Operand(counters, "int32", writable=True)

        def call(tensors: Mapping[str, Any]) -> None:
            x, w, x_scale, w_scale, y = (tensors[name] for name in ("x", "w", "x_scale", "w_scale", "y"))
            op.run(job.name, shape, x, w, x_scale, w_scale, y, tensors.get("counters"))

        yield Problem(
            label=f"M={m}{', with NaN' if nan else ''}",
            operands=operands,
            call=call,
            result="y",
            tile=(tile_m, tile_n),
            expected=gemm.Product(
                gemm.scaled_rows(x, x_scale, width),
                gemm.scaled_blocks(w, w_scale, height, width),
                k,
                "bfloat16",
                roundings=splits,
            ),
            groups=_splits(splits) if splits > 1 else None,
            # The last split to arrive re-arms the counter of its tile.
            after={"counters": counters.copy()} if splits > 1 else {},
            end=number % 2 == 0,
        )


def _stored(x_scale: Array, column_major: bool) -> Array:
    """The bytes of x's scales in the order of memory, under their shape [M, K / width]."""
    if not column_major:
        return x_scale
    return np.ascontiguousarray(x_scale.T).reshape(x_scale.shape)


def _splits(splits: int) -> Callable[[Id], Sequence[Sequence[Id]]]:
    """The workgroups of each tile where K is split: bmm_a8w8_mxscale_gfx950.py, kernel_bmm, ``splits > 1``."""

    def groups(grid: Id) -> list[list[Id]]:
        tiles = grid[0] // splits
        return [
            [((tile // _XCDS * splits + split) * _XCDS + tile % _XCDS, 0, 0) for split in range(splits)]
            for tile in range(tiles)
        ]

    return groups
