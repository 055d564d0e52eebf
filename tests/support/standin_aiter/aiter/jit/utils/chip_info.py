import os


def get_gfx():
    return os.environ["GPU_ARCHS"]


def get_gfx_runtime():
    raise RuntimeError("rocminfo is not there")


def get_cu_num():
    raise RuntimeError("rocminfo is not there")
