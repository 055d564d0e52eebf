"""AITER's ops: look-up and heuristic of a token count, the wrapper that launches a kernel by name, and the whole call.

An op is known by what the installed AITER has (:attr:`Op.needs`). ``kernel`` calls the wrapper below the look-up, which
is all that a compile needs and all that enters the key; ``call`` calls what a server calls. Both take tensors without
content on torch's default device: the CPU, but for a live op, which runs on a server's GPU and without stand-ins.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ...dispatch import rules
from ...errors import PrebuildError
from ...model.shape import Shape
from . import standins
from .installed import PACKAGE, Installed

GEMM = "ops/gemm_op_a8w8.py"
BMM = "ops/flydsl/batched_gemm_a8w8_gfx950.py"
BMM_RUN = "ops/flydsl/batched_gemm_a8w8.py"
MXPSH = "ops/flydsl/mxscale_preshuffle_kernels.py"
MXPSH_NAMES = "ops/flydsl/gemm_tune/flydsl_gemm_mxscale_preshuffle_common.py"

ON_THE_WAY = (GEMM, "ops/gemm_op_common.py", "jit/utils/chip_info.py")
"""Files that every op's call passes through; the last one says which GPU it is on."""

DTYPES = {"bf16": "bfloat16", "f16": "float16"}
"""Output types by the names that this project's options use."""

FP8 = {"gfx942": "torch.float8_e4m3fnuz"}
FP8_OF_MOST = "torch.float8_e4m3fn"
"""The type of the per-token op's weights by arch, and of every other: AITER's utility/dtypes.py."""

_SCALE_COLUMN_MAJOR = 128
"""K-width of the x scales whose bytes are column-major for more than one row: gemm_op_a8w8.py, _BLOCKSCALE_X_BLOCK."""


