"""What can go wrong when a kernel is executed. Each is a finding about the kernel, or a limit of the emulator."""

from __future__ import annotations

from ..errors import PrebuildError


class ExecutionError(PrebuildError):
    """A kernel could not be executed to its end."""


class UnknownInstruction(ExecutionError):
    """The emulator does not know an instruction, or a form of it. It never guesses."""


class UnsupportedKernel(ExecutionError):
    """A kernel asks for something that the emulator does not model: scratch, a cluster, a floating-point mode."""


class AccessError(ExecutionError):
    """A kernel touched memory that it was not given."""


class Stuck(ExecutionError):
    """A kernel does not end."""
