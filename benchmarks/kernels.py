"""Made-up kernels with the sizes and the likeness of real ones, for the benchmarks that need no compiler.

A real payload is MLIR text of 8 to 40 KB; nine tenths of it are a code object as an escaped string, and the kernels of
one family share most of their bytes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from packs import make_compiled, make_pack

FAMILIES = 12


def texts(count: int) -> Iterator[str]:
    """The texts of ``count`` kernels; each differs from its family in one byte of some sixty."""
    rng = random.Random(0)
    families = [_code(rng, rng.randrange(4_500, 21_000)) for _ in range(FAMILIES)]
    for index in range(count):
        code = bytearray(families[index % FAMILIES])
        for _ in range(len(code) // 60):
            code[rng.randrange(len(code))] = rng.randrange(256)
        image = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in code)
        yield (
            "module attributes {gpu.container_module} {\n  llvm.func @gemm(%arg0: !llvm.ptr, %arg1: i32) attributes "
            f"{{llvm.emit_c_interface}} {{\n    llvm.return\n  }}\n  gpu.binary @kernels_{index} "
            f'[#gpu.object<#rocdl.target<chip = "gfx950">, kernels = <[]>, bin = "{image}">]\n}}\n'
        )


def _code(rng: random.Random, size: int) -> bytes:
    # Instructions out of a small set, as in unrolled loops, with operands that vary.
    words = [rng.randbytes(6) for _ in range(120)]
    return b"".join(rng.choice(words) + bytes([rng.randrange(64), 0]) for _ in range(size // 8))


def make(path: Path, count: int) -> Path:
    """A pack of ``count`` kernels for the FlyDSL that is installed."""
    return make_pack(path, [make_compiled(f"kernel_{i}", text) for i, text in enumerate(texts(count))])
