"""Which kernels of a pack a GPU with a given number of compute units calls.

A kernel runs on every partition of a GPU alike, but AITER's look-up has cu_num in its key: rows that were tuned for
another number are not found, and its heuristic picks, or another library. The manifest tells both: ``plan.shapes`` has
an entry for each (cu_num, layer) with rows, cu_num 0 being what the heuristic serves, on any GPU without rows; a
kernel's own ``cu_num`` says which of these lead to it (packs of earlier versions lack it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .packs.format import Pack

if TYPE_CHECKING:
    from .packs.manifest import PackedKernel

_ANY = 0


class Serving(NamedTuple):
    """How many kernels of a pack a GPU with ``cu_num`` compute units calls."""

    cu_num: int
    kernels: int


def serving(pack: Pack, counts: Sequence[int]) -> list[Serving] | None:
    """For each number of compute units, the kernels that its rows or the heuristic lead to; None where unknown."""
    known = _counts_of_kernels(pack)
    if not counts or known is None:
        return None
    layers = _counts_of_layers(pack)
    found = []
    for count in counts:
        called = 0
        for kernel, theirs in zip(pack.kernels, known, strict=True):
            tuned = count in layers.get(kernel.layer, ())
            called += not theirs or (count if tuned else _ANY) in theirs
        found.append(Serving(count, called))
    return found


def unserved(pack: Pack, counts: Sequence[int]) -> list[tuple[PackedKernel, list[int]]]:
    """Kernels of layers that have rows for other numbers of compute units alone, with those numbers.

    None of them where one of several GPUs has rows for all layers: which one a process will use is not known here.
    """
    layers = _counts_of_layers(pack)
    lost: list[tuple[PackedKernel, list[int]]] = []
    for count in counts:
        lost = []
        for kernel in pack.kernels:
            theirs = layers.get(kernel.layer, {_ANY})
            if theirs.isdisjoint((count, _ANY)):
                lost.append((kernel, sorted(theirs)))
        if not lost:
            break
    return lost


def _counts_of_layers(pack: Pack) -> dict[tuple[Any, ...], set[int]]:
    """The numbers of compute units that a layer has rows for."""
    layers: dict[tuple[Any, ...], set[int]] = {}
    for shape, *_ in pack.manifest.plan.shapes:
        layers.setdefault(tuple(shape.layer().values()), set()).add(shape.cu_num)
    return layers


def _counts_of_kernels(pack: Pack) -> list[Sequence[int]] | None:
    """What leads to each kernel, nothing for one that no table leads to; None where one does not say."""
    layers = _counts_of_layers(pack)
    if not layers:
        return None
    found: list[Sequence[int]] = []
    for kernel in pack.kernels:
        said: Sequence[int] | None = kernel.cu_num
        if said is None:
            theirs = sorted(layers.get(kernel.layer, ()))
            if len(theirs) > 1:
                return None
            said = theirs
        found.append(said)
    return found
