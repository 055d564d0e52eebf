"""Which GPU architecture this process will use, found without HIP, a subprocess, or an import of FlyDSL."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"

ARCH_VARIABLE = "AITER_FLYDSL_PREBUILD_ARCH"
"""Says the arch by hand, for images that are made without a GPU, and for tests."""


def gfx_name(gfx_target_version: int) -> str:
    """The name behind the kernel driver's number, major * 10000 + minor * 100 + stepping: 90010 is gfx90a."""
    return f"gfx{gfx_target_version // 10000}{gfx_target_version // 100 % 100:x}{gfx_target_version % 100:x}"


def driver_arches(topology: str = _TOPOLOGY) -> list[str]:
    """The arches of the machine's GPUs, each once, in the driver's order; empty without the ROCm kernel driver."""
    arches: list[str] = []
    try:
        nodes = sorted(os.listdir(topology), key=lambda n: (len(n), n))
    except OSError:
        return arches
    for node in nodes:
        try:
            with open(os.path.join(topology, node, "properties"), encoding="ascii") as file:
                properties = dict(line.split(None, 1) for line in file if " " in line)
            version = int(properties.get("gfx_target_version", "0"))
        except (OSError, ValueError):
            continue
        # A CPU node has no gfx version.
        if version and (name := gfx_name(version)) not in arches:
            arches.append(name)
    return arches


def environment_arch(environ: Mapping[str, str]) -> str | None:
    """The arch that FlyDSL takes from the environment, as it reads it, or None.

    FlyDSL: ``compiler/backends/rocm.py`` detect_target (ARCH first), ``runtime/device.py`` get_rocm_arch
    (FLYDSL_GPU_ARCH, then HSA_OVERRIDE_GFX_VERSION as ``9.5.0`` or as a name). An ARCH that names no AMD GPU is some
    other program's.
    """
    arch = environ.get("ARCH", "")
    if arch.startswith("gfx"):
        return arch
    value = (environ.get("FLYDSL_GPU_ARCH") or environ.get("HSA_OVERRIDE_GFX_VERSION") or "").lower()
    if value.startswith("gfx"):
        return value
    return f"gfx{value.replace('.', '')}" if value.count(".") == 2 else None


def target_arches(environ: Mapping[str, str] = os.environ, topology: str = _TOPOLOGY) -> list[str]:
    """The arches to seed for: said by hand, else by FlyDSL's own setting, else those of the GPUs; may be empty."""
    if by_hand := environ.get(ARCH_VARIABLE, "").strip():
        return [arch.strip() for arch in by_hand.split(",") if arch.strip()]
    if arch := environment_arch(environ):
        return [arch]
    return driver_arches(topology)
