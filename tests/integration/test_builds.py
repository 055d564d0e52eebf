"""Builds of the reference kernels, and what the commands say of their wheels."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.binding import InstalledCode
from aiter_flydsl_prebuild.compute_units import Serving, serving
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import to_json
from packs import files_of, flydsl_here, forge, make_wheel, pack_in
from processes import SUPPORT, prebuild

HERE = flydsl_here().version


def json_of(path: Path) -> tuple[dict[str, Any], bytes]:
    read = Pack(str(path))
    manifest: dict[str, Any] = to_json(read.manifest)
    return manifest, "".join(read.payloads()).encode()


@pytest.mark.slow
def test_a_build_reports_itself(with_kernels: dict[str, str], tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "dist"), "--report", str(tmp_path / "report"))
    done = prebuild("build", "--tokens", "1..2", *out, environment=with_kernels)
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "report" / "summary.md").read_text()
    assert "✅ proven: 36 dispatches, 0 compiles" in summary
    assert "seconds compiling" in summary
    (wheel,) = (tmp_path / "dist").iterdir()
    again = prebuild("report", str(wheel), "--out", str(tmp_path / "later"), "--json")
    assert [Path(path).name for path in json.loads(again.stdout)["written"]] == [
        "report.html",
        "coverage.png",
        "summary.md",
    ]
    assert "⚪ not proven here" in (tmp_path / "later" / "summary.md").read_text()


@pytest.mark.slow
def test_a_build_that_fails_reports_what_failed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = prebuild(
        *("build", "--source", "sources_for_tests:Raises", "--tokens", "1..4"),
        *("--out", str(tmp_path / "dist"), "--report", str(tmp_path / "report")),
        environment=environment,
    )
    assert done.returncode == 1
    assert not (tmp_path / "dist").exists()
    assert "no such instruction on gfx950" in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.slow
def test_a_build_that_does_not_pass_leaves_nothing(built_reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    shutil.copytree(built_reference / "store" / "kernels", tmp_path / "store" / "kernels")
    arguments = ("build", "--tokens", "1..1", "--store", str(tmp_path / "store"), "--out", str(out))
    done = prebuild(*arguments, "--max-size", "2kB", "--require-coverage", "1..2")
    assert done.returncode == 1
    assert "the gates are not passed (2):" in done.stderr
    assert "  size: " in done.stderr
    assert "  coverage: the kernels were built for tokens 1..1, not for 2" in done.stderr
    assert not out.exists()
    # The pack alone is small enough, the wheel around it is not.
    (kept,) = (tmp_path / "store" / "packs").iterdir()
    between = prebuild(*arguments, "--max-size", f"{kept.stat().st_size}B")
    assert between.returncode == 1
    assert "size: " in between.stderr
    assert not out.exists()
    passed = prebuild(*arguments, "--max-size", "1MB", "--max-spills", "0", "--require-coverage", "1..1", "--json")
    assert passed.returncode == 0, passed.stderr
    (wheel,) = out.iterdir()
    assert prebuild("check", str(wheel), "--max-size", "1MB", "--max-spills", "0").stdout == "all gates are passed\n"
    checked = prebuild("check", str(wheel), "--max-size", "1kB", "--json")
    assert checked.returncode == 1
    assert "more than --max-size allows" in json.loads(checked.stdout)["error"]


def test_a_built_wheel_says_what_it_was_compiled_from(wheel: Path, tmp_path: Path) -> None:
    pack = Pack(str(pack_in(wheel, tmp_path)))
    code = InstalledCode()
    assert len(pack.files) == 2
    assert all(code.digest(path) == digest for path, digest in pack.files)
    assert {pack.manifest.files_of(kernel) for kernel in pack.kernels} == {pack.files}
    ((package, facts),) = pack.manifest.source.packages.items()
    assert (package, facts.distribution, facts.version) == ("aiter_flydsl_prebuild", "aiter-flydsl-prebuild", "0.1.0")


def test_a_build_says_which_rows_lead_to_a_kernel(wheel: Path, tmp_path: Path) -> None:
    pack = Pack(str(pack_in(wheel, tmp_path)))
    assert {k.cu_num for k in pack.kernels} == {(256,)}
    assert serving(pack, [32, 256]) == [Serving(32, 0), Serving(256, len(pack.kernels))]


@pytest.mark.slow
def test_a_wheel_that_pip_would_install_wrongly_is_not_proven(wheel: Path, tmp_path: Path) -> None:
    content = files_of(wheel)
    (name,) = (name for name in content if name.endswith("METADATA"))
    content[name] = content[name].replace(f"flydsl=={HERE}".encode(), b"flydsl==0.3.1")
    bad = make_wheel(tmp_path / wheel.name, content)
    run = prebuild("verify", bad, "--tokens", "1..1", "--json")
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)
    (problem,) = found["wheel_problems"]
    assert problem.startswith("METADATA requires flydsl==0.3.1")
    assert found["proofs"][0]["ok"]
    assert not found["ok"]


@pytest.mark.slow
def test_several_packs_are_proven_one_after_the_other(wheel: Path, tmp_path: Path) -> None:
    """Packs of other tables and for another FlyDSL in one wheel: each is named with its proof."""
    content = files_of(wheel)
    (name,) = (name for name in content if name.endswith(".fkpack"))
    folder = name.rpartition("/")[0]
    (tmp_path / "p.fkpack").write_bytes(content[name])
    more = {}
    for other, change in (("limited", {"tokens": [1, 1]}), ("old", {})):
        manifest, payloads = json_of(tmp_path / "p.fkpack")
        manifest["plan"].update(change)
        if other == "old":
            manifest["flydsl"]["version"] = "0.4.9"
        more[f"{folder}/{other}.fkpack"] = forge(tmp_path / f"{other}.fkpack", manifest, payloads).read_bytes()
    several = make_wheel(tmp_path / wheel.name, {**content, **more})
    main = Path(name).name
    run = prebuild("verify", several, "--pack", main, "--pack", "old.fkpack", "--json")
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)
    (good, old) = found["proofs"]
    assert (good["packs"], good["ok"]) == ([main], True)
    assert (old["packs"], old["ok"]) == (["old.fkpack"], False)
    assert old["problems"] == [
        f"not proven here: its kernels are for flydsl 0.4.9, installed is {HERE}; "
        "where flydsl==0.4.9 is installed, run verify with --pack old.fkpack"
    ]
    assert found["dispatches"] == good["dispatches"] > 0
    assert any("old.fkpack is for flydsl 0.4.9" in line for line in found["wheel_problems"])
    people = prebuild("verify", several, "--pack", "limited.fkpack", "--pack", main)
    lines = people.stdout.splitlines()
    assert [line for line in lines if line.endswith(".fkpack:")] == [f"{main}:", "limited.fkpack:"]
    nobody = prebuild("verify", several, "--pack", "nobody")
    assert nobody.returncode == 2
    assert f"no pack is called nobody; there are {main}, limited.fkpack, old.fkpack" in nobody.stderr


def test_a_wheel_is_identical_to_itself(wheel: Path) -> None:
    same = prebuild("diff", str(wheel), str(wheel), "--exit-code")
    assert same.returncode == 0
    assert same.stdout.startswith("identical; packs of ")
