"""Vector instructions that tinygrad's emulator has wrong: multiplications of 24-bit integers, whose operands it does
not cut to 24 bits.

AMD, "CDNA3 Instruction Set Architecture": V_MUL_U32_U24, V_MAD_U32_U24; encodings VOP2 and VOP3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .faults import UnknownInstruction
from .floats import Array
from .registers import Wave
from .scalar import Execute, bits

if TYPE_CHECKING:
    from .machine import Workgroup

_LITERAL = 255
_24 = np.uint64(0xFFFFFF)

NAMES = ("V_MUL_U32_U24_E32", "V_MUL_U32_U24_E64", "V_MAD_U32_U24_E64")


def multiply24(word: int, name: str) -> Execute:
    """D = A[23:0] * B[23:0], with C added for MAD; the low 32 bits."""
    if name.endswith("_E32"):
        target, codes = bits(word, 24, 17), [bits(word, 8, 0), 256 + bits(word, 16, 9)]
    else:
        target, codes = bits(word, 7, 0), [bits(word, 40, 32), bits(word, 49, 41)]
        if bits(word, 10, 8) or bits(word, 15, 11) or bits(word, 63, 59):
            raise UnknownInstruction(f"{name.lower()} with modifiers is not modelled")
    literal = bits(word, 63, 32)
    addend = bits(word, 58, 50) if name.startswith("V_MAD") else None

    def source(wave: Wave, code: int) -> Array:
        values = np.uint64(literal) if code == _LITERAL else wave.source(code)[0].astype(np.uint64)
        return np.asarray(values)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        product = (source(wave, codes[0]) & _24) * (source(wave, codes[1]) & _24)
        if addend is not None:
            product = product + source(wave, addend)
        wave.vector[target, active] = (product & np.uint64(0xFFFFFFFF)).astype(np.uint32)[active]

    return execute