class Op(ABC):
    """One operand contract of AITER, in a process where AITER is imported."""

    name: ClassVar[str]
    needs: ClassVar[tuple[tuple[str, str], ...]]
    """(file, text) pairs that an AITER with this op has."""
    modules: ClassVar[tuple[str, ...]]
    """Modules whose import shows that the installed FlyDSL has what the kernels use."""
    arches: ClassVar[tuple[str, ...]]
    """The arches whose path through AITER's op is known here."""
    passed: ClassVar[tuple[str, ...]]
    """Files of AITER that a call passes through on its way to a kernel, below the package."""
    fixed_dtype = True
    """Whether every kernel has one output type (bf16), whatever the caller asks for."""

    @classmethod
    @abstractmethod
    def kernel_files(cls, name: str) -> tuple[str, ...]:
        """The files that make the kernel called ``name``; what these import counts as well."""

    @classmethod
    def lacks(cls, aiter: Installed, shape: Shape) -> str | None:
        """Why this AITER has no such op for a shape, None where it has."""
        if shape.gfx not in cls.arches:
            return f"how AITER runs them on {shape.gfx} is not known here"
        missing = cls._missing(aiter)
        return f"this AITER has no entry point for them ({', '.join(missing)})" if missing else None

    @classmethod
    def here(cls, aiter: Installed) -> bool:
        """Whether this AITER has the op's entry points."""
        return not cls._missing(aiter)

    @classmethod
    def _missing(cls, aiter: Installed) -> list[str]:
        return sorted({module for module, text in cls.needs if not aiter.has(module, text)})

    @classmethod
    def has_heuristic(cls, shape: Shape) -> bool:
        """Whether AITER picks a FlyDSL kernel of this op for token counts that no row serves."""
        return False

    def __init__(self, arch: str, live: bool = False) -> None:
        self.live = live
        self.device = standins.import_whole(arch) if live else standins.import_light(arch)
        self.gemm = importlib.import_module(f"{PACKAGE}.ops.gemm_op_a8w8")
        self._cu_num = self.device.cu_num

    def prepare(self) -> None:
        """Import what FlyDSL may be too old for. Raises what the import raises."""
        for module in self.modules:
            importlib.import_module(f"{PACKAGE}.{module}")

    def on(self, shape: Shape) -> None:
        """Be on the device of a shape: AITER's look-ups remember answers, but not for which device."""
        if self.live:
            return  # the one it is on
        cu_num = shape.cu_num or standins.NO_CU_NUM
        self.device.cu_num = cu_num
        if self._cu_num != cu_num:
            self._cu_num = cu_num
            for remembered in self.lookups():
                remembered.cache_clear()

    def resolve(self, shape: Shape, tokens: int) -> str | None:
        """The FlyDSL kernel that AITER runs, None where it runs another library's."""
        self.on(shape)
        row = self.lookup(shape, tokens)
        if row is None:
            return self.pick(shape, tokens)
        name = str(row["kernelName"])
        return name if row["libtype"] == rules.FLYDSL and self.runs(name) is True else None

    def runs(self, name: str) -> bool | Exception:
        """Whether AITER's op runs a FlyDSL kernel for a name, or what it raises when it is to find out."""
        try:
            return self.decodes(name)
        except Exception as error:
            return error

    @abstractmethod
    def lookups(self) -> list[Any]:
        """AITER's functions that remember what they looked up."""

    @abstractmethod
    def lookup(self, shape: Shape, tokens: int) -> dict[str, Any] | None:
        """AITER's own look-up of the row for a token count."""

    @abstractmethod
    def decodes(self, name: str) -> bool:
        """Whether AITER's op knows what a kernel name means."""

    @abstractmethod
    def kernel(self, name: str, shape: Shape, tokens: int, dtype: str) -> None:
        """Run the kernel called ``name`` through AITER's wrapper. Raises what AITER and FlyDSL raise."""

    @abstractmethod
    def call(self, shape: Shape, tokens: int, dtype: str) -> None:
        """Call the op as a server does. Raises what AITER and FlyDSL raise."""

    def pick(self, shape: Shape, tokens: int) -> str | None:
        """The kernel of AITER's heuristic for a token count without a row; None where it runs another library's."""
        return None

    @classmethod
    def dtypes(cls, name: str, asked: Sequence[str]) -> tuple[str, ...]:
        """The output types that a kernel is built for, where ``asked`` are wanted of ops that have a choice."""
        return ("bf16",)


