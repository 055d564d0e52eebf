"""Vector instructions that tinygrad's emulator has wrong: multiplications of 24-bit integers, whose operands it does
not cut to 24 bits.

AMD, "CDNA3 Instruction Set Architecture": V_MUL_U32_U24, V_MAD_U32_U24; encodings VOP2 (with SDWA, which selects bytes
or words of the sources) and VOP3.
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

_LITERAL, _SDWA, _DPP = 255, 249, 250
_BYTES = {0: (0, 0xFF), 1: (8, 0xFF), 2: (16, 0xFF), 3: (24, 0xFF), 4: (0, 0xFFFF), 5: (16, 0xFFFF), 6: (0, 0xFFFFFFFF)}
"""What SDWA selects of a source, by code: how far to shift it, and the mask."""
_DWORD = 6
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
    selects = [_DWORD, _DWORD]
    if name.endswith("_E32") and codes[0] == _SDWA:
        # SDWA: sources in bits 39:32 and 16:9, scalar ones if bits 55 and 63 say so, selected by 50:48 and 58:56.
        if bits(word, 47, 40) != _DWORD or bits(word, 54, 51) or bits(word, 62, 59):
            raise UnknownInstruction(f"{name.lower()} in SDWA with modifiers is not modelled")
        codes = [
            bits(word, 39, 32) + (0 if bits(word, 55, 55) else 256),
            bits(word, 16, 9) + (0 if bits(word, 63, 63) else 256),
        ]
        selects = [bits(word, 50, 48), bits(word, 58, 56)]
    elif codes[0] == _DPP and name.endswith("_E32"):
        raise UnknownInstruction(f"{name.lower()} in DPP is not modelled")
    addend = bits(word, 58, 50) if name.startswith("V_MAD") else None

    def source(wave: Wave, code: int) -> Array:
        values = np.uint64(literal) if code == _LITERAL else wave.source(code)[0].astype(np.uint64)
        return np.asarray(values)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        factors = []
        for code, select in zip(codes, selects, strict=True):
            shift, mask = _BYTES[select]
            factors.append(source(wave, code) >> np.uint64(shift) & np.uint64(mask) & _24)
        product = factors[0] * factors[1]
        if addend is not None:
            product = product + source(wave, addend)
        wave.vector[target, active] = (product & np.uint64(0xFFFFFFFF)).astype(np.uint32)[active]

    return execute
