from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiter_flydsl_prebuild import seed, status
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain
from aiter_flydsl_prebuild.target import driver_arches, environment_arch, featured, gfx_name, target_arches
from packs import make_compiled, make_pack
from processes import SUPPORT, flydsl_environment, run_python


def make_topology(root: Path, versions: list[int]) -> str:
    for number, version in enumerate(versions):
        node = root / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nsimd_count 1024\n")
    return str(root)


@pytest.mark.parametrize(
    ("number", "name"), [(90500, "gfx950"), (90402, "gfx942"), (90010, "gfx90a"), (120001, "gfx1201")]
)
def test_gfx_name(number: int, name: str) -> None:
    assert gfx_name(number) == name


def test_every_kind_of_gpu_is_named_once_and_cpus_are_not(tmp_path: Path) -> None:
    topology = make_topology(tmp_path, [0, 90500, 90500, 90402])
    assert driver_arches(topology) == ["gfx950", "gfx942"]


def test_no_driver(tmp_path: Path) -> None:
    assert driver_arches(str(tmp_path / "none")) == []


def test_a_broken_node_is_passed_over(tmp_path: Path) -> None:
    topology = make_topology(tmp_path, [90500])
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "properties").write_text("gfx_target_version many\n")
    assert driver_arches(topology) == ["gfx950"]


@pytest.mark.parametrize(
    ("environ", "arch"),
    [
        ({}, None),
        ({"FLYDSL_GPU_ARCH": "gfx950"}, "gfx950"),
        ({"FLYDSL_GPU_ARCH": "GFX950"}, "gfx950"),
        ({"ARCH": "gfx942", "FLYDSL_GPU_ARCH": "gfx950"}, "gfx942"),
        ({"ARCH": "x86_64"}, None),
        ({"HSA_OVERRIDE_GFX_VERSION": "9.5.0"}, "gfx950"),
        ({"HSA_OVERRIDE_GFX_VERSION": "gfx950"}, "gfx950"),
        ({"HSA_OVERRIDE_GFX_VERSION": "9.5"}, None),
        ({"FLYDSL_GPU_ARCH": "gfx950:sramecc+:xnack-"}, "gfx950"),
        ({"FLYDSL_GPU_ARCH": "gfx1250-strict"}, "gfx1250-strict"),
    ],
)
def test_environment_arch(environ: dict[str, str], arch: str | None) -> None:
    assert environment_arch(environ) == arch


def test_an_arch_by_hand_comes_first(tmp_path: Path) -> None:
    topology = make_topology(tmp_path, [90402])
    assert target_arches({}, topology) == ["gfx942"]
    assert target_arches({"FLYDSL_GPU_ARCH": "gfx950"}, topology) == ["gfx950"]
    assert target_arches({"AITER_FLYDSL_PREBUILD_ARCH": "gfx90a, gfx950", "ARCH": "gfx942"}, topology) == [
        "gfx90a",
        "gfx950",
    ]


FEATURED = "gfx950:sramecc+:xnack-"
READERS = ("ARCH", "FLYDSL_GPU_ARCH", "HSA_OVERRIDE_GFX_VERSION")


@pytest.mark.parametrize("variable", READERS)
def test_flydsl_refuses_features_in_a_variable_and_the_loader_says_so(
    variable: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    environment = flydsl_environment(toolchain, tmp_path / "flydsl")
    del environment["FLYDSL_GPU_ARCH"]
    refused = run_python([str(SUPPORT / "tiny.py")], {**environment, variable: FEATURED})
    assert "Invalid chipset name" in refused.stderr, "FlyDSL takes such a name now: seed for it"

    pack = make_pack(tmp_path / "a.fkpack", [make_compiled()])
    environ = {variable: FEATURED, "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache")}
    line = f"{variable}={FEATURED}: FlyDSL refuses an arch with features; set it to gfx950"
    assert featured(environ) == line
    report = seed(packs=[str(pack)], environ=environ)
    assert (report.arches, report.kernels) == (["gfx950"], 0)
    assert report.problems == [f"prebuilt kernels are not used: {line}"]
    assert status(environ=environ)["defeated_by"] == line
    assert seed(packs=[str(pack)], environ={**environ, variable: "gfx950"}).kernels == 1


@pytest.mark.slow
def test_features_of_the_gpu_itself_are_dropped_by_flydsl(toolchain: Toolchain, tmp_path: Path) -> None:
    """As rocm_agent_enumerator prints them; the loader reads its own variable in the same way."""
    script = tmp_path / "bin" / "rocm_agent_enumerator"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho gfx000\necho {FEATURED}\n")
    script.chmod(0o755)
    environment = flydsl_environment(toolchain, tmp_path / "flydsl")
    path = os.pathsep.join([str(script.parent), environment["PATH"]])
    named = run_python([str(SUPPORT / "tiny.py")], environment)
    asked = {name: value for name, value in environment.items() if name != "FLYDSL_GPU_ARCH"} | {"PATH": path}
    assert named.returncode == 0
    assert run_python([str(SUPPORT / "tiny.py")], asked).stdout == named.stdout
    assert target_arches({"AITER_FLYDSL_PREBUILD_ARCH": f"{FEATURED}, gfx942:xnack-,gfx950"}) == ["gfx950", "gfx942"]
    assert featured({"AITER_FLYDSL_PREBUILD_ARCH": FEATURED}) is None