class PerToken(Op):
    """gemm_a8w8_bpreshuffle: fp8 operands, one fp32 scale per token and per channel."""

    name = rules.BPRESHUFFLE
    needs = (
        (GEMM, "def gemm_a8w8_bpreshuffle("),
        (GEMM, "def gemm_a8w8_bpreshuffle_flydsl("),
        (GEMM, "def get_GEMM_config_with_quant_type("),
    )
    modules = ("ops.flydsl.gemm_kernels",)
    arches = ("gfx942", "gfx950")
    passed = (*ON_THE_WAY, "utility/dtypes.py", "ops/flydsl/gemm_kernels.py", "ops/flydsl/kernels/tensor_shim.py")
    fixed_dtype = False
    eight_waves = "flydsl_bpreshuffle_8w_"

    @classmethod
    def kernel_files(cls, name: str) -> tuple[str, ...]:
        if name.startswith(cls.eight_waves):
            return ("ops/flydsl/gemm_a8w8_bpreshuffle_8wave.py",)
        return ("ops/flydsl/kernels/preshuffle_gemm.py",)

    @classmethod
    def lacks(cls, aiter: Installed, shape: Shape) -> str | None:
        # gemm_a8w8_bpreshuffle refuses every other type of weight; which fp8 it is, utility/dtypes.py says by arch.
        if not str(shape.q_dtype_w).startswith("torch.float8"):
            return f"AITER's op takes no weights of type {shape.q_dtype_w}"
        return super().lacks(aiter, shape)

    def __init__(self, arch: str, live: bool = False) -> None:
        super().__init__(arch, live)
        self._fp8 = importlib.import_module(f"{PACKAGE}.utility.dtypes").fp8
        self._file = str(self.gemm.AITER_CONFIGS.AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE)
        self._reuse = getattr(self.gemm, "reuse_largest_bpreshuffle_config", None)
        self._decoded: dict[str, bool] = {}

    def lookups(self) -> list[Any]:
        return [self.gemm.get_GEMM_config_with_quant_type]

    def lookup(self, shape: Shape, tokens: int) -> dict[str, Any] | None:
        key = (tokens, shape.n, shape.k, self._fp8, self._file)
        row = self.gemm.get_GEMM_config_with_quant_type(*key)
        if row is None and self._reuse is not None:
            row = self._reuse(*key)
        return row  # type: ignore[no-any-return]

    def decodes(self, name: str) -> bool:
        if name not in self._decoded:
            if name.startswith(self.eight_waves):
                module = importlib.import_module(f"{PACKAGE}.ops.flydsl.gemm_a8w8_bpreshuffle_8wave")
                self._decoded[name] = module.parse_8wave_kernel_name(name) is not None
            else:
                self._decoded[name] = self.gemm._parse_flydsl_kernel_name(name) is not None
        return self._decoded[name]

    @classmethod
    def dtypes(cls, name: str, asked: Sequence[str]) -> tuple[str, ...]:
        # gemm_a8w8_bpreshuffle_8wave.py, flydsl_8wave_gemm_a8: any output but bfloat16 is an error.
        return tuple(dtype for dtype in asked if dtype == "bf16" or not name.startswith(cls.eight_waves))

    def kernel(self, name: str, shape: Shape, tokens: int, dtype: str) -> None:
        import torch

        out = torch.empty(tokens, shape.n, dtype=getattr(torch, DTYPES[dtype]))
        x, w, x_scale, w_scale = self._operands(shape, tokens)
        self.run(name, x, w, x_scale, w_scale, out)

    def run(self, name: str, x: Any, w: Any, x_scale: Any, w_scale: Any, out: Any) -> None:
        """Run the kernel called ``name`` on these operands."""
        self.gemm.gemm_a8w8_bpreshuffle_flydsl(x, w, x_scale, w_scale, out, {"kernelName": name})

    def call(self, shape: Shape, tokens: int, dtype: str) -> None:
        import torch

        self.on(shape)
        self.gemm.gemm_a8w8_bpreshuffle(*self._operands(shape, tokens), dtype=getattr(torch, DTYPES[dtype]))

    def _operands(self, shape: Shape, tokens: int) -> tuple[Any, ...]:
        """x [M, K], w [N, K], x_scale [M, 1], w_scale [1, N]."""
        import torch

        return (
            torch.empty(tokens, shape.k, dtype=self._fp8),
            torch.empty(shape.n, shape.k, dtype=self._fp8),
            torch.empty(tokens, 1),
            torch.empty(1, shape.n),
        )


class _Mxscale(Op):
    """What the two contracts of gemm_a8w8_blockscale_bpreshuffle with e8m0 scales share."""

    arches = ("gfx950",)
    passed = ON_THE_WAY
    batched: ClassVar[bool]

    @classmethod
    def kernel_files(cls, name: str) -> tuple[str, ...]:
        return tuple(f"{module.replace('.', '/')}.py" for module in cls.modules)

    def lookups(self) -> list[Any]:
        return [self.gemm.get_mxscale_bpreshuffle_config]

    def lookup(self, shape: Shape, tokens: int) -> dict[str, Any] | None:
        return self.gemm.get_mxscale_bpreshuffle_config(  # type: ignore[no-any-return]
            tokens, shape.n, shape.k, shape.w_scale_block, self.batched
        )

    def call(self, shape: Shape, tokens: int, dtype: str) -> None:
        self.on(shape)
        self.gemm.gemm_a8w8_blockscale_bpreshuffle(*self.operands(shape, tokens))

    @abstractmethod
    def operands(self, shape: Shape, tokens: int) -> tuple[Any, ...]:
        """x, w, x_scale, w_scale."""

    def matrices(self, shape: Shape, tokens: int) -> tuple[Any, Any]:
        """x [M, K] and w [N, K]."""
        import torch

        fp8 = torch.float8_e4m3fn
        return torch.empty(tokens, shape.k, dtype=fp8), torch.empty(shape.n, shape.k, dtype=fp8)


