"""How many waves of a kernel fit on a SIMD, from its code object's numbers: the static limit, not a measurement.

On CDNA3 and CDNA4 (gfx942, gfx950), as LLVM has them (llvm/lib/Target/AMDGPU, AMDGPUBaseInfo and GCNSubtarget), the
512 vector registers a lane of a SIMD, accumulation registers included, are given out by 8; the rest is in
:data:`arch.ARCHES`.
"""

from __future__ import annotations

from ...arch import ARCHES

_VGPRS, _VGPR_GRANULE = 512, 8


def waves_per_simd(arch: str, vgpr: int, lds: int, workgroup: int, wavefront: int) -> int | None:
    """Waves of one kernel on a SIMD; None for an arch that is not known here.

    :param vgpr: vector registers of a work-item, accumulation registers included, as ``.vgpr_count`` counts them.
    :param lds: bytes of a workgroup.
    :param workgroup: its work-items, of which a wave has ``wavefront``.
    """
    known = ARCHES.get(arch)
    if known is None or known.waves_per_simd is None or known.lds_granule is None or not wavefront:
        return None
    by_registers = _VGPRS // max(_VGPR_GRANULE, -(-vgpr // _VGPR_GRANULE) * _VGPR_GRANULE)
    if not lds:
        return min(known.waves_per_simd, by_registers)
    groups = known.lds // (-(-lds // known.lds_granule) * known.lds_granule)
    waves = groups * -(-workgroup // wavefront)
    return min(known.waves_per_simd, by_registers, max(1, waves // known.simds) if groups else 0)
