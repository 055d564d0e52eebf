"""All other instructions, from the emulator in a tinygrad source checkout (``test/mockgpu/amd/emu.py``).

tinygrad compiles each instruction, from AMD's own pseudocode, into a function on the memory of a wave's registers. Its
memory and matrix instructions are never used: those that decide whether a GEMM is right are this project's own, and
:data:`_ALU` names the only kinds of encoding that are left to it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .faults import UnknownInstruction
from .registers import Wave

VARIABLE = "TINYGRAD_SOURCE"
"""A tinygrad checkout, where ``--emulator`` names none."""

SNAPSHOT = "2026-08-22"
"""The day of the checkout that this was written against."""

_MODULE = "test.mockgpu.amd.emu"
_ARCH = "cdna"
_LONGEST = 16  # bytes of an instruction
_SCALED = 0xD3AC  # the upper half of the first dword of a 16-byte instruction (V_MFMA_LD_SCALE_B32, VOP3P)

_ALU = ("SOP1", "SOP2", "SOPC", "SOPK", "VOP1", "VOP2", "VOPC", "VOP3", "VOP3SD", "VOP3P")
_HARDWARE = ("GETREG", "SETREG", "GETPC", "SETPC", "SWAPPC", "RFE", "MOVREL", "GPR_IDX", "CBRANCH", "CALL", "MEMTIME")
"""Scalar instructions whose effect is beside the registers that are modelled."""


@dataclass(frozen=True)
class Decoded:
    """One instruction: its encoding's class, its operation's name, its bytes."""

    encoding: str
    name: str
    word: int
    size: int
    text: str


def checkout(named: Path | None) -> Path:
    """The folder of a tinygrad checkout: the one named, or that of :data:`VARIABLE`.

    :raises InputError: neither is there.
    """
    folder = named or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if folder is None:
        raise InputError(f"name a tinygrad checkout of {SNAPSHOT}: --emulator FOLDER, or {VARIABLE}")
    if not (folder / "test/mockgpu/amd/emu.py").is_file():
        raise InputError(f"{folder}: is no tinygrad source checkout (no test/mockgpu/amd/emu.py)")
    return folder.resolve()


class Emulator:
    """tinygrad's half of the emulator.

    :raises InputError: the checkout, or the compiler that it calls (variable CC), is not there.
    """

    def __init__(self, source: Path | None = None) -> None:
        named = checkout(source)
        if str(named) not in sys.path:
            sys.path.insert(0, str(named))
        try:
            self._emu: Any = importlib.import_module(_MODULE)
        except Exception as error:
            raise InputError(f"the emulator in {named} cannot be imported: {type(error).__name__}: {error}") from error
        self._base = ctypes.c_uint64(0)

    def decode(self, address: int) -> Decoded:
        """The instruction at an address.

        :raises UnknownInstruction: none that tinygrad can decode.
        """
        raw = ctypes.string_at(address, _LONGEST)
        if int.from_bytes(raw[2:4], "little") != _SCALED:
            # tinygrad looks at the second 8 bytes alone, and takes an MFMA that follows for a part of this one.
            raw = raw[:8].ljust(_LONGEST, b"\0")
        try:
            instruction = self._emu.decode_inst(raw, _ARCH)
            size = instruction.size()
            name = instruction.op.name
        except Exception as error:
            raise UnknownInstruction(f"the bytes {raw[:8].hex(' ')} are no instruction that is known") from error
        encoding = type(instruction).__name__
        return Decoded(encoding, name, int.from_bytes(raw[:size], "little"), size, _text(instruction, name))

    def compile(self, decoded: Decoded) -> Callable[[Wave], Callable[[], Any]]:
        """What an instruction does: a function that binds it to a wave's registers.

        :raises UnknownInstruction: tinygrad does not know it, or it is none of those left to it.
        """
        family = decoded.encoding.split("_")[0]
        if family not in _ALU or "MFMA" in decoded.name or any(part in decoded.name for part in _HARDWARE):
            raise UnknownInstruction(f"{decoded.text} is not modelled")
        raw = decoded.word.to_bytes(decoded.size + 4, "little")
        try:
            program, runtime = self._emu._get_runner(raw, _ARCH)
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnknownInstruction(f"{decoded.text} is not known to tinygrad's emulator: {said}") from error
        order = list(program.arg.globals)
        if not set(order) <= {0, 1, 2, 5}:
            raise UnknownInstruction(f"{decoded.text} touches memory that is not modelled")

        def bind(wave: Wave) -> Callable[[], Any]:
            files = {0: wave.scalar, 1: wave.vector, 5: wave.accumulator}
            arguments = [ctypes.c_uint64(files[i].ctypes.data) if i in files else self._base for i in order]
            function = runtime.fxn
            return lambda: function(*arguments)

        return bind


def _text(instruction: Any, name: str) -> str:
    try:
        return str(instruction)
    except Exception:
        return name.lower()
