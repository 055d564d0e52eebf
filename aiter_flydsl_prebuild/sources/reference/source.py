"""The reference family as a source of kernels."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...dispatch import reference_names as grammar
from ...dispatch import rules
from ...errors import InputError
from ...model.job import Job, Options
from ...model.shape import Shape
from ..base import Remember, Source

if TYPE_CHECKING:
    from ...execution.problem import Problem

W_SCALE_BLOCK = "32x32"
TABLE = "reference_mxfp8_tuned_gemm.csv"

_PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).parents[2]
_KERNEL_MODULES = ("dispatch/reference_names.py", "sources/reference/kernel.py")
"""What a kernel is made from, below the package."""


def table_path() -> Path:
    """The tuned table of the reference family, as installed."""
    # The package is never imported from a zip: FlyDSL reads kernels' sources as files.
    with as_file(files("aiter_flydsl_prebuild.tuned_configs") / TABLE) as path:
        return path


class ReferenceSource(Source):
    """This project's own MXFP8 GEMM kernels, behind :func:`.dispatch.gemm`."""

    def __init__(self, name: str, options: Options, remember: Remember) -> None:
        super().__init__(name, options, remember)
        self._weights: dict[Shape, tuple[Any, Any]] = {}
        self._live = False

    def tables(self) -> list[Path]:
        return [table_path()]

    def identity(self) -> dict[str, str]:
        return {"version": __version__, "digest": _kernel_sources(), "license": "MIT"}

    package = _PACKAGE
    distribution = "aiter-flydsl-prebuild"

    def bound_files(self, job: Job) -> dict[str, Path]:
        """The kernels' own modules, and the packages of classes that derive from this one."""
        own = {f"{_PACKAGE}/{name}": _ROOT / name for name in _KERNEL_MODULES}
        return {**super().bound_files(job), **own}

    def layer(self, n: int, k: int, block: str | None, arch: str) -> list[Shape]:
        if block not in (None, W_SCALE_BLOCK):
            raise InputError(f"the reference kernels have scale blocks of {W_SCALE_BLOCK} alone, not {block}")
        try:
            grammar.check_shape(n, k)
        except ValueError as error:
            raise InputError(f"the reference kernels: {error}") from error
        return [Shape(rules.MXSCALE_BMM, arch, 0, n, k, W_SCALE_BLOCK, None)]

    def compile(self, job: Job) -> None:
        import torch

        from . import dispatch

        weight, weight_scale = self._weight(job.shape)
        x, x_scale = _activations(1, job.shape.k)
        y = torch.empty(1, job.shape.n, dtype=torch.bfloat16)
        dispatch.launch(job.name, y, x, x_scale, weight, weight_scale)

    def resolve(self, shape: Shape, tokens: int) -> str | None:
        from . import dispatch

        units = dispatch.compute_units() if self._live else shape.cu_num or None
        return dispatch.resolve(tokens, shape.n, shape.k, units)

    def go_live(self, arch: str) -> None:
        self._live = True

    def call(self, shape: Shape, tokens: int) -> None:
        from . import dispatch

        weight, weight_scale = self._weight(shape)
        dispatch.gemm(*_activations(tokens, shape.k), weight, weight_scale)

    def problems(self, job: Job, seed: int) -> Iterator[Problem]:
        from .problems import problems

        return problems(job, seed)

    def _weight(self, shape: Shape) -> tuple[Any, Any]:
        """w [N, K] and w_scale [ceil(N/32), K/32] of one layer, without content."""
        import torch

        if shape not in self._weights:
            self._weights.clear()  # A GPU that serves has room for one.
            self._weights[shape] = (
                torch.empty(shape.n, shape.k, dtype=torch.float8_e4m3fn),
                torch.empty(-(-shape.n // 32), shape.k // 32, dtype=torch.uint8),
            )
        return self._weights[shape]


@functools.cache
def _kernel_sources() -> str:
    digest = hashlib.sha256()
    for module in _KERNEL_MODULES:
        digest.update((_ROOT / module).read_bytes())
    return digest.hexdigest()


def _activations(tokens: int, k: int) -> tuple[Any, Any]:
    """x [M, K] and x_scale [M, K/32] without content."""
    import torch

    return torch.empty(tokens, k, dtype=torch.float8_e4m3fn), torch.empty(tokens, k // 32, dtype=torch.uint8)
