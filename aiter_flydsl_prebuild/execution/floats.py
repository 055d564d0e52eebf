"""The number formats of the operands, as tables and conversions of bits.

OCP "8-bit Floating Point Specification" (E4M3, E5M2) and "Microscaling Formats" (E8M0).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _small_float(exponent_bits: int, mantissa_bits: int, *, infinity: bool) -> Array:
    """The values of all 256 bytes of a float with a sign bit. E4M3 has NaN at the top of each sign, and no infinity."""
    bias = (1 << (exponent_bits - 1)) - 1
    codes = np.arange(256)
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (codes & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    values = np.where(exponent == 0, mantissa, 1 + mantissa) * np.exp2(np.maximum(exponent, 1).astype(float) - bias)
    if infinity:
        top = exponent == (1 << exponent_bits) - 1
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where(codes & 127 == 127, np.nan, values)
    return np.where(codes >= 128, -values, values)


E4M3 = _small_float(4, 3, infinity=False)
"""The value of each float8_e4m3fn byte."""

E5M2 = _small_float(5, 2, infinity=True)
"""The value of each float8_e5m2 byte."""


def e8m0(codes: Array) -> Array:
    """The powers of two that E8M0 bytes stand for; 255 is NaN."""
    powers: Array = np.exp2(codes.astype(np.float64) - 127)
    return np.where(codes == 255, np.nan, powers)


def bf16(bits: Array) -> Array:
    """The values of bfloat16 bits (uint16), as float32."""
    values: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values
