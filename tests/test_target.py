from __future__ import annotations

from pathlib import Path

import pytest

from aiter_flydsl_prebuild.target import driver_arches, environment_arch, gfx_name, target_arches


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