class MxscaleBmm(_Mxscale):
    """Raw scales: the batched GEMM run with B = 1."""

    name = rules.MXSCALE_BMM
    batched = True
    scale_column_major = _SCALE_COLUMN_MAJOR
    needs = (
        (GEMM, "def get_mxscale_bpreshuffle_config("),
        (GEMM, "def _gemm_mxscale_bpreshuffle("),
        (BMM_RUN, "def run_bmm_a8w8_mxfp8("),
        (BMM, "def run_bmm_a8w8_mxfp8_gfx950("),
    )
    modules = ("ops.flydsl.batched_gemm_a8w8", "ops.flydsl.batched_gemm_a8w8_gfx950")

    @classmethod
    def has_heuristic(cls, shape: Shape) -> bool:
        return True

    def prepare(self) -> None:
        super().prepare()
        self._bmm = importlib.import_module(f"{PACKAGE}.ops.flydsl.batched_gemm_a8w8_gfx950")
        if not self.live:
            standins.split_counters_on_cpu(self._bmm)

    def decodes(self, name: str) -> bool:
        return self._bmm.parse_bmm_kernel_name(name) is not None

    def pick(self, shape: Shape, tokens: int) -> str | None:
        # As run_bmm_a8w8_mxfp8_gfx950 asks it: B, M, N, K, the scale blocks, and the layout of x_scale.
        rows, columns = _block(shape)
        transposed = columns == _SCALE_COLUMN_MAJOR and tokens > 1
        try:
            return str(self._bmm.pick_bmm_kernel_name(1, tokens, shape.n, shape.k, columns, rows, columns, transposed))
        except ValueError:
            return None  # no kernel of the family can run the shape, and AITER raises

    def kernel(self, name: str, shape: Shape, tokens: int, dtype: str) -> None:
        import torch

        out = torch.empty(tokens, shape.n, dtype=torch.bfloat16)
        x, w, x_scale, w_scale = self.operands(shape, tokens)
        self.run(name, shape, x, w, x_scale, w_scale, out)

    def run(
        self, name: str, shape: Shape, x: Any, w: Any, x_scale: Any, w_scale: Any, out: Any, counters: Any = None
    ) -> None:
        """Run the kernel called ``name`` on these operands; ``counters`` are zeros for the tiles of a split K."""
        if counters is not None and not self.live:
            setattr(self._bmm, "_split_counters", lambda device, stream: counters)  # noqa: B010
        tokens = x.shape[0]
        runner = importlib.import_module(f"{PACKAGE}.ops.flydsl.batched_gemm_a8w8")
        runner.run_bmm_a8w8_mxfp8(
            x.view(tokens, 1, shape.k),
            w.view(1, shape.n, shape.k),
            x_scale.view(tokens, 1, -1),
            w_scale.view(1, *w_scale.shape),
            out.view(tokens, 1, shape.n),
            kernel_name=name,
            x_scale_transposed=_block(shape)[1] == _SCALE_COLUMN_MAJOR,
        )

    def operands(self, shape: Shape, tokens: int) -> tuple[Any, ...]:
        """x_scale [M, K / block], w_scale [N / rows, K / columns], both e8m0."""
        import torch

        rows, columns = _block(shape)
        e8m0 = torch.float8_e8m0fnu
        x_scale = torch.empty(tokens, shape.k // columns, dtype=e8m0)
        w_scale = torch.empty(-(-shape.n // rows), shape.k // columns, dtype=e8m0)
        return *self.matrices(shape, tokens), x_scale, w_scale


class Mxscale2D(_Mxscale):
    """Pre-shuffled flat scales: the 2D GEMM."""

    name = rules.MXSCALE_2D
    batched = False
    needs = (
        (GEMM, "def get_mxscale_bpreshuffle_config("),
        (GEMM, "def gemm_a8w8_mxscale_preshuffle_flydsl("),
        (MXPSH, "def run_gemm_a8w8_mxscale_preshuffle_gfx950("),
    )
    modules = (
        "ops.flydsl.mxscale_preshuffle_kernels",
        "ops.flydsl.kernels.gemm.mxscale_preshuffle",
        "ops.flydsl.gemm_tune.flydsl_gemm_mxscale_preshuffle_common",
    )

    @classmethod
    def lacks(cls, aiter: Installed, shape: Shape) -> str | None:
        if (reason := super().lacks(aiter, shape)) is not None:
            return reason
        # Which blocks there are is this module's W_SCALE_BLOCKS; before it had that, there was one.
        several = aiter.has(MXPSH_NAMES, "W_SCALE_BLOCKS")
        known = aiter.has(MXPSH_NAMES, f'"{shape.w_scale_block}":') if several else shape.w_scale_block == "128x128"
        return (
            None if known else f"this AITER's kernels of that kind read no {shape.w_scale_block} scales ({MXPSH_NAMES})"
        )

    @classmethod
    def has_heuristic(cls, shape: Shape) -> bool:
        return bool(shape.cu_num)  # on which it depends

    def prepare(self) -> None:
        super().prepare()
        self._kernels = importlib.import_module(f"{PACKAGE}.{self.modules[0]}")
        self._names = importlib.import_module(f"{PACKAGE}.{self.modules[2]}")

    def lookups(self) -> list[Any]:
        return [*super().lookups(), self._kernels._heuristic_tile]  # which asks for the number of compute units

    def decodes(self, name: str) -> bool:
        return self._names.parse_kernel_name(name) is not None

    def pick(self, shape: Shape, tokens: int) -> str | None:
        heuristic: Callable[..., Any] = self._kernels._heuristic_tile
        arguments = ["fp8", "fp8", tokens, shape.n, shape.k]
        if len(inspect.signature(heuristic).parameters) > len(arguments):
            arguments.append(shape.w_scale_block)
        tile = heuristic(*arguments)
        return None if tile is None else str(tile.name)

    def kernel(self, name: str, shape: Shape, tokens: int, dtype: str) -> None:
        import torch

        out = torch.empty(tokens, shape.n, dtype=torch.bfloat16)
        self.gemm.gemm_a8w8_mxscale_preshuffle_flydsl(*self.operands(shape, tokens), out, {"kernelName": name})

    def operands(self, shape: Shape, tokens: int) -> tuple[Any, ...]:
        """Both scales flat and as long as AITER says (mxscale_preshuffle_kernels.py, mxpsh_scale_elems)."""
        import torch

        arguments = [tokens, shape.n, shape.k]
        lengths: Callable[..., tuple[int, int]] | None = getattr(self._kernels, "mxpsh_scale_elems", None)
        if lengths is None:
            raise PrebuildError("this AITER does not say how long pre-shuffled scales are (mxpsh_scale_elems)")
        if len(inspect.signature(lengths).parameters) > len(arguments):
            x_length, w_length = lengths(*arguments, shape.w_scale_block)
        else:
            x_length, w_length = lengths(*arguments)
        e8m0 = torch.float8_e8m0fnu
        return *self.matrices(shape, tokens), torch.empty(x_length, dtype=e8m0), torch.empty(w_length, dtype=e8m0)


OPS: dict[str, type[Op]] = {op.name: op for op in (MxscaleBmm, Mxscale2D, PerToken)}
"""The ops of this source, by the names of :data:`rules.OPS`."""


def _block(shape: Shape) -> tuple[int, int]:
    """Rows and columns of the weight that share a scale."""
    rows, _, columns = str(shape.w_scale_block).partition("x")
    return int(rows), int(columns)
