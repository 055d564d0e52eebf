"""Where a problem is run: on the emulator, or on a GPU. Nothing else differs between the two.

A launcher turns operands into torch tensors, makes the problem's call, and gives back what the tensors hold.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .faults import ExecutionError
from .floats import Array
from .hip import Host
from .image import Image
from .machine import Id, Launch, Machine, all_workgroups, argument_bytes
from .memory import POISON, Memory, Region
from .problem import Operand, Outcome, Problem
from .program import Program
from .tinygrad import Emulator


class Launcher(ABC):
    """Runs problems."""

    def run(self, problem: Problem, code: Sequence[str]) -> Outcome:
        """Run a problem and judge it; ``code`` are the digests of the code objects that it may run."""
        started = time.perf_counter()
        tiles, worst, fault = 0, 0.0, None
        try:
            blocks, held = self._run(problem, code)
            result = problem.values(held[problem.result])
            for rows, columns in blocks:
                worst = max(worst, problem.expected(rows, columns).worst(result[rows, columns]))
                tiles += 1
            for name, wanted in problem.after.items():
                if not np.array_equal(held[name].view(np.uint8), wanted.view(np.uint8)):
                    raise ExecutionError(f"{name} does not hold what it must in the end")
        except ExecutionError as error:
            fault = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        steps, races = self.counted()
        return Outcome(problem.label, tiles, problem.tiles, worst, seconds, steps, fault, races)

    def counted(self) -> tuple[int, tuple[str, ...]]:
        """Instructions that the last problem took, and races that it ran; none where nobody can tell."""
        return 0, ()

    @abstractmethod
    def _run(self, problem: Problem, code: Sequence[str]) -> tuple[list[tuple[slice, slice]], Mapping[str, Array]]:
        """The blocks of the result that were computed, and what the writable operands hold then."""


class OnEmulator(Launcher):
    """Tensors on the CPU in guarded memory, and launches on the emulator.

    Of a launch with many tiles, at most ``most_tiles`` are run: the first, the last, and some between.
    """

    def __init__(self, library: Path, emulator: Emulator, most_tiles: int, seed: int) -> None:
        self._emulator = emulator
        self._most_tiles = most_tiles
        self._seed = seed
        self._programs: dict[bytes, Program] = {}
        self._machine: Machine | None = None
        self._now: _Running | None = None
        self._host = Host(library, self._launched)

    def counted(self) -> tuple[int, tuple[str, ...]]:
        return (0, ()) if self._machine is None else (self._machine.steps, tuple(self._machine.races))

    def _run(self, problem: Problem, code: Sequence[str]) -> tuple[list[tuple[slice, slice]], Mapping[str, Array]]:
        self._now = now = _Running(problem, code)
        self._machine = None
        try:
            launches = self._host.launches
            with now.placing():
                problem.call(now.tensors)
            self._host.check()
            if self._host.launches != launches + 1:
                raise ExecutionError(f"the call launched {self._host.launches - launches} kernels, not one")
        except ExecutionError:
            raise
        except Exception as error:
            self._host.check()  # what went wrong in the launch comes first
            raise ExecutionError(f"the call ends with {type(error).__name__}: {error}") from error
        finally:
            self._now = None
        return now.blocks, now.arrays

    def _launched(self, image: bytes, name: str, sizes: list[int], lds: int, parameters: int) -> None:
        assert self._now is not None
        program = self._programs.get(image)
        if program is None:
            program = self._programs[image] = Program(Image(image), self._emulator)
        if program.image.sha256 not in self._now.code:
            raise ExecutionError("FlyDSL launched another code object than the pack holds for this kernel")
        descriptor = program.image.kernel(name)
        arguments = argument_bytes(descriptor, parameters)
        grid, block = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
        self._machine = Machine(program, Launch(name, grid, block, lds, arguments), self._now.memory, self._seed)
        self._now.run(self._machine, grid, self._most_tiles, self._seed)


class _Running:
    """One problem on its way through the emulator."""

    def __init__(self, problem: Problem, code: Sequence[str]) -> None:
        self.code = code
        self.memory = Memory()
        self.blocks: list[tuple[slice, slice]] = []
        self._problem = problem
        self.arrays = {
            name: self.memory.place(operand.array, name, writable=operand.writable, end=problem.end)
            for name, operand in problem.operands.items()
        }
        self.tensors = {name: as_tensor(array, problem.operands[name]) for name, array in self.arrays.items()}
        result = self.arrays[problem.result]
        self._result: Region = self.memory.region_of(result.ctypes.data)

    def placing(self) -> Any:
        """A context in which tensors that the op makes for itself lie in guarded memory too."""
        from .allocations import Placing

        return Placing(self.memory)

    def run(self, machine: Machine, grid: Id, most_tiles: int, seed: int) -> None:
        """Run groups of workgroups until enough tiles are computed, and check after each which elements it wrote.

        Where that is all tiles, every workgroup is run: one that has no tile to compute must write nothing.
        """
        problem = self._problem
        groups = [[one] for one in all_workgroups(grid)] if problem.groups is None else problem.groups(grid)
        idle = len(groups) - problem.tiles
        random = np.random.default_rng([seed, len(groups)])
        for index in in_turn(len(groups), random):
            if len(self.blocks) == most_tiles < problem.tiles:
                return
            group = groups[index]
            before = self._written()
            machine.run([group[i] for i in random.permutation(len(group))])
            tile = problem.written_tile(self._written() & ~before)
            if tile is not None:
                self.blocks.append(tile)
                continue
            idle -= 1
            if idle < 0:
                raise ExecutionError(f"workgroup {group[0]} of the grid {grid} writes nothing")
        if len(self.blocks) != problem.tiles:
            raise ExecutionError(f"{len(self.blocks)} of {problem.tiles} tiles of the result are written")

    def _written(self) -> Array:
        assert self._result.written is not None
        result = self.arrays[self._problem.result]
        written = self._result.written[: result.nbytes].reshape(*result.shape, result.itemsize)
        whole: Array = np.asarray(written.all(axis=-1))
        if (written.any(axis=-1) != whole).any():
            raise ExecutionError("a part of an element of the result is written")
        return whole


def in_turn(count: int, random: np.random.Generator) -> list[int]:
    """The first of ``count`` numbers and the last, then the others in an order by chance."""
    ends = dict.fromkeys((0, count - 1)) if count else {}
    return [*ends, *(int(number) for number in random.permutation(count) if int(number) not in ends)]


def as_tensor(array: Array, operand: Operand) -> Any:
    """A torch tensor on the same memory."""
    import torch

    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[array.itemsize]
    numpy_kind = {1: np.uint8, 2: np.int16, 4: np.int32}[array.itemsize]
    return torch.from_numpy(array.view(numpy_kind)).view(plain).view(getattr(torch, operand.dtype))


class OnGpu(Launcher):
    """Tensors on this process's GPU, and FlyDSL's own launches. It compares every tile.

    What a kernel may touch is not checked here, but that it leaves alone what it may only read. ``device`` is another
    than ``cuda`` where a HIP library stands in for a GPU's.
    """

    def __init__(self, device: str = "cuda") -> None:
        self._device = device

    def _run(self, problem: Problem, code: Sequence[str]) -> tuple[list[tuple[slice, slice]], Mapping[str, Array]]:
        import torch

        tensors = {name: as_tensor(o.array.copy(), o).to(self._device) for name, o in problem.operands.items()}
        result = tensors[problem.result]
        result.view(torch.uint8).fill_(POISON)
        try:
            problem.call(tensors)
            if self._device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            raise ExecutionError(f"the call ends with {type(error).__name__}: {error}") from error
        held = {name: as_array(tensor, problem.operands[name]) for name, tensor in tensors.items()}
        for name, operand in problem.operands.items():
            if not operand.writable and not np.array_equal(held[name].view(np.uint8), operand.array.view(np.uint8)):
                raise ExecutionError(f"{name}, which is only to be read, was written to")
        return list(problem.blocks()), held


def as_array(tensor: Any, operand: Operand) -> Array:
    """The elements of a tensor, as the operand's array holds them."""
    import torch

    bytes_ = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    array: Array = bytes_.view(operand.array.dtype).reshape(operand.array.shape)
    return array
