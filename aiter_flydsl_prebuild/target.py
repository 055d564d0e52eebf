"""Which GPU architecture this process will use, found without HIP, a subprocess, or an import of FlyDSL."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"

ARCH_VARIABLE = "AITER_FLYDSL_PREBUILD_ARCH"
"""Says the arch by hand, for images that are made without a GPU, and for tests."""

FEATURES = ":"
"""What separates an arch from its features in a target ID (``gfx950:sramecc+:xnack-``), as ROCm's tools print it."""

# AITER jit/utils/chip_info.py, get_cu_num_custom_op: what it takes before it asks rocminfo.
_UNITS_VARIABLE = "CU_NUM"


class Target:
    """What this process compiles for.

    ``units`` maps an arch to the numbers of compute units of its GPUs here, ascending: several on a node whose GPUs are
    partitioned in different ways. An arch is not in it where the driver does not tell, or where the arch was set by
    hand: then the target may be another machine.
    """

    def __init__(self, arches: list[str], units: dict[str, list[int]]) -> None:
        self.arches = arches
        self.units = units


def gfx_name(gfx_target_version: int) -> str:
    """The name behind the kernel driver's number, major * 10000 + minor * 100 + stepping: 90010 is gfx90a."""
    return f"gfx{gfx_target_version // 10000}{gfx_target_version // 100 % 100:x}{gfx_target_version % 100:x}"


def driver_arches(topology: str = "") -> list[str]:
    """The arches of the machine's GPUs, each once, in the driver's order; empty without the ROCm kernel driver."""
    return list(dict.fromkeys(arch for arch, _ in _gpus(topology)))


def _gpus(topology: str) -> Iterator[tuple[str, int]]:
    """Arch and number of compute units of each GPU; 0 where the driver does not tell.

    The number as rocminfo prints it, where AITER reads it: SIMDs by SIMDs per compute unit (ROCR, amd_gpu_agent.cpp,
    HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT). Each partition of a GPU is a node with its own share of them.
    """
    topology = topology or _TOPOLOGY
    try:
        nodes = sorted(os.listdir(topology), key=lambda n: (len(n), n))
    except OSError:
        return
    for node in nodes:
        try:
            with open(os.path.join(topology, node, "properties"), encoding="ascii") as file:
                properties = dict(line.split(None, 1) for line in file if " " in line)
            version = int(properties.get("gfx_target_version", "0"))
        except (OSError, ValueError):
            continue
        # A CPU node has no gfx version.
        if version:
            yield gfx_name(version), _units(properties)


def _units(properties: Mapping[str, str]) -> int:
    try:
        return max(0, int(properties["simd_count"]) // int(properties["simd_per_cu"]))
    except (KeyError, ValueError, ZeroDivisionError):
        return 0


def arch_setting(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that names the arch to FlyDSL, and the arch as FlyDSL reads it; None where it asks the GPU.

    FlyDSL: ``compiler/backends/rocm.py`` detect_target (ARCH first), ``runtime/device.py`` get_rocm_arch
    (FLYDSL_GPU_ARCH, then HSA_OVERRIDE_GFX_VERSION as ``9.5.0`` or as a name). An ARCH that names no AMD GPU is some
    other program's.
    """
    arch = environ.get("ARCH", "")
    if arch.startswith("gfx"):
        return "ARCH", arch
    name = "FLYDSL_GPU_ARCH" if environ.get("FLYDSL_GPU_ARCH") else "HSA_OVERRIDE_GFX_VERSION"
    value = environ.get(name, "").lower()
    if value.startswith("gfx"):
        return name, value
    return (name, f"gfx{value.replace('.', '')}") if value.count(".") == 2 else None


def environment_arch(environ: Mapping[str, str]) -> str | None:
    """The arch that FlyDSL takes from the environment, without features, or None."""
    setting = arch_setting(environ)
    return None if setting is None else setting[1].split(FEATURES)[0]


def featured(environ: Mapping[str, str]) -> str | None:
    """What to change where a variable names the arch with features, under which FlyDSL compiles nothing; else None.

    Every FlyDSL from 0.3.1 to 0.5.0 takes a variable's value as it stands into its keys and to MLIR's chipset parser,
    which refuses it ("Invalid chipset name"); only a name that comes from rocm_agent_enumerator loses its features
    (``runtime/device.py``, _arch_from_hardware).
    """
    setting = arch_setting(environ)
    if setting is None or FEATURES not in setting[1]:
        return None
    name, arch = setting
    return f"{name}={environ[name]}: FlyDSL refuses an arch with features; set it to {arch.split(FEATURES)[0]}"


def read_target(environ: Mapping[str, str] = os.environ, topology: str = "") -> Target:
    """The arches to seed for: set by hand, else by FlyDSL's own setting, else those of the GPUs; may be none."""
    if by_hand := environ.get(ARCH_VARIABLE, "").strip():
        names = [arch.split(FEATURES)[0].strip() for arch in by_hand.split(",")]
        return Target([name for name in dict.fromkeys(names) if name], {})
    gpus = list(_gpus(topology))
    arch = environment_arch(environ)
    arches = [arch] if arch else list(dict.fromkeys(name for name, _ in gpus))
    said = environ.get(_UNITS_VARIABLE, "")
    units = {}
    for name in arches:
        counts = sorted({count for one, count in gpus if one == name})
        if counts and said.isdigit() and int(said):
            counts = [int(said)]
        if counts and counts[0]:
            units[name] = counts
    return Target(arches, units)


def target_arches(environ: Mapping[str, str] = os.environ, topology: str = "") -> list[str]:
    """The arches of :func:`read_target`."""
    return read_target(environ, topology).arches
