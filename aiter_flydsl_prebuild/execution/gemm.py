"""Operands and references that GEMMs share: values, block scales, the shuffled weight, and the tolerance.

The reference is a product in float64, of which a result may be off by half a unit of its own last place and by what
summing in float32 in any order costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .floats import E4M3, Array, e8m0
from .problem import Expected

NAN_BYTE = 0x7F
"""NaN in E4M3."""

FINITE = np.flatnonzero(np.isfinite(E4M3)).astype(np.uint8)
"""Every finite E4M3 byte: both zeros, the subnormals and the largest values among them."""

_LAST_PLACE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half a unit in the last place, relative to the value, at most."""
_SMALLEST = {"bfloat16": 0.0, "float16": 2.0**-25}
"""Half a unit in the last place of subnormals."""
_FLOAT32 = 2.0**-24
_STEP = 128
"""K per matrix instruction: the fewest sums that a kernel rounds to float32."""


def fp8(random: np.random.Generator, rows: int, k: int, *, nan_at: tuple[int, int] | None = None) -> Array:
    """Random E4M3 bytes [rows, k]; the first values of every row are the extreme ones, in turn."""
    values: Array = FINITE[random.integers(0, len(FINITE), (rows, k), dtype=np.uint8)]
    extremes = np.array([0x00, 0x80, 0x01, 0x81, 0x07, 0x08, 0x7E, 0xFE], np.uint8)
    values[:, : len(extremes)] = np.stack([np.roll(extremes, r) for r in range(rows)]) if rows < 512 else extremes
    if nan_at is not None:
        values[nan_at] = NAN_BYTE
    return values


def block_scales(random: np.random.Generator, rows: int, columns: int) -> Array:
    """Random E8M0 bytes, powers of two from 2**-7 to 2**3."""
    return random.integers(120, 131, (rows, columns), dtype=np.uint8)


def shuffled(w: Array) -> Array:
    """A weight [N, K] in the layout (16, 16): of 16 rows, all first 16 bytes, then all second 16 bytes, and so on.

    AITER, aiter/ops/shuffle.py, shuffle_weight.
    """
    n, k = w.shape
    pieces = w.reshape(n // 16, 16, k // 16, 16)
    return np.ascontiguousarray(pieces.swapaxes(1, 2)).reshape(n, k)


@dataclass(frozen=True)
class Product:
    """y = x @ w.T, with ``x(rows)`` and ``w(columns)`` the scaled values, in float64; ``dtype`` is y's.

    ``roundings`` are float32 roundings beside those of the sums.
    """

    x: Callable[[slice], Array]
    w: Callable[[slice], Array]
    k: int
    dtype: str
    roundings: int = 0

    def __call__(self, rows: slice, columns: slice) -> Expected:
        x, w = self.x(rows), self.w(columns)
        with np.errstate(all="ignore"):
            exact = x @ w.T
            terms = np.abs(x) @ np.abs(w).T
            sums = (-(-self.k // _STEP) + 1 + self.roundings) * _FLOAT32
            allowed = np.abs(exact) * _LAST_PLACE[self.dtype] + terms * sums + _SMALLEST[self.dtype]
        # Where everything is zero, so must be the result.
        return Expected(exact, np.maximum(allowed, np.finfo(np.float64).tiny))


def scaled_rows(values: Array, scales: Array, block: int) -> Callable[[slice], Array]:
    """Rows of E4M3 bytes [rows, K], each ``block`` neighbours along K scaled by one E8M0 byte of [rows, K / block]."""

    def rows(which: slice) -> Array:
        scaled: Array = E4M3[values[which]] * np.repeat(e8m0(scales[which]), block, axis=1)
        return scaled

    return rows


def scaled_blocks(values: Array, scales: Array, height: int, block: int) -> Callable[[slice], Array]:
    """Rows of E4M3 bytes [N, K], each ``height`` x ``block`` of them scaled by one E8M0 byte."""

    def rows(which: slice) -> Array:
        numbers = np.arange(*which.indices(values.shape[0]))
        scaled: Array = E4M3[values[which]] * np.repeat(e8m0(scales[numbers // height]), block, axis=1)
        return scaled

    return rows


def ragged(tile_m: int) -> int:
    """A number of rows of two tiles, of which the second has few."""
    return tile_m + 5 if tile_m > 5 else tile_m + 1
