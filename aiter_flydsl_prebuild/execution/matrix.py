"""Matrix instructions (MFMA) on operands of 8 and 16 bits, in float64, rounded once to float32.

AMD, "CDNA3 Instruction Set Architecture": Matrix Arithmetic Instructions; "CDNA4 …": V_MFMA_…_F8F6F4 and
V_MFMA_SCALE_…; the register layouts also in AMD's Matrix Instruction Calculator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .faults import UnknownInstruction
from .floats import E4M3, E5M2, Array, bf16, e8m0
from .registers import EXEC, LANES, Wave
from .scalar import Execute, bits

if TYPE_CHECKING:
    from .machine import Workgroup

_NAME = re.compile(r"V_MFMA_(SCALE_)?F32_(16X16|32X32)X(\d+)_(F8F6F4|(?:FP8|BF8)_(?:FP8|BF8)|BF16|F16)", re.ASCII)
_SCALE_BLOCK = 32


def _f16(words: Array) -> Array:
    return words.view(np.uint16).view(np.float16).astype(np.float64)


def _bf16(words: Array) -> Array:
    return bf16(words.view(np.uint16)).astype(np.float64)


def _e4m3(words: Array) -> Array:
    return E4M3[words.view(np.uint8)]


def _e5m2(words: Array) -> Array:
    return E5M2[words.view(np.uint8)]


_Format = tuple[int, Callable[[Array], Array]]
_FORMATS: dict[str, _Format] = {"FP8": (1, _e4m3), "BF8": (1, _e5m2), "F16": (2, _f16), "BF16": (2, _bf16)}


def _formats(kind: str, cbsz: int, blgp: int, name: str) -> tuple[_Format, _Format]:
    """The bytes per element and the decoder of A and of B."""
    if kind == "F8F6F4":
        by_code = ("FP8", "BF8")
        if max(cbsz, blgp) > 1:
            raise UnknownInstruction(f"{name.lower()} on operands of 6 and 4 bits is not modelled")
        return _FORMATS[by_code[cbsz]], _FORMATS[by_code[blgp]]
    if cbsz or blgp:
        raise UnknownInstruction(f"{name.lower()} with broadcast (cbsz, blgp) is not modelled")
    first, second = kind.split("_") if "_" in kind else (kind, kind)
    return _FORMATS[first], _FORMATS[second]


@dataclass(frozen=True)
class Operand:
    """Where A or B is: a 9-bit source, its register file, and for scaled products where its scales are.

    ``scale`` is the source of the scales; ``select`` the byte of it.
    """

    source: int
    accumulators: int
    scale: int | None = None
    select: int = 0


@dataclass(frozen=True)
class Shape:
    """``edge`` x ``edge`` results over ``depth`` values of K, of which a lane holds ``depth / (64 / edge)``.

    Lane l holds row (of A) or column (of B) l % edge. Its elements are ``runs`` runs of neighbours along K: run c of
    lane group g = l // edge begins at K = (c * groups + g) * length. Only the F8F6F4 kinds have two runs.
    """

    edge: int
    depth: int
    runs: int

    @property
    def groups(self) -> int:
        """Lanes that hold one row between them."""
        return LANES // self.edge

    def rows(self, values: Array) -> Array:
        """[64, elements] as a lane holds them -> [edge, depth]."""
        length = self.depth // self.groups // self.runs
        by_lane = values.reshape(self.groups, self.edge, self.runs, length)
        rows: Array = by_lane.transpose(1, 2, 0, 3).reshape(self.edge, self.depth)
        return rows

    def scales(self, words: Array, select: int) -> Array:
        """The factor of each block of 32 along K, [edge, depth / 32]: block b of row r is in lane r + edge * b."""
        codes = words.reshape(self.groups, self.edge).T >> np.uint32(8 * select) & np.uint32(255)
        return e8m0(codes[:, : self.depth // _SCALE_BLOCK])

    def lanes(self, product: Array) -> Array:
        """[edge, edge] -> [registers, 64]: register i of lane l is row 4 (groups (i // 4) + l // edge) + i % 4."""
        blocks = product.reshape(self.edge // (4 * self.groups), self.groups, 4, self.edge)
        registers: Array = blocks.transpose(0, 2, 1, 3).reshape(-1, LANES)
        return registers


def multiply(word: int, name: str, *, scaled: bool) -> Execute:
    """D = A B + C. ``scaled`` are the 16-byte encodings, whose first 8 bytes say where the scales are.

    :raises UnknownInstruction: it is none that is modelled.
    """
    match = _NAME.fullmatch(name)
    if match is None or bool(match[1]) != scaled:
        raise UnknownInstruction(f"{name.lower()} is not modelled")
    edge, depth, kind = int(match[2][:2]), int(match[3]), match[4]
    shape = Shape(edge, depth, 2 if kind == "F8F6F4" else 1)
    main = word >> 64 if scaled else word
    formats = _formats(kind, bits(main, 10, 8), bits(main, 63, 61), name)
    if bits(main, 14, 11) != (1 if scaled else 0):  # the scaled encodings have a 1 there (LLVM, VOP3PInstructions.td)
        raise UnknownInstruction(f"{name.lower()} with broadcast (abid) is not modelled")
    operands = _operands(word, main, scaled)
    addend, result, file = bits(main, 58, 50), bits(main, 7, 0), bits(main, 15, 15)
    registers = edge * edge // LANES

    def execute(wave: Wave, group: Workgroup) -> None:
        if wave.mask(EXEC) != 0xFFFFFFFFFFFFFFFF:
            raise UnknownInstruction(f"{name.lower()} with inactive lanes is not modelled")
        matrices = []
        for operand, (size, decode) in zip(operands, formats, strict=True):
            count = depth // shape.groups * size // 4
            words = np.ascontiguousarray(wave.source(operand.source, count, operand.accumulators).T)
            values = shape.rows(decode(words))
            if operand.scale is not None:
                factors = shape.scales(wave.source(operand.scale)[0], operand.select)
                values = values * np.repeat(factors, _SCALE_BLOCK, axis=1)
            matrices.append(values)
        with np.errstate(all="ignore"):
            sums = shape.lanes(matrices[0] @ matrices[1].T) + wave.source(addend, registers, file).view(np.float32)
            wave.file(file)[result : result + registers] = sums.astype(np.float32).view(np.uint32)

    return execute


def _operands(word: int, main: int, scaled: bool) -> tuple[Operand, Operand]:
    """A and B. The byte of a scale register is chosen by op_sel (low bit) and op_sel_hi (high bit), bit 0 for A."""
    sources, files = (bits(main, 40, 32), bits(main, 49, 41)), bits(main, 60, 59)
    if not scaled:
        return Operand(sources[0], files & 1), Operand(sources[1], files >> 1)
    low, high = bits(word, 13, 11), bits(word, 60, 59)
    scales = bits(word, 40, 32), bits(word, 49, 41)
    a, b = (Operand(sources[i], files >> i & 1, scales[i], (low >> i & 1) | (high >> i & 1) << 1) for i in (0, 1))
    return a, b


def accumulator_move(word: int, *, write: bool) -> Execute:
    """``v_accvgpr_read_b32`` and ``v_accvgpr_write_b32``."""
    target, source = bits(word, 7, 0), bits(word, 40, 32)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        values = wave.source(source, 1, 0 if write else 1)[0]
        wave.file(1 if write else 0)[target, active] = values[active]

    return execute
