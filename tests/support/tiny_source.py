"""The kernel of tiny.py as a source, for builds with a FlyDSL that is too old for the reference kernels."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from aiter_flydsl_prebuild.model.job import Job
from aiter_flydsl_prebuild.model.shape import Shape
from aiter_flydsl_prebuild.sources.base import Source


class TinySource(Source):
    """One kernel; keeps a copy of what FlyDSL left for it in the folder that ORIGINALS names."""

    def tables(self) -> list[Path]:
        return []

    def identity(self) -> dict[str, str]:
        return {"digest": "tiny", "version": "1", "license": "MIT"}

    def resolve(self, shape: Shape, tokens: int) -> str | None:
        return "tiny"

    def compile(self, job: Job) -> None:
        self.call(job.shape, 5)
        shutil.copytree(os.environ["FLYDSL_RUNTIME_CACHE_DIR"], os.environ["ORIGINALS"])

    def call(self, shape: Shape | None, tokens: int) -> None:
        import flydsl.compiler as flyc
        import flydsl.expr as fx

        import tiny

        tiny.tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), tokens, fx.Stream(0))
