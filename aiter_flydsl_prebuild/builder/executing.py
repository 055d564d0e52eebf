"""Executing kernels as a build or ``verify`` asks for it; :mod:`.execution` does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import needs
from ..errors import CheckError, InputError
from ..progress import Progress
from .machine import default_workers
from .proof.proof import Subject
from .settings import BuildSettings
from .store.store import Store

if TYPE_CHECKING:
    from .execution.running import Execution, Wish

_GIGABYTES = 1.5
"""What a process that executes takes."""


def wish_of(settings: BuildSettings) -> Wish | None:
    """What is to be executed; None for nothing.

    :raises InputError: there are settings of it without ``execute``.
    :raises MissingError: libraries that it takes are not installed.
    """
    if not settings.execute:
        if settings.kernels is not None or settings.emulator is not None or settings.seed != 0:
            raise InputError("kernels, seed and emulator say what execute does; add it (--execute)")
        return None
    needs.require("executing kernels", *needs.PROVING)
    from .execution.running import Wish

    workers = settings.workers or default_workers(_GIGABYTES)
    return Wish(kernels=settings.kernels, seed=settings.seed, emulator=settings.emulator, workers=workers)


def require_emulator(wish: Wish) -> None:
    """For the start of a build, which would find out after it has compiled everything.

    :raises InputError: there is no emulator here, or no compiler for it.
    """
    from ..execution import hip
    from ..execution.tinygrad import checkout

    checkout(wish.emulator)
    hip.find_compiler()


def execute_pack(path: Path, source: str, wish: Wish, store: Store) -> Execution:
    """Execute kernels of a pack that was just built.

    :raises CheckError: one of them computes something else than it should.
    """
    from .execution.running import WRONG, execute, shown

    with shown(lambda total: Progress(total, action="executing")) as advance:
        execution = execute(Subject((path,)), wish, store, trusted=source, advance=advance)
    wrong = [line for one in execution.kernels if one.status == WRONG for line in one.complaints()]
    if wrong:
        raise CheckError("kernels do not compute what they should, no wheel is written:\n" + "\n".join(wrong))
    return execution
