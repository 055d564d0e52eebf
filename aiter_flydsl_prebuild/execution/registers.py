"""The state of one wave: its registers, and the memory operations whose results have not arrived.

On the hardware a load's destination holds what it held until the counter that the load has raised is waited for. Here
it holds poison until then, and a load that goes straight to LDS lands then: a kernel that waits too little computes
NaN, not by chance the right answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from .floats import Array

LANES = 64
SCALARS = 260
VCC, M0, EXEC, SCC, PC = 106, 124, 126, 253, 256
"""Registers of the scalar file. Behind the 128 encodings of registers come the inline constants (ISA, "Scalar
Operands"), then the program counter: the layout of tinygrad's emulator, which reads and writes the same memory."""

POISON = np.uint32(0xFFFFFFFF)

_FLOATS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 0.15915494)  # inline constants 240 to 248


def _inline_constants() -> Array:
    scalar = np.zeros(SCALARS, np.uint32)
    scalar[:126] = POISON
    scalar[128:193] = np.arange(65)
    scalar[193:209] = (-np.arange(1, 17)).astype(np.int64).astype(np.uint32)
    scalar[240:249] = np.array(_FLOATS, np.float32).view(np.uint32)
    return scalar


_CONSTANTS = _inline_constants()
_ALL = np.ones(LANES, bool)
_ALL.flags.writeable = False


class Wave:
    """Scalars [260], and both vector files [256, 64]. Registers that nothing was written to hold poison."""

    def __init__(self, lanes: int, scratch: int = 0) -> None:
        self.scalar = _CONSTANTS.copy()
        self.vector = np.full((256, LANES), POISON, np.uint32)
        self.accumulator = np.full((256, LANES), POISON, np.uint32)
        self.scratch = np.full((LANES, scratch), 0xFF, np.uint8)
        self.pc = 0
        self.loads: deque[Callable[[], None]] = deque()
        """Vector memory operations in flight, by age: what happens when each is done (vmcnt)."""
        self.local: deque[tuple[bool, Callable[[], None]]] = deque()
        """LDS and scalar memory operations in flight (lgkmcnt); True for a scalar one: those return out of order."""
        self._lane_bits = np.arange(LANES, dtype=np.uint64)
        self.set_mask(EXEC, (1 << lanes) - 1)

    def mask(self, register: int) -> int:
        """The 64 bits of a pair of scalar registers."""
        return int(self.scalar[register]) | int(self.scalar[register + 1]) << 32

    def set_mask(self, register: int, value: int) -> None:
        """Write a pair of scalar registers."""
        self.scalar[register], self.scalar[register + 1] = value & 0xFFFFFFFF, value >> 32

    def active(self) -> Array:
        """Which lanes EXEC lets act."""
        execution = self.mask(EXEC)
        if execution == 0xFFFFFFFFFFFFFFFF:
            return _ALL
        active: Array = (np.uint64(execution) >> self._lane_bits & np.uint64(1)).astype(bool)
        return active

    def file(self, accumulators: int) -> Array:
        """The accumulation registers (AGPRs), or the others."""
        return self.accumulator if accumulators else self.vector

    def source(self, code: int, count: int = 1, accumulators: int = 0) -> Array:
        """``count`` registers of a 9-bit source operand, [count, 64]; a scalar or constant is the same in all."""
        if code >= 256:
            return self.file(accumulators)[code - 256 : code - 256 + count]
        return np.full((count, LANES), self.scalar[code])

    def wait_loads(self, count: int) -> None:
        """Let the oldest vector memory operations finish until ``count`` are in flight."""
        while len(self.loads) > count:
            self.loads.popleft()()

    def wait_local(self, count: int) -> None:
        """Let LDS operations finish, by age, until ``count`` operations are in flight; scalar ones only for 0."""
        kept: deque[tuple[bool, Callable[[], None]]] = deque()
        while self.local and len(self.local) + len(kept) > count:
            scalar, finish = self.local.popleft()
            if scalar and count:
                kept.append((scalar, finish))
            else:
                finish()
        self.local.extendleft(reversed(kept))
