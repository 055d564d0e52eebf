import functools
import re

import torch

from aiter.jit.utils.chip_info import get_gfx

from .kernels.preshuffle_gemm import launch_bmm, pointer


def parse_bmm_kernel_name(name):
    return re.fullmatch(r"flydsl_bmm_mxfp8_mfma_t\d+x(\d+)x\d+_w1x1_nb4_sk(\d+)", name)


@functools.lru_cache(maxsize=1024)
def pick_bmm_kernel_name(b, m, n, k, x_scale_k=32, w_scale_n=32, w_scale_k=32, x_scale_transposed=False):
    if k > 16384:
        raise ValueError("no kernel config runs this shape")
    return f"flydsl_bmm_mxfp8_mfma_t{16 if m <= 16 else 64}x32x256_w1x1_nb4_sk{2 if m < 100 else 1}"


def _split_counters(device, stream):
    return torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")


def run_bmm_a8w8_mxfp8_gfx950(XQ, WQ, x_scale, w_scale, Out, kernel_name=None, x_scale_transposed=False):
    assert get_gfx() == "gfx950"
    (m, b, k), n = XQ.shape, WQ.shape[1]
    blocks = (k // x_scale.shape[2], n // w_scale.shape[1], k // w_scale.shape[2])
    transposed = x_scale_transposed and m > 1
    match = parse_bmm_kernel_name(kernel_name or pick_bmm_kernel_name(b, m, n, k, *blocks, transposed))
    stream = torch.cuda.current_stream(XQ.device)
    if int(match[2]) > 1:
        _split_counters(XQ.device.index, stream.cuda_stream)
    launch_bmm(pointer(XQ), m, stream, n * int(match[2]), int(match[1]), transposed)
    return Out
