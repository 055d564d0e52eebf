"""The launcher of a GPU, on a machine without one: a HIP library stands in that runs each launch on the emulator.

``execute_on_gpu.py PACK FOLDER``: the smallest kernel of a pack on two problems, and on a third whose call also writes
to an operand that it may only read. Prints the outcomes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

PACK, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
os.environ |= {
    "FLYDSL_RUNTIME_CACHE_DIR": str(FOLDER / "cache"),
    "FLYDSL_RUNTIME_RUN_ONLY": "1",
    "FLYDSL_GPU_ARCH": "gfx950",
    "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
    "AITER_FLYDSL_PREBUILD_PACKS": str(PACK),
}

import numpy as np  # noqa: E402

from aiter_flydsl_prebuild.execution import hip  # noqa: E402
from aiter_flydsl_prebuild.execution.image import Image  # noqa: E402
from aiter_flydsl_prebuild.execution.launchers import OnGpu  # noqa: E402
from aiter_flydsl_prebuild.execution.machine import Launch, Machine, all_workgroups, argument_bytes  # noqa: E402
from aiter_flydsl_prebuild.execution.memory import Memory, Region  # noqa: E402
from aiter_flydsl_prebuild.execution.problem import Problem  # noqa: E402
from aiter_flydsl_prebuild.execution.program import Program  # noqa: E402
from bench import emulator  # noqa: E402

library = hip.build(FOLDER)
tinygrad = emulator()
tensors_now: Mapping[str, Any] = {}


def launched(image: bytes, name: str, sizes: list[int], lds: int, parameters: int) -> None:
    import torch

    program = Program(Image(image), tinygrad)
    memory = Memory()
    for label, tensor in tensors_now.items():
        data = tensor.view(torch.uint8).numpy().reshape(-1)
        memory.add(Region(label, data.ctypes.data, data, np.zeros(data.size, bool)))
    grid = (sizes[0], sizes[1], sizes[2])
    arguments = argument_bytes(program.image.kernel(name), parameters)
    launch = Launch(name, grid, (sizes[3], sizes[4], sizes[5]), lds, arguments)
    Machine(program, launch, memory).run(all_workgroups(grid))


host = hip.Host(library, launched)

from aiter_flydsl_prebuild.packs.format import Pack  # noqa: E402
from aiter_flydsl_prebuild.seeding import seed  # noqa: E402
from aiter_flydsl_prebuild.sources import load_source  # noqa: E402
from aiter_flydsl_prebuild.sources.base import job_of  # noqa: E402

assert not seed(packs=[str(PACK)], mode="on").problems
source = load_source("reference")
pack = Pack(str(PACK))
kernel = min(pack.kernels, key=lambda one: (one.n or 0) * (one.k or 0))
code = [code.code_object_sha256 for code in kernel.code]


def watched(problem: Problem, spoil: bool = False) -> Problem:
    def call(tensors: Mapping[str, Any]) -> None:
        global tensors_now
        tensors_now = tensors
        problem.call(tensors)
        host.check()
        if spoil:
            import torch

            tensors["x"].view(torch.uint8)[-1, -1] += 1

    return replace(problem, call=call)


first, second, _ = source.problems(job_of(pack.manifest, kernel), 0)
launcher = OnGpu(device="cpu")
problems = (watched(first), watched(second), watched(first, spoil=True))
print(json.dumps([launcher.run(problem, code).to_json() for problem in problems]))
