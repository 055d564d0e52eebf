"""Warming on a machine without a GPU: real packs, the real FlyDSL. test_matrix.py has the part with a launch."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain
from aiter_flydsl_prebuild.packs.format import Pack
from packs import make_compiled, make_job, make_pack, pack_in
from processes import ARCH, SUPPORT, flydsl_environment, run_python

# None in sys.modules makes an import fail: what only the build half needs is not there.
SERVER = """
import sys
for name in ("elftools", "msgpack", "pebble", "rich", "setuptools", "tomli"):
    sys.modules[name] = None
import aiter_flydsl_prebuild
report = aiter_flydsl_prebuild.warm()
print(report.ok, report.launched, len(report.calls), report.compiled)
"""


@pytest.fixture(scope="module")
def pack(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_in(wheel, tmp_path_factory.mktemp("pack"))


@pytest.fixture
def environment(toolchain: Toolchain, tmp_path: Path) -> dict[str, str]:
    variables = flydsl_environment(toolchain, tmp_path / "cache", AITER_FLYDSL_PREBUILD_ARCH=ARCH)
    del variables["COMPILE_ONLY"], variables["FLYDSL_GPU_ARCH"]
    return variables


def run(environment: dict[str, str], *arguments: str, packs: Path) -> subprocess.CompletedProcess[str]:
    environment = {**environment, "AITER_FLYDSL_PREBUILD_PACKS": str(packs), "PYTHONPATH": str(SUPPORT)}
    return run_python(["-m", "aiter_flydsl_prebuild", *arguments], environment)


@pytest.mark.slow
def test_every_kernel_is_called_and_status_tells_what_it_took(environment: dict[str, str], pack: Path) -> None:
    before = run(environment, "status", packs=pack)
    assert "not measured here: aiter-flydsl-prebuild warm" in before.stdout
    warmed = run(environment, "warm", "--json", packs=pack)
    assert warmed.returncode == 0, warmed.stderr
    report = json.loads(warmed.stdout)
    kernels = len(Pack(str(pack)).kernels)
    assert (len(report["calls"]), report["compiled"], report["launched"]) == (kernels, 0, False)
    assert f"{kernels} of {kernels} kernels" in warmed.stderr
    found = json.loads(run(environment, "status", "--json", packs=pack).stdout)["first_calls"]
    assert (found["kernels"], found["launched"]) == (kernels, False)
    assert found["seconds"] == pytest.approx(sum(call["seconds"] for call in report["calls"]), abs=0.01)
    assert "on the host alone" in run(environment, "status", packs=pack).stdout


@pytest.mark.slow
def test_a_server_needs_none_of_the_builds_packages(environment: dict[str, str], pack: Path) -> None:
    done = run_python(["-c", SERVER], {**environment, "AITER_FLYDSL_PREBUILD_PACKS": str(pack)})
    assert done.stdout == f"True False {len(Pack(str(pack)).kernels)} 0\n", done.stderr


@pytest.mark.slow
def test_what_cannot_be_called_is_said_and_raises_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    packs.mkdir()
    (packs / "damaged.fkpack").write_bytes(b"no pack")
    foreign = replace(make_compiled("foreign"), job=replace(make_job("foreign"), source="tiny_source:TinySource"))
    make_pack(packs / "foreign.fkpack", [foreign])
    make_pack(packs / "unknown.fkpack", [make_compiled("refgemm_mxfp8_t16x128_w1x4_d4")])
    done = run(environment, "warm", "--json", packs=packs)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    said = "\n".join(report["problems"])
    assert "not a pack of FlyDSL kernels" in said
    assert "tiny_source:TinySource is not a source of this project; it has to be named as trusted" in said
    # A key that FlyDSL does not compute for that kernel: it was compiled, and that is no success.
    ((call,), compiled) = report["calls"], report["compiled"]
    assert (call["kernel"].split()[0], call["error"], compiled) == ("refgemm_mxfp8_t16x128_w1x4_d4", None, 1)
    assert json.loads(run(environment, "status", "--json", packs=packs).stdout)["first_calls"] is None


@pytest.mark.slow
def test_without_packs_there_is_nothing_to_call(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, "warm", packs=tmp_path)
    assert done.stdout == "nothing to call: no installed pack has kernels for this machine\n", done.stderr
    assert done.returncode == 0
