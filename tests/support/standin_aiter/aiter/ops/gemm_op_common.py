def get_padded_m(M, N, K, gl):
    raise RuntimeError("module_gemm_common is not built")
