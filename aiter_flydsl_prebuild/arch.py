"""GPU architectures: what differs between them, in one table."""

from __future__ import annotations

from typing import Final, NamedTuple


class Arch(NamedTuple):
    """One architecture.

    ``elf_mach`` is the low byte of the ELF flags of its code objects. ``cu_num`` are the numbers of compute units by
    which AITER tells it in tables without a gfx column (aiter/jit/utils/chip_info.py, gfx_from_cu_num). ``lds`` is the
    LDS of a compute unit in bytes, given out by ``lds_granule`` bytes. ``simds`` and ``waves_per_simd`` say what a
    compute unit holds at most. ``lds_granule`` and ``waves_per_simd`` are None where nothing here has needed them.
    Numbers: llvm/lib/Target/AMDGPU and llvm/include/llvm/BinaryFormat/ELF.h.
    """

    name: str
    elf_mach: int
    wavefront: int
    simds: int
    lds: int
    cu_num: tuple[int, ...] = ()
    lds_granule: int | None = None
    waves_per_simd: int | None = None


_KNOWN: Final = (
    Arch("gfx942", 0x4C, 64, 4, 64 << 10, cu_num=(80, 304), lds_granule=512, waves_per_simd=8),
    Arch("gfx950", 0x4F, 64, 4, 160 << 10, cu_num=(256,), lds_granule=1280, waves_per_simd=8),
    Arch("gfx1250", 0x49, 32, 4, 320 << 10),
)
ARCHES: Final = {arch.name: arch for arch in _KNOWN}


def gfx_of_cu_num(cu_num: int) -> str | None:
    """The arch of a row whose table has no gfx column; None where AITER would ask the GPU it runs on."""
    return next((arch.name for arch in _KNOWN if cu_num in arch.cu_num), None)
