"""Scalar memory and program control.

AMD, "CDNA3 Instruction Set Architecture" and "CDNA4 …": SMEM (scalar memory reads), SOPP, Data Dependency Resolution.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .faults import UnknownInstruction
from .registers import EXEC, POISON, SCC, VCC, Wave

if TYPE_CHECKING:
    from .machine import Workgroup

Execute = Callable[[Wave, "Workgroup"], None]

NO_OPERATIONS = ("S_NOP", "S_SLEEP", "S_SETPRIO", "S_INCPERFLEVEL", "S_DECPERFLEVEL", "S_TTRACEDATA")
"""What changes no register and no memory."""


def bits(word: int, high: int, low: int) -> int:
    """A field of an instruction."""
    return word >> low & (1 << (high - low + 1)) - 1


def load(word: int, name: str) -> Execute:
    """``s_load_dword[x2|x4|x8|x16]``: dwords at an aligned address into neighbouring scalar registers."""
    match = re.fullmatch(r"S_LOAD_DWORD(?:X(\d+))?", name)
    if match is None:
        raise UnknownInstruction(f"{name.lower()} is not modelled")
    count = int(match[1] or 1)
    base, target = 2 * bits(word, 5, 0), bits(word, 12, 6)
    offset = bits(word, 52, 32) - (bits(word, 52, 52) << 21) if bits(word, 17, 17) else 0
    register = bits(word, 63, 57) if bits(word, 14, 14) else None
    if not bits(word, 17, 17) and register is None:
        register = bits(word, 38, 32)

    def execute(wave: Wave, group: Workgroup) -> None:
        address = wave.mask(base) + offset + (0 if register is None else int(wave.scalar[register]))
        address &= ~3
        values = group.memory.load(np.array([address], np.uint64), 4 * count).view(np.uint32)[0]
        wave.scalar[target : target + count] = POISON

        def finish() -> None:
            wave.scalar[target : target + count] = values

        wave.local.append((True, finish))

    return execute


def wait(word: int) -> Execute:
    """``s_waitcnt``: vmcnt in bits 15:14 and 3:0, lgkmcnt in 11:8."""
    loads, local = bits(word, 15, 14) << 4 | bits(word, 3, 0), bits(word, 11, 8)

    def execute(wave: Wave, group: Workgroup) -> None:
        if loads < 63:
            wave.wait_loads(loads)
        if local < 15:
            wave.wait_local(local)

    return execute


def branch(word: int, name: str) -> Callable[[Wave], bool]:
    """Whether a branch is taken."""
    conditions: dict[str, Callable[[Wave], bool]] = {
        "S_BRANCH": lambda wave: True,
        "S_CBRANCH_SCC0": lambda wave: not wave.scalar[SCC],
        "S_CBRANCH_SCC1": lambda wave: bool(wave.scalar[SCC]),
        "S_CBRANCH_VCCZ": lambda wave: not wave.mask(VCC),
        "S_CBRANCH_VCCNZ": lambda wave: bool(wave.mask(VCC)),
        "S_CBRANCH_EXECZ": lambda wave: not wave.mask(EXEC),
        "S_CBRANCH_EXECNZ": lambda wave: bool(wave.mask(EXEC)),
    }
    if name not in conditions:
        raise UnknownInstruction(f"{name.lower()} is not modelled")
    return conditions[name]
