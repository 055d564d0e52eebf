"""Shapes: the layers of a model, as AITER's tuned tables tell them apart, and what a kernel of one is called."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

LAYER: Final = ("op", "n", "k", "w_scale_block", "q_dtype_w")
"""What tells one kernel of a name from another, in manifests and results."""


class Shape(NamedTuple):
    """What a look-up is made for: one linear layer on one kind of GPU under one operand contract.

    ``op`` is one of :data:`dispatch.rules.OPS`, or :data:`dispatch.rules.BLOCKSCALE`. ``n`` and ``k`` are the weight's
    rows and columns; ``w_scale_block`` is set for mxscale tables, ``q_dtype_w`` for per-token tables. ``cu_num`` is 0
    for GPUs that no row is for.
    """

    op: str
    gfx: str
    cu_num: int
    n: int
    k: int
    w_scale_block: str | None
    q_dtype_w: str | None

    def layer(self) -> dict[str, Any]:
        """What is the same on every GPU of an arch: what it computes, by the names of :data:`LAYER`."""
        return {name: getattr(self, name) for name in LAYER}

    @property
    def label(self) -> str:
        """What the shape is called in messages and pictures."""
        return f"{_layer_label(**self.layer())}, {self.cu_num or 'other'} CUs"


def kernel_label(
    name: str, op: str, n: int | None, k: int | None, w_scale_block: str | None, q_dtype_w: str | None
) -> str:
    """What a kernel is called in every message and result: its name and all of :data:`LAYER` that applies to it.

    No two kernels of a pack have the same.
    """
    return f"{name} ({_layer_label(op, n, k, w_scale_block, q_dtype_w)})"


def _layer_label(op: str, n: int | None, k: int | None, w_scale_block: str | None, q_dtype_w: str | None) -> str:
    parts = [("N=", n), ("K=", k), ("scales ", w_scale_block), ("weights ", q_dtype_w)]
    return ", ".join([*(f"{what}{value}" for what, value in parts if value is not None), op])
