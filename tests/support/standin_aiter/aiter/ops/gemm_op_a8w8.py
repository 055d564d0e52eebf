import csv
import functools
import re

import torch

from ..jit.core import AITER_CONFIGS
from ..jit.utils.chip_info import get_cu_num
from ..jit.utils.chip_info import get_gfx_runtime as get_gfx
from ..utility import dtypes
from .gemm_op_common import get_padded_m


@functools.cache
def _rows(file, last, bmm=None):
    """Rows by their key; two operand contracts share keys, so that one of them is chosen before."""
    with open(file, newline="") as table:
        rows = [row for row in csv.DictReader(table) if bmm is None or (row["kernelId"] == "bmm") == bmm]
    return {tuple(row[key] for key in ("gfx", "cu_num", "M", "N", "K", last)): row for row in rows}


def _find(rows, m, n, k, last):
    for gl in (None, 0, 1):
        padded = m if gl is None else get_padded_m(m, n, k, gl)
        row = rows.get((get_gfx(), str(get_cu_num()), str(padded), str(n), str(k), last))
        if row is not None:
            return row
    return None


@functools.lru_cache(maxsize=1024)
def get_GEMM_config_with_quant_type(M, N, K, q_dtype_w, tuned_file=None):
    return _find(_rows(tuned_file, "q_dtype_w"), M, N, K, str(q_dtype_w))


def reuse_largest_bpreshuffle_config(m, n, k, q_dtype_w, tuned_file):
    wanted = (get_gfx(), str(get_cu_num()), str(n), str(k), str(q_dtype_w))
    rows = {int(key[2]): row for key, row in _rows(tuned_file, "q_dtype_w").items() if key[:2] + key[3:] == wanted}
    return rows[max(rows)] if rows and m > max(rows) else None


def _parse_flydsl_kernel_name(kernel_name):
    return re.fullmatch(r"flydsl_bpreshuflle_\d+x(\d+)x\d+_F8_F8_B16_\d+x\d+x\d+x\d+_default", kernel_name)


def gemm_a8w8_bpreshuffle_flydsl(XQ, WQ, x_scale, w_scale, Out, config):
    name = config["kernelName"]
    if name.startswith("flydsl_bpreshuffle_8w_"):
        from .flydsl.gemm_a8w8_bpreshuffle_8wave import run_gemm_a8w8_bpreshuffle_8wave as run

        return run(XQ, Out, name)
    from .flydsl.gemm_kernels import run_preshuffle

    return run_preshuffle(XQ, Out, int(_parse_flydsl_kernel_name(name)[1]))


def gemm_a8w8_bpreshuffle(XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, check=False):
    (m, k), n = XQ.shape, WQ.shape[0]
    file = AITER_CONFIGS.AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE
    config = get_GEMM_config_with_quant_type(m, n, k, dtypes.fp8, file)
    config = config or reuse_largest_bpreshuffle_config(m, n, k, dtypes.fp8, file)
    if config is None or config["libtype"] != "flydsl":
        raise RuntimeError("module_gemm_a8w8_bpreshuffle is not built")
    return gemm_a8w8_bpreshuffle_flydsl(XQ, WQ, x_scale, w_scale, torch.empty(m, n, dtype=dtype), config)


@functools.lru_cache(maxsize=1024)
def get_mxscale_bpreshuffle_config(m, n, k, w_scale_block, bmm):
    file = AITER_CONFIGS.AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_MXSCALE_BPRESHUFFLE_FILE
    return _find(_rows(file, "w_scale_block", bmm), m, n, k, w_scale_block)


def _gemm_mxscale_bpreshuffle(XQ, WQ, x_scale, w_scale, Y):
    from .flydsl.batched_gemm_a8w8 import run_bmm_a8w8_mxfp8

    (m, k), n = XQ.shape, WQ.shape[0]
    block = f"{n // w_scale.shape[0]}x{k // w_scale.shape[1]}"
    config = get_mxscale_bpreshuffle_config(m, n, k, block, True)
    return run_bmm_a8w8_mxfp8(
        XQ.view(m, 1, k),
        WQ.view(1, n, k),
        x_scale.view(m, 1, -1),
        w_scale.view(1, *w_scale.shape),
        Y.view(m, 1, n),
        kernel_name=None if config is None else config["kernelName"],
        x_scale_transposed=k // x_scale.shape[1] == 128,
    )


def gemm_a8w8_blockscale_bpreshuffle(XQ, WQ, x_scale, w_scale, dtype=torch.bfloat16):
    Y = torch.empty(XQ.shape[0], WQ.shape[0], dtype=dtype)
    return _gemm_mxscale_bpreshuffle(XQ, WQ, x_scale, w_scale, Y)
