"""A bench for instructions: a few of them in memory, run by one wave or several on registers that a test fills."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from aiter_flydsl_prebuild.execution import hip
from aiter_flydsl_prebuild.execution.lds import Lds
from aiter_flydsl_prebuild.execution.machine import Workgroup, _Running
from aiter_flydsl_prebuild.execution.memory import Memory
from aiter_flydsl_prebuild.execution.program import Program
from aiter_flydsl_prebuild.execution.registers import Wave
from aiter_flydsl_prebuild.execution.tinygrad import Emulator

LANES = np.arange(64)


def emulator() -> Emulator:
    """tinygrad's emulator of this machine; imported once."""
    os.environ["CC"] = hip.find_compiler()
    return Emulator(Path(os.environ["TINYGRAD_SOURCE"]))


class Bench:
    """Memory, LDS, and waves in the order in which they run."""

    def __init__(self, emulator: Emulator, *, lds: int = 4096, waves: int = 1) -> None:
        self.memory = Memory()
        self.group = Workgroup(self.memory, Lds(lds))
        self.waves = [Wave(64) for _ in range(waves)]
        self._emulator = emulator

    @property
    def wave(self) -> Wave:
        return self.waves[0]

    def place(self, array: Any, name: str = "array", **options: Any) -> Any:
        return self.memory.place(np.ascontiguousarray(array), name, **options)

    def descriptor(self, register: int, array: Any, records: int | None = None) -> None:
        """A raw buffer over an array, in four scalar registers."""
        address = array.ctypes.data
        words = [address & 0xFFFFFFFF, address >> 32, array.nbytes if records is None else records, 0x27000]
        for wave in self.waves:
            wave.scalar[register : register + 4] = words

    def run(self, *instructions: Any) -> Wave:
        """Run them in every wave, and end; what the first wave holds then."""
        code = b"".join(one if isinstance(one, bytes) else one.to_bytes() for one in instructions)
        code += bytes.fromhex("000081bf")  # s_endpgm
        area = mmap.mmap(-1, max(mmap.PAGESIZE, len(code) + 64))
        area[: len(code)] = code
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        program = Program(SimpleNamespace(start=start, data=np.frombuffer(area, np.uint8)), self._emulator)  # type: ignore[arg-type]
        running = []
        for wave in self.waves:
            wave.pc = start
            running.append(_Running(wave))
        while running:
            for one in running:
                one.run_to_barrier(program, self.group)
            running = [one for one in running if not one.ended]
        return self.wave


def f32(values: Sequence[float] | Any) -> Any:
    """The bits of float32 values."""
    return np.asarray(values, np.float32).view(np.uint32)
