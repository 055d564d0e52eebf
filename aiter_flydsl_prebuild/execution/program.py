"""A code object's instructions, decoded once and executed by every wave of every launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from . import lds, matrix, scalar, vector, vector_memory
from .faults import ExecutionError, UnknownInstruction
from .image import Image
from .registers import Wave
from .scalar import Execute
from .tinygrad import Decoded, Emulator


class Kind(Enum):
    """What the machine must do with a step."""

    OWN = auto()
    BOUND = auto()
    BRANCH = auto()
    BARRIER = auto()
    END = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Step:
    """One instruction: exactly one of ``execute``, ``bind`` and ``taken`` is there, by its kind."""

    kind: Kind
    next: int
    text: str
    execute: Execute | None = None
    bind: Callable[[Wave], Callable[[], Any]] | None = None
    taken: Callable[[Wave], bool] | None = None
    target: int = 0


class Program:
    """The decoded instructions of an image, by address."""

    def __init__(self, image: Image, emulator: Emulator) -> None:
        self.image = image
        self._emulator = emulator
        self._steps: dict[int, Step] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def at(self, pc: int) -> Step:
        """The instruction at an address.

        :raises UnknownInstruction: it is not modelled; the message says where it is.
        :raises ExecutionError: the address lies outside the code object.
        """
        step = self._steps.get(pc)
        if step is None:
            offset = pc - self.image.start
            if not 0 <= offset < self.image.data.size - 16:
                raise ExecutionError(f"the kernel jumps out of its code object, to offset {offset:#x}")
            try:
                step = _decode(self._emulator, pc)
                step = replace(step, text=f"offset {offset:#x}, {step.text}")
            except UnknownInstruction as error:
                raise UnknownInstruction(f"at offset {offset:#x}: {error}") from error
            self._steps[pc] = step
        return step


def _decode(emulator: Emulator, pc: int) -> Step:
    decoded = emulator.decode(pc)
    following = pc + decoded.size
    family = decoded.encoding.split("_")[0]
    if family == "SOPP":
        return _control(decoded, pc)
    execute = _own(family, decoded)
    if execute is not None:
        return Step(Kind.OWN, following, decoded.text, execute=execute)
    return Step(Kind.BOUND, following, decoded.text, bind=emulator.compile(decoded))


def _own(family: str, decoded: Decoded) -> Execute | None:
    """The semantics of this project, None for an instruction that is left to tinygrad."""
    word, name = decoded.word, decoded.name
    if family == "SMEM":
        return scalar.load(word, name)
    if family == "MUBUF":
        return vector_memory.buffer(word, name)
    if family == "GLOBAL":
        return vector_memory.flat(word, name)
    if family == "SCRATCH":
        return vector_memory.scratch(word, name)
    if family == "DS":
        return lds.access(word, name)
    if family == "VOP3PX2" or "MFMA" in name:
        return matrix.multiply(word, name, scaled=family == "VOP3PX2")
    if name in vector.NAMES:
        return vector.multiply24(word, name)
    if name in ("V_ACCVGPR_READ", "V_ACCVGPR_WRITE"):
        return matrix.accumulator_move(word, write=name.endswith("WRITE"))
    return None


def _control(decoded: Decoded, pc: int) -> Step:
    name, following = decoded.name, pc + decoded.size
    if name == "S_ENDPGM":
        return Step(Kind.END, following, decoded.text)
    if name == "S_BARRIER":
        return Step(Kind.BARRIER, following, decoded.text)
    if name == "S_WAITCNT":
        return Step(Kind.OWN, following, decoded.text, execute=scalar.wait(decoded.word))
    if name in scalar.NO_OPERATIONS:
        return Step(Kind.NOTHING, following, decoded.text)
    offset = decoded.word & 0xFFFF
    target = following + 4 * (offset - (offset >> 15 << 16))
    return Step(Kind.BRANCH, following, decoded.text, taken=scalar.branch(decoded.word, name), target=target)
