"""Sources that misbehave, for ``--source sources_for_tests:NAME`` with this folder on PYTHONPATH."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from aiter_flydsl_prebuild.model.job import Job
from aiter_flydsl_prebuild.sources.reference.source import ReferenceSource

SMALL = (512, 5120)
"""The layer (N, K) whose kernels go wrong."""


class Raises(ReferenceSource):
    """Its kernels for one layer do not compile."""

    def compile(self, job: Job) -> None:
        if (job.shape.n, job.shape.k) == SMALL:
            raise RuntimeError("no such instruction on gfx950")
        super().compile(job)


class Aborts(ReferenceSource):
    """The compiler ends the process for one layer, as LLVM does."""

    def compile(self, job: Job) -> None:
        if (job.shape.n, job.shape.k) == SMALL:
            os.write(2, b"LLVM ERROR: Cannot select: intrinsic\n")
            os.abort()
        super().compile(job)


class Hungry(ReferenceSource):
    """Compiling takes all the memory that the process may have, for one layer."""

    def compile(self, job: Job) -> None:
        if (job.shape.n, job.shape.k) == SMALL:
            with open("/proc/self/statm") as file:
                size = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), resource.RLIM_INFINITY))
            try:
                pieces = []
                while True:
                    pieces.append(bytearray(16 << 20))
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        super().compile(job)


class Hangs(ReferenceSource):
    """Compiling takes for ever; a file ``compiling`` in FlyDSL's cache folder says that it goes on."""

    def compile(self, job: Job) -> None:
        cache = Path(os.environ["FLYDSL_RUNTIME_CACHE_DIR"])
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "compiling").touch()
        time.sleep(600)
