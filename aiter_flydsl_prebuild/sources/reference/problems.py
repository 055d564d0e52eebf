"""What the reference kernels compute, in numpy: operands, layouts, tolerance.

The contract is that of :mod:`.dispatch`. Nothing of :mod:`.kernel` is used here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...dispatch.reference_names import parse
from ...execution import gemm
from ...execution.problem import Operand, Problem, output
from ...model.job import Job

_BLOCK = 32


def problems(job: Job, seed: int) -> Iterator[Problem]:
    """A single row, two tiles of which the second is ragged, and NaN in an operand and in a scale."""
    tile_m = parse(job.name).tile_m
    yield _problem(job, 1, seed, end=True)
    yield _problem(job, gemm.ragged(tile_m), seed, end=False)
    yield _problem(job, tile_m, seed, end=True, nan=True)


def _problem(job: Job, m: int, seed: int, *, end: bool, nan: bool = False) -> Problem:
    from . import dispatch

    config, n, k = parse(job.name), job.shape.n, job.shape.k
    random = np.random.default_rng([seed, m, n, k, nan])
    x = gemm.fp8(random, m, k, nan_at=(m - 1, k - 1) if nan else None)
    w = gemm.fp8(random, n, k, nan_at=(n - 1, 0) if nan else None)
    x_scale = gemm.block_scales(random, m, k // _BLOCK)
    w_scale = gemm.block_scales(random, -(-n // _BLOCK), k // _BLOCK)
    if nan:
        w_scale[0, 0] = 255

    def call(tensors: Mapping[str, Any]) -> None:
        dispatch.run(job.name, *(tensors[name] for name in ("y", "x", "x_scale", "w", "w_scale")))

    return Problem(
        label=f"M={m}{', with NaN' if nan else ''}",
        operands={
            "y": output(m, n, "bfloat16"),
            "x": Operand(x, "float8_e4m3fn"),
            "x_scale": Operand(x_scale, "uint8"),
            "w": Operand(gemm.shuffled(w), "float8_e4m3fn"),
            "w_scale": Operand(w_scale, "uint8"),
        },
        call=call,
        result="y",
        tile=(config.tile_m, config.tile_n),
        expected=gemm.Product(
            gemm.scaled_rows(x, x_scale, _BLOCK), gemm.scaled_blocks(w, w_scale, _BLOCK, _BLOCK), k, "bfloat16"
        ),
        end=end,
    )
