from .batched_gemm_a8w8_gfx950 import run_bmm_a8w8_mxfp8_gfx950


def run_bmm_a8w8_mxfp8(XQ, WQ, x_scale, w_scale, Out, kernel_name=None, x_scale_transposed=False):
    return run_bmm_a8w8_mxfp8_gfx950(XQ, WQ, x_scale, w_scale, Out, kernel_name, x_scale_transposed)
