import enum
import os


class OpKind(enum.Enum):
    """What there is."""

    MOE = "moe"
    NOTHING = "nothing"


def cu_num_to_arch(cu_num, default="gfx950"):
    return {80: "gfx942", 256: "gfx950"}.get(cu_num, default)


def _collect_aot_jobs_for(kind):
    print("collecting")
    if kind is OpKind.NOTHING:
        return []
    jobs = [{"kernel_name": "flydsl_moe1", "cu_num": 256, "tile": tile, "experts": 8} for tile in (32, 64)]
    return [*jobs, {"kernel_name": "flydsl_moe1", "cu_num": 80, "tile": 32, "experts": 8}]


def _compile_one_config_for(kind):
    return compile_one_config


def compile_one_config(kernel_name, cu_num, tile, experts):
    import flydsl.expr as fx
    import torch

    from aiter.ops.flydsl.kernels.preshuffle_gemm import launch_bmm, pointer

    os.environ["COMPILE_ONLY"] = "1"
    try:
        launch_bmm(pointer(torch.empty(1)), 1, fx.Stream(0), experts * tile, tile, False)
    except Exception as error:
        print(f"  [FAIL] compile {kernel_name}: {error}")
        return {"kernel_name": kernel_name, "compile_time": None}
    return {"kernel_name": kernel_name, "compile_time": 0.1}
