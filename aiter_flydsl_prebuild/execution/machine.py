"""Workgroups: waves that run one at a time from barrier to barrier.

Nothing here models time or caches. What one wave reads of another's is right only behind a barrier: waves are run in an
order that changes with every barrier, on LDS that holds NaN at first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .faults import ExecutionError, Stuck, UnsupportedKernel
from .image import Descriptor, argument_segment, user_registers
from .lds import Lds
from .memory import Memory, Region
from .program import Kind, Program
from .registers import LANES, PC, Wave

MAX_LDS = 160 * 1024
"""LDS of a gfx950 workgroup, in bytes."""

_MOST_STEPS = 50_000_000
"""Instructions of one wave, after which it is taken to run forever."""


@dataclass(frozen=True)
class Launch:
    """What a host asked for: a kernel, its grid in workgroups, its block in work-items, LDS beyond the kernel's own,
    and the bytes of each argument."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int
    arguments: tuple[bytes, ...]


@dataclass
class Workgroup:
    """What the waves of one workgroup share."""

    memory: Memory
    lds: Lds


Id = tuple[int, int, int]


def all_workgroups(grid: tuple[int, int, int]) -> list[Id]:
    """The ids of a grid, in the order of dispatch: x first."""
    return [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]


class Machine:
    """One launch of a program. ``order`` decides in which order waves run."""

    def __init__(self, program: Program, launch: Launch, memory: Memory, order: int = 0) -> None:
        self._program = program
        self._launch = launch
        self._memory = memory
        self._descriptor: Descriptor = program.image.kernel(launch.kernel)
        self._random = np.random.default_rng(order)
        items = launch.block[0] * launch.block[1] * launch.block[2]
        self._lds = self._descriptor.lds + launch.dynamic_lds
        if not 0 < items <= 1024 or self._lds > MAX_LDS:
            raise UnsupportedKernel(
                f"{launch.kernel}: a launch of {items} work-items with {self._lds} bytes of LDS is none that a GPU runs"
            )
        self._items = items
        self.steps = 0
        """Instructions executed so far, over all waves."""
        self.races: dict[str, None] = {}
        """Instructions that did not wait for a load that goes to the LDS they touch, each once."""

    def run(self, workgroups: Iterable[Id]) -> None:
        """Run these workgroups, one after the other.

        :raises ExecutionError: what a kernel did wrong, or what is not modelled.
        """
        segment = argument_segment(self._descriptor, self._launch.arguments)
        kernarg = np.frombuffer(segment, np.uint8)
        region = Region("the argument segment", kernarg.ctypes.data, kernarg, None)
        self._memory.add(region)
        try:
            for workgroup in workgroups:
                self._run_workgroup(workgroup, kernarg.ctypes.data)
        finally:
            self._memory.remove(region)

    def _run_workgroup(self, workgroup: Id, kernarg: int) -> None:
        group = Workgroup(self._memory, Lds(self._lds))
        waves = [_Running(self._wave(first, workgroup, kernarg)) for first in range(0, self._items, LANES)]
        while waves:
            for index in self._random.permutation(len(waves)):
                self.steps += waves[index].run_to_barrier(self._program, group)
                self.races.update(dict.fromkeys(group.lds.races))
                group.lds.races.clear()
            waves = [wave for wave in waves if not wave.ended]

    def _wave(self, first: int, workgroup: Id, kernarg: int) -> Wave:
        descriptor, block = self._descriptor, self._launch.block
        wave = Wave(min(LANES, self._items - first), descriptor.scratch)
        scalars = user_registers(descriptor, kernarg)
        scalars += [index for index, wanted in zip(workgroup, descriptor.workgroup_ids, strict=True) if wanted]
        wave.scalar[: len(scalars)] = scalars
        items = first + np.arange(LANES)
        x, y, z = items % block[0], items // block[0] % block[1], items // (block[0] * block[1])
        wave.vector[0] = x | y << 10 | z << 20
        wave.pc = descriptor.entry
        return wave


class _Running:
    """A wave on its way, with tinygrad's instructions bound to its registers."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._bound: dict[int, Callable[[], Any]] = {}
        self.ended = False

    def run_to_barrier(self, program: Program, group: Workgroup) -> int:
        """Run until the next barrier, or the end; how many instructions that were."""
        wave, bound, scalar = self._wave, self._bound, self._wave.scalar
        pc, steps = wave.pc, 0
        while steps < _MOST_STEPS:
            steps += 1
            step = program.at(pc)
            kind = step.kind
            if kind is Kind.BOUND:
                function = bound.get(pc)
                if function is None:
                    assert step.bind is not None
                    function = bound[pc] = step.bind(wave)
                scalar[PC], scalar[PC + 1] = pc & 0xFFFFFFFF, pc >> 32
                function()
            elif kind is Kind.OWN:
                assert step.execute is not None
                group.lds.now = step.text
                try:
                    step.execute(wave, group)
                except ExecutionError as error:
                    raise type(error)(f"{step.text}: {error}") from error
            elif kind is Kind.BRANCH:
                assert step.taken is not None
                pc = step.target if step.taken(wave) else step.next
                continue
            elif kind is not Kind.NOTHING:
                wave.pc = step.next
                self.ended = kind is Kind.END
                if self.ended:
                    wave.wait_loads(0)
                return steps
            pc = step.next
        raise Stuck(f"a wave has executed {steps} instructions without an end")


def argument_bytes(descriptor: Descriptor, parameters: int) -> tuple[bytes, ...]:
    """The bytes of each argument, behind the array of pointers that a host hands to ``hipModuleLaunchKernel``."""
    pointers = (ctypes.c_uint64 * len(descriptor.arguments)).from_address(parameters)
    pairs = zip(descriptor.arguments, pointers, strict=True)
    return tuple(ctypes.string_at(address, argument.size) for argument, address in pairs)
