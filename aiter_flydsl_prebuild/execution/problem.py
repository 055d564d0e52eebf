"""One problem for a kernel: its operands, the call that runs it, and how what it computes is judged.

A source makes these (:meth:`sources.base.Source.problems`); nothing here knows an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .faults import ExecutionError
from .floats import Array, bf16
from .memory import POISON

Id = tuple[int, int, int]


@dataclass(frozen=True)
class Operand:
    """One tensor of a call: the bytes of its elements, and the name of torch's dtype for them.

    Only what is ``writable`` may be stored to. ``array`` has the tensor's shape, and a dtype of the elements' size.
    """

    array: Array
    dtype: str
    writable: bool = False


@dataclass(frozen=True)
class Expected:
    """A block of the result: the exact values, and by how much each may be off. NaN where the op defines it."""

    exact: Array
    allowed: Array

    def worst(self, got: Array) -> float:
        """The largest error of ``got`` in units of what is allowed; infinite where one is NaN and the other is not."""
        nan = np.isnan(self.exact)
        with np.errstate(all="ignore"):
            error = np.abs(got.astype(np.float64) - self.exact) / self.allowed
        error = np.where(nan, np.where(np.isnan(got), 0.0, np.inf), np.nan_to_num(error, nan=np.inf, posinf=np.inf))
        return float(error.max(initial=0.0))


@dataclass(frozen=True)
class Problem:
    """``label`` tells it from a kernel's others.

    ``call`` is given torch tensors by the names of ``operands`` and calls the op as a server does, below its look-up.
    ``result`` names the operand that it writes, a matrix; ``tile`` are the rows and columns of it that a workgroup
    computes, and ``expected`` gives a block of it, by slices. ``groups`` turns the grid of a launch into the workgroups
    that must be run together to compute a tile, by default each one alone. ``after`` are operands that must hold given
    bytes in the end.
    """

    label: str
    operands: Mapping[str, Operand]
    call: Callable[[Mapping[str, Any]], None]
    result: str
    tile: tuple[int, int]
    expected: Callable[[slice, slice], Expected]
    groups: Callable[[Id], Sequence[Sequence[Id]]] | None = None
    after: Mapping[str, Array] = field(default_factory=dict)
    end: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        rows, columns = self.operands[self.result].array.shape
        return rows, columns

    @property
    def tiles(self) -> int:
        """Tiles that the result has."""
        (rows, columns), (tile_m, tile_n) = self.shape, self.tile
        return -(-rows // tile_m) * -(-columns // tile_n)

    def values(self, result: Array) -> Array:
        """The result's elements as numbers."""
        dtype = self.operands[self.result].dtype
        if dtype == "bfloat16":
            return bf16(result.view(np.uint16))
        return result.view(np.dtype(dtype))

    def written_tile(self, written: Array) -> tuple[slice, slice] | None:
        """The one tile of which all elements, and no others, were written; None where nothing was.

        :raises ExecutionError: anything else was written.
        """
        rows, columns = np.flatnonzero(written.any(axis=1)), np.flatnonzero(written.any(axis=0))
        if not len(rows):
            return None
        (m, n), (tile_m, tile_n) = self.shape, self.tile
        top, left = int(rows[0]) // tile_m * tile_m, int(columns[0]) // tile_n * tile_n
        tile = slice(top, min(top + tile_m, m)), slice(left, min(left + tile_n, n))
        if not written[tile].all() or int(written.sum()) != written[tile].size:
            inside = int(written[tile].sum())
            raise ExecutionError(
                f"{inside} of the {written[tile].size} elements of the tile at row {top}, column {left} are written, "
                f"and {int(written.sum()) - inside} others"
            )
        return tile

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Every tile of the result."""
        (m, n), (tile_m, tile_n) = self.shape, self.tile
        for top in range(0, m, tile_m):
            for left in range(0, n, tile_n):
                yield slice(top, min(top + tile_m, m)), slice(left, min(left + tile_n, n))


@dataclass(frozen=True)
class Outcome:
    """What became of one problem: ``tiles`` of ``of`` tiles were compared; ``worst`` is the largest error, in units of
    the tolerance; ``fault`` says what went wrong otherwise. ``races`` are instructions that did not wait for a load to
    the LDS that they touch: what was compared is what the kernel computes if it wins them."""

    label: str
    tiles: int
    of: int
    worst: float
    seconds: float
    instructions: int = 0
    fault: str | None = None
    races: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the kernel computed what it should, on all that was compared."""
        return self.fault is None and self.tiles > 0 and self.worst <= 1

    def to_json(self) -> dict[str, Any]:
        """As results are kept and sent; an infinite error is null."""
        return {
            "label": self.label,
            "tiles": self.tiles,
            "of": self.of,
            "worst": self.worst if np.isfinite(self.worst) else None,
            "seconds": round(self.seconds, 2),
            "instructions": self.instructions,
            "fault": self.fault,
            "races": list(self.races),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcome:
        """The inverse of :meth:`to_json`."""
        worst = np.inf if value["worst"] is None else value["worst"]
        return cls(**{**value, "worst": worst, "races": tuple(value["races"])})


def output(rows: int, columns: int, dtype: str) -> Operand:
    """A result that nothing was written to yet: NaN all over."""
    bits = np.full((rows, columns), POISON | POISON << 8, np.uint16)
    return Operand(bits, dtype, writable=True)
