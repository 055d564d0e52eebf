"""How many waves of a kernel fit on a SIMD, from its code object's numbers: the static limit, not a measurement.

CDNA3 and CDNA4 (gfx942, gfx950), as LLVM has them (llvm/lib/Target/AMDGPU, AMDGPUBaseInfo and GCNSubtarget): a SIMD
holds at most 8 waves; its 512 vector registers a lane, accumulation registers included, are given out by 8; a CU has
four SIMDs and 64 KiB of LDS (gfx950: 160 KiB), given out by 512 bytes (gfx950: 1280).
"""

from __future__ import annotations

MAX_WAVES = 8
_VGPRS, _VGPR_GRANULE = 512, 8
_SIMDS = 4
_LDS = {"gfx942": (64 << 10, 512), "gfx950": (160 << 10, 1280)}


def waves_per_simd(arch: str, vgpr: int, lds: int, workgroup: int, wavefront: int) -> int | None:
    """Waves of one kernel on a SIMD; None for an arch that is not known here.

    :param vgpr: vector registers of a work-item, accumulation registers included, as ``.vgpr_count`` counts them.
    :param lds: bytes of a workgroup.
    :param workgroup: its work-items, of which a wave has ``wavefront``.
    """
    if arch not in _LDS or not wavefront:
        return None
    by_registers = _VGPRS // max(_VGPR_GRANULE, -(-vgpr // _VGPR_GRANULE) * _VGPR_GRANULE)
    size, granule = _LDS[arch]
    if not lds:
        return min(MAX_WAVES, by_registers)
    groups = size // (-(-lds // granule) * granule)
    waves = groups * -(-workgroup // wavefront)
    return min(MAX_WAVES, by_registers, max(1, waves // _SIMDS) if groups else 0)
