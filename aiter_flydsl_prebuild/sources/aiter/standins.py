"""Importing AITER where there is neither a GPU nor hipcc, and the whole list of what is replaced for that.

1. ``module_aiter_core``, compiled: enumerations that no kernel of these ops sees (:func:`_core_module`).
2. ``get_padded_m``, compiled (module_gemm_common): :func:`dispatch.rules.padded_m`, by this AITER's rule.
3. The device's properties: its arch and its number of compute units (aiter/jit/utils/chip_info.py).
4. The current stream: the null stream.
5. Device allocations: tensors are on the CPU and never written; the counters of a split-K launch too.
6. ROCm's version, which AITER reads when it is imported and needs for building HIP modules only.

Everything else is AITER's own code. Nothing is written into AITER's folders: AITER_JIT_DIR points elsewhere.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...dispatch import rules
from ...errors import PrebuildError
from ...processes import environment
from ...scratch import lasting_scratch_folder
from . import installed
from .tables import private_tables

NO_CU_NUM = 1
"""The number of compute units of a GPU that no table has a row for, as in partition mode."""

_ROCM_VERSION = "7.0.0"


class Device:
    """The GPU that AITER believes it runs on."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.cu_num = NO_CU_NUM


class _Answer:
    """A function that answers for the device; AITER's own remember, and some of its code lets them forget."""

    def __init__(self, device: Device, what: str) -> None:
        self._device, self._what = device, what

    def __call__(self) -> Any:
        return getattr(self._device, self._what)

    def cache_clear(self) -> None:
        """Nothing is remembered."""


@functools.cache
def import_light(arch: str) -> Device:
    """Import AITER for ``arch`` in this process, the way its ahead-of-time compiler does, with the stand-ins in place.

    The device has no row's number of compute units until its ``cu_num`` is set.

    :raises PrebuildError: AITER cannot be imported here; the message says why.
    """
    found = installed.find()
    device = Device(arch)
    scratch = lasting_scratch_folder("aiter")
    os.environ.update(
        # Only what ahead-of-time compiling needs (aiter/__init__.py).
        AITER_AOT_IMPORT="1",
        AITER_JIT_DIR=str(scratch),
        AITER_LOG_LEVEL="ERROR",
        GPU_ARCHS=arch,
        # A GPU of the builder's must not answer for the target.
        HIP_VISIBLE_DEVICES="-1",
        CUDA_VISIBLE_DEVICES="-1",
        **private_tables(found, scratch),
    )
    sys.modules["module_aiter_core"] = _core_module(scratch)
    version = scratch / ".info" / "version"
    version.parent.mkdir()
    version.write_text(_ROCM_VERSION)
    try:
        with environment(ROCM_HOME=str(scratch), ROCM_PATH=str(scratch)):
            importlib.import_module(installed.PACKAGE)
        logging.getLogger(installed.PACKAGE).setLevel(logging.ERROR)
        _replace("jit.utils.chip_info", get_gfx_runtime=_Answer(device, "arch"), get_cu_num=_Answer(device, "cu_num"))
        padding = functools.partial(_padded_m, installed.rule(found))
        _replace("ops.gemm_op_common", get_padded_m=padding)
        _replace_stream()
        importlib.import_module(f"{installed.PACKAGE}.ops.gemm_op_a8w8")
    except PrebuildError:
        raise
    except Exception as error:
        raise PrebuildError(f"AITER cannot be imported here: {type(error).__name__}: {error}") from error
    return device


def import_whole(arch: str) -> Device:
    """Import AITER as a server does, with nothing replaced: for calls on this process's GPU.

    :raises PrebuildError: it cannot be, or it was imported with stand-ins before.
    """
    if import_light.cache_info().currsize:
        raise PrebuildError("AITER was imported with stand-ins in this process, which cannot serve any more")
    try:
        importlib.import_module(f"{installed.PACKAGE}.ops.gemm_op_a8w8")
    except Exception as error:
        raise PrebuildError(f"AITER cannot be imported: {type(error).__name__}: {error}") from error
    return Device(arch)


def split_counters_on_cpu(module: types.ModuleType) -> None:
    """Stand-in 5 for the one allocation that names the device: batched_gemm_a8w8_gfx950.py, _split_counters."""
    import torch

    if hasattr(module, "_split_counters"):
        counters = torch.empty(1, dtype=torch.int32)
        module._split_counters = lambda device, stream: counters  # type: ignore[attr-defined]


def _replace(module: str, **functions: Callable[..., Any]) -> None:
    """Replace functions of one of AITER's modules before another module takes them from it.

    :raises PrebuildError: it lacks one of them.
    """
    found = importlib.import_module(f"{installed.PACKAGE}.{module}")
    for name, function in functions.items():
        if not hasattr(found, name):
            raise PrebuildError(f"this AITER has no {module}.{name}: it is newer, or older, than what is known here")
        setattr(found, name, function)


def _padded_m(rule: str, m: int, n: int, k: int, level: int) -> int:
    return rules.padded_m(m, n, level, rule)


def _replace_stream() -> None:
    import flydsl.expr as fx
    import torch

    def current_stream(device: Any = None) -> Any:
        # A FlyDSL stream, which it keys like torch's; AITER asks for the number too.
        stream = fx.Stream(0)
        stream.cuda_stream = 0
        return stream

    torch.cuda.current_stream = current_stream


def _core_module(folder: Path) -> types.ModuleType:
    """A module whose every attribute is an enumeration, whose every member is there."""
    module = types.ModuleType("module_aiter_core")
    module.__file__ = str(folder / "module_aiter_core.so")
    module.__dict__["__getattr__"] = _enumeration
    return module


@functools.cache
def _enumeration(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    members: dict[str, int] = {}

    class Members(type):
        def __getattr__(cls, member: str) -> int:
            if member.startswith("__"):
                raise AttributeError(member)
            return cls(members.setdefault(member, len(members)))  # type: ignore[no-any-return]

    # AITER leaves out its check of arguments where this is how the text begins (jit/core.py, compile_ops).
    return Members(name, (int,), {"__doc__": "Members:"})
