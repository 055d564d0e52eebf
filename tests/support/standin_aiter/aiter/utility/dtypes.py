import torch

from ..jit.utils.chip_info import get_gfx_runtime
from ..ops.enum import ActivationType

NAMES = {ActivationType.Silu: "silu", ActivationType.Swiglu: "swiglu"}
fp8 = {"gfx950": torch.float8_e4m3fn}[get_gfx_runtime()]
