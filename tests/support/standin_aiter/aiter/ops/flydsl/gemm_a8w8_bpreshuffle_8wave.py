import re

import flydsl.expr as fx
import torch

from .kernels.preshuffle_gemm import launcher, pointer


def parse_8wave_kernel_name(name):
    return re.fullmatch(r"flydsl_bpreshuffle_8w_\d+x(\d+)x128_F8_F8_B16_\d+x\d+", name)


def run_gemm_a8w8_bpreshuffle_8wave(XQ, Out, name):
    if Out.dtype != torch.bfloat16:
        raise ValueError(f"only bf16 output is supported, got {Out.dtype}")
    # Like AITER's, the kernel is the same for every N.
    launcher(4096, int(parse_8wave_kernel_name(name)[1]), 3)(
        pointer(XQ), XQ.shape[0], fx.Stream(torch.cuda.current_stream(device=XQ.device))
    )
    return Out
