"""The reference op as a server calls it: token count to table row to kernel name to launch.

Operands (torch tensors, all contiguous, on one GPU, their storage aligned to 16 bytes):

* x [M, K] float8_e4m3fn, x_scale [M, K/32] E8M0 (uint8 or float8_e8m0fnu)
* w [N, K] float8_e4m3fn, shuffled (16, 16) as :mod:`.kernel` describes
* w_scale [ceil(N/32), K/32] E8M0, one per 32 x 32 block
* y [M, N] bfloat16 = x @ w.T, every product scaled by both its blocks' powers of two, summed in float32

With COMPILE_ONLY=1 FlyDSL compiles and does not launch, and the tensors may be on the CPU.
"""

from __future__ import annotations

import csv
import functools
from importlib.resources import files
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl.utils import env

from ...dispatch.reference_names import check_shape, parse
from ...dispatch.rules import m_candidates
from .kernel import launcher

TABLE = "reference_mxfp8_tuned_gemm.csv"
W_SCALE_BLOCK = "32x32"
MAX_TOKENS = 1 << 26
"""Most rows of x in one call: a launch counts its work-items in 32 bits, and a tile takes up to 32 of them per row."""

_ALIGNMENT = 16
_E8M0 = tuple(d for d in (torch.uint8, getattr(torch, "float8_e8m0fnu", None)) if d is not None)

_compiled: dict[tuple[str, int, int], Any] = {}
"""What FlyDSL compiled in this process, by kernel name, N and K: it skips tracing (0.5.0) and the key (before)."""


def gemm(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    out: torch.Tensor | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """y = x @ w.T, by the kernel that the tuned table gives for x's token count.

    ``out`` is y's memory, new where not given; ``stream`` defaults to the current one. No tokens, no launch.

    Raises ValueError for operands outside the contract, LookupError for a token count or weight that has no row.
    """
    if x.dim() != 2 or w.dim() != 2:
        raise ValueError(f"x and w must be matrices, not of shape {list(x.shape)} and {list(w.shape)}")
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty(m, n, dtype=torch.bfloat16, device=x.device) if out is None else out
    _check(y, x, x_scale, w, w_scale)
    if m == 0:
        return y
    units = compute_units(x.device) if x.is_cuda else None
    name = resolve(m, n, k, units)
    if name is None:
        gpu = "" if units is None else f" on {units} compute units"
        raise LookupError(f"no reference kernel for M={m}, N={n}, K={k}{gpu} in {TABLE}")
    _launch(name, y, x, x_scale, w, w_scale, stream)
    return y


def compute_units(device: torch.device | None = None) -> int:
    """How many compute units a GPU has: this process's current one, if none is named."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def resolve(m: int, n: int, k: int, cu_num: int | None = None) -> str | None:
    """The name of the kernel for ``m`` tokens and a weight [n, k], None where the table has none.

    The row is looked for under m, its fine and its coarse padding, as AITER does (:func:`dispatch.rules.m_candidates`).
    ``cu_num`` are the GPU's compute units, a part of the key as it is AITER's; None stands for those of any row.
    Raises ValueError for an ``m`` below 1.
    """
    by_units = _table().get((n, k), {})
    rows = next(iter(by_units.values()), {}) if cu_num is None else by_units.get(cu_num, {})
    return next((rows[candidate] for candidate in m_candidates(m, n) if candidate in rows), None)


def launch(
    name: str,
    y: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Run the kernel called ``name``, whatever the table says.

    Raises ValueError for a name that is no reference kernel and for operands outside the contract.
    """
    _check(y, x, x_scale, w, w_scale)
    if y.shape[0]:
        _launch(name, y, x, x_scale, w, w_scale, stream)


def _launch(
    name: str,
    y: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    stream: torch.cuda.Stream | None,
) -> None:
    if not (y.is_cuda or env.compile.compile_only):
        raise ValueError(f"the operands are on {y.device}, and the reference kernels run on a GPU")
    run(name, y, x, x_scale, w, w_scale, stream)


def run(
    name: str,
    y: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Launch on operands that are known to be right, wherever they are: a HIP library that emulates takes any."""
    (m, n), k = y.shape, x.shape[1]
    if stream is None and y.is_cuda:
        stream = torch.cuda.current_stream(y.device)
    arguments = (
        *(flyc.from_c_void_p(fx.Uint8, t.data_ptr(), assumed_align=_ALIGNMENT) for t in (y, x, x_scale, w, w_scale)),
        m,
        fx.Stream(0 if stream is None else stream.cuda_stream),
    )
    key = (name, n, k)
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled(*arguments)
        return
    compiled = flyc.compile(launcher(parse(name), n, k), *arguments)  # launches, too
    if compiled is not None:  # None under COMPILE_ONLY
        _compiled[key] = compiled


def _check(y: torch.Tensor, x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> None:
    if x.dim() != 2 or w.dim() != 2:
        raise ValueError(f"x and w must be matrices, not of shape {list(x.shape)} and {list(w.shape)}")
    (m, k), n = x.shape, w.shape[0]
    check_shape(n, k)
    if m > MAX_TOKENS:
        raise ValueError(f"M must be at most {MAX_TOKENS}, not {m}")
    fp8, bf16 = (torch.float8_e4m3fn,), (torch.bfloat16,)
    for name, tensor, shape, dtypes in (
        ("y", y, (m, n), bf16),
        ("x", x, (m, k), fp8),
        ("x_scale", x_scale, (m, k // 32), _E8M0),
        ("w", w, (n, k), fp8),
        ("w_scale", w_scale, (-(-n // 32), k // 32), _E8M0),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, not {list(tensor.shape)}")
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name} must be {' or '.join(map(str, dtypes))}, not {tensor.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x on {x.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous")
        if tensor.data_ptr() % _ALIGNMENT:
            raise ValueError(f"{name} must start at a multiple of {_ALIGNMENT} bytes")


@functools.cache
def _table() -> dict[tuple[int, int], dict[int, dict[int, str]]]:
    """The tuned table: kernel names by (N, K), then by cu_num, then by M."""
    rows: dict[tuple[int, int], dict[int, dict[int, str]]] = {}
    with (files("aiter_flydsl_prebuild.tuned_configs") / TABLE).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["w_scale_block"] == W_SCALE_BLOCK:
                of_layer = rows.setdefault((int(row["N"]), int(row["K"])), {})
                of_layer.setdefault(int(row["cu_num"]), {})[int(row["M"])] = row["kernelName"]
    return rows
