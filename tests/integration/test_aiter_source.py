"""AITER as a source: against the stand-in package of these tests, and against a real checkout where AITER_SOURCE is."""

from __future__ import annotations

import csv
import ctypes
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

import aiter_checkout
from aiter_flydsl_prebuild.builder.proof.proof import open_subject
from aiter_flydsl_prebuild.dispatch import rules
from aiter_flydsl_prebuild.errors import CheckError, InputError
from aiter_flydsl_prebuild.model.job import Options
from aiter_flydsl_prebuild.model.shape import Shape
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import to_json
from aiter_flydsl_prebuild.sources import load_source
from aiter_flydsl_prebuild.sources.aiter import installed, needs, ops, tables
from aiter_flydsl_prebuild.sources.aiter.source import counts_to_compile, model_lists
from processes import SUPPORT, flydsl_environment, prebuild, run_python

STANDIN = SUPPORT / "standin_aiter"
PER_TOKEN, MXSCALE = (family.variable for family in tables.FAMILIES)


def environment(checkout: Path, **more: str) -> dict[str, str]:
    """The tests' environment with an AITER to import and no variables of its tables but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AITER_CONFIG_")}
    return {**kept, "PYTHONPATH": str(checkout), **more}


def run(
    command: str,
    *arguments: str | Path,
    checkout: Path = STANDIN,
    status: int = 0,
    python: str = sys.executable,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A command with --json, which must end with ``status``; what it printed."""
    called = ["-m", "aiter_flydsl_prebuild", command, *map(str, arguments), "--json"]
    done = run_python(called, environment(checkout, **variables), python)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def names(reach: Any, **wanted: Any) -> list[str]:
    """The kernels of the one shape with these fields."""
    (shape,) = (s for s in reach["shapes"] if all(s[key] == value for key, value in wanted.items()))
    return [kernel["name"] for kernel in shape["kernels"]]


def manifest_of(wheel: Path, folder: Path) -> dict[str, Any]:
    """The manifest of a wheel's one pack."""
    (pack,) = open_subject(wheel, folder).packs
    found: dict[str, Any] = to_json(Pack(str(pack)).manifest)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A wheel of the stand-in's kernels, and what build said."""
    out = tmp_path_factory.mktemp("aiter")
    arguments = ("--source", "aiter", "--tokens", "1..64", "--models", "none", "--dtypes", "bf16", "f16", "--out", out)
    result = run("build", *arguments)
    return Path(result["wheel"]), result


# ---- the installation, without importing it --------------------------------------------------------------------------


def test_the_files_are_those_that_aiter_would_merge(tmp_path: Path) -> None:
    aiter = installed.Installed(STANDIN / "aiter")
    family = tables.FAMILIES[0]
    found = tables.family_files(aiter, family, {})
    assert [path.name for path in found] == [
        "a8w8_bpreshuffle_tuned_gemm.csv",
        "a8w8_bpreshuffle_tuned_gemm_small.csv",
    ]
    mine = tmp_path / "mine.csv"
    mine.write_text("gfx\n")
    assert tables.family_files(aiter, family, {PER_TOKEN: f"{mine}:{tmp_path / 'gone.csv'}"}) == [mine]
    with pytest.raises(InputError, match=f"a8w8_bpreshuffle_tuned_gemm.csv .{PER_TOKEN}"):
        tables.table_files(aiter, [rules.BPRESHUFFLE], {PER_TOKEN: str(tmp_path / "gone.csv")})


def test_a_private_copy_holds_every_row_and_the_tables_stay_as_they_are(tmp_path: Path) -> None:
    aiter = installed.Installed(STANDIN / "aiter")
    before = {path: path.read_bytes() for path in STANDIN.rglob("*.csv")}
    variables = tables.private_tables(aiter, tmp_path, {})
    with open(variables[PER_TOKEN], newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert {row["gfx"] for row in rows} == {"gfx950"}  # one file has no gfx column
    # One file needs no merging, so that AITER may read it where it is.
    assert variables[MXSCALE].startswith(str(STANDIN))
    assert before == {path: path.read_bytes() for path in STANDIN.rglob("*.csv")}


def test_the_digest_is_that_of_the_kernel_sources(tmp_path: Path) -> None:
    shutil.copytree(STANDIN, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "build"))
    aiter = installed.Installed(tmp_path / "copy" / "aiter")
    first = installed.identity(aiter)
    assert first["version"] == "unknown"
    (aiter.package / "_version.py").write_text("version = '0.1.9.dev3+gabc1234.d20260822'\n")
    described = installed.identity(aiter)
    assert described == {**first, "version": "0.1.9.dev3+gabc1234.d20260822", "commit": "abc1234"}
    (aiter.package / "ops" / "gemm_op_a8w8.py").write_text("")
    assert installed.identity(aiter)["digest"] == first["digest"]
    (aiter.package / "ops" / "flydsl" / "kernels.py").write_text("")
    assert installed.identity(aiter)["digest"] != first["digest"]


def test_the_padding_rule_is_read_from_its_source(tmp_path: Path) -> None:
    assert installed.rule(installed.Installed(STANDIN / "aiter")) == "newest"
    source = tmp_path / "aiter_meta" / "csrc" / "py_itfs_cu" / "gemm_common.cu"
    source.parent.mkdir(parents=True)
    source.write_text("if(M <= 256) { padded_m = (M + 15) / 16 * 16; }")
    assert installed.rule(installed.Installed(tmp_path / "aiter")) == "august"


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_compiled_padding_that_disagrees_is_an_error(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    def padded(m: int, n: int, k: int, level: int) -> int:
        return rules.padded_m(m, n, level, "newest")

    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(getPaddedM=padded))
    if rule == "newest":
        installed.check_padding(Path("module_gemm_common.so"), rule)
    else:
        with pytest.raises(CheckError, match="pads M=1, N=4096 to 1 at level 0, the rule august to 16"):
            installed.check_padding(Path("module_gemm_common.so"), rule)


def test_a_compiled_padding_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    module = tmp_path / "module_gemm_common.so"
    module.write_bytes(b"nothing")
    with pytest.raises(CheckError, match="cannot be loaded"):
        installed.check_padding(module, "newest")


def test_every_kernel_that_a_name_can_mean_is_compiled() -> None:
    assert counts_to_compile([(1, 8192)]) == [1, 2, 17]
    assert counts_to_compile([(3, 3), (40, 50), (20, 30)]) == [3, 20]
    assert counts_to_compile([(1, 1)]) == [1]


def test_options_are_checked() -> None:
    asked = Options(("mxscale_bmm", "moe3"), ("f32",), ("deepseek-v9",))
    with pytest.raises(InputError) as caught:
        load_source("aiter", asked)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "the source aiter does not know kinds 'moe3'",
        "the source aiter does not know dtypes 'f32'",
        "the source aiter does not know models 'deepseek-v9'",
    ]
    with pytest.raises(InputError, match="the source reference has no kinds"):
        load_source("reference", Options(kinds=("mxscale_bmm",)))
    assert Options.from_json(json.loads(json.dumps(asked.to_json()))) == asked
    assert Options.from_json({}) == replace(asked, kinds=(), dtypes=(), models=())


# ---- the stand-in package --------------------------------------------------------------------------------------------


def test_no_aiter(tmp_path: Path) -> None:
    if importlib.util.find_spec("aiter"):
        pytest.skip("an AITER is installed here")
    found = run("plan", "--source", "aiter", checkout=tmp_path, status=2)
    assert "AITER is not installed" in found["error"]


@pytest.mark.slow
def test_the_plan_has_the_heuristic_and_says_what_it_leaves_out() -> None:
    plan = run("plan", "--source", "aiter", "--tokens", "1..128")
    assert plan["rule"] == "newest"
    # Untuned token counts of a tuned shape, and every token count on a GPU that no row is for.
    pick = "flydsl_bmm_mxfp8_mfma_t{}x32x256_w1x1_nb4_sk{}"
    tuned = names(plan, op="mxscale_bmm", cu_num=256, w_scale_block="32x32")
    assert {pick.format(16, 2), pick.format(64, 2), pick.format(64, 1)} < set(tuned)
    layers = {(shape["n"], shape["k"]) for shape in plan["shapes"] if shape["cu_num"] == 0}
    assert layers == {(shape["n"], shape["k"]) for shape in model_lists()["deepseek-v4.1"]["shapes"]}
    anywhere = next(shape for shape in plan["shapes"] if shape["cu_num"] == 0)
    assert [(k["name"], k["tokens"]) for k in anywhere["kernels"]] == [
        (pick.format(16, 2), [[1, 16]]),
        (pick.format(64, 2), [[17, 99]]),
        (pick.format(64, 1), [[100, 128]]),
    ]
    assert all(not shape["uncovered"] for shape in plan["shapes"] if shape["op"] == "mxscale_bmm")
    (left_out,) = plan["left_out"]
    assert (left_out["op"], left_out["kernels"], left_out["shapes"]) == ("mxscale_2d", 1, 1)
    assert "no entry point" in left_out["reason"]
    assert "mxscale_preshuffle_kernels.py" in left_out["reason"]


UNKNOWN_NAME = "flydsl_bpreshuffle_4w_16x64x256_F8_F8_B16"
SPLIT_NAME = "flydsl_bpreshuflle_16x64x256_F8_F8_B16_1x0x0x2_default_ks4"
"""A name that newer AITERs decode, and the stand-in does not."""
FIVE_PARTS = "flydsl_bpreshuflle_16x64x512_F8_F8_B16_2x0x1x4x0_default"
"""A name in the stand-in's table that no AITER decodes."""


def unusual_rows(folder: Path) -> Path:
    """The stand-in's table with a row of a new family, and one that this AITER gives to another library."""
    table = STANDIN / "aiter" / "configs" / "a8w8_bpreshuffle_tuned_gemm.csv"
    mine = folder / "mine.csv"
    row = "gfx950,256,{},256,512,torch.float8_e4m3fn,flydsl,1,0,1.5,{},1,1,0\n"
    mine.write_text(table.read_text() + row.format(4, UNKNOWN_NAME) + row.format(8, SPLIT_NAME))
    return mine


@pytest.mark.slow
def test_rows_that_cannot_be_built_are_skipped_by_name(tmp_path: Path) -> None:
    """One row does not stop the others: plan, build and manifest name it, and the numbers are of what is built."""
    variables = {PER_TOKEN: str(unusual_rows(tmp_path))}
    arguments = ("--source", "aiter", "--tokens", "1..64", "--kinds", "a8w8_bpreshuffle", "--cu-num", "256")
    plan = run("plan", *arguments, variables=variables)
    built = run("build", *arguments, "--out", tmp_path / "dist", variables=variables)
    assert plan["distinct_kernels"] == built["kernels"] == 2
    assert [len(shape["kernels"]) for shape in plan["shapes"]] == [2]
    assert sorted(plan["shapes"][0]["skipped"], key=lambda one: one["tokens"][0])[:2] == [
        {"name": UNKNOWN_NAME, "reason": "unknown", "tokens": [[3, 4]]},
        {"name": SPLIT_NAME, "reason": "undecodable", "tokens": [[5, 8]]},
    ]
    (left_out,) = plan["left_out"]
    assert left_out["names"] == [UNKNOWN_NAME]
    assert left_out["reason"] == "no kernel family known here has such names"
    assert plan["undecodable"] == built["undecodable"] == [SPLIT_NAME, FIVE_PARTS]
    assert built["left_out"] == plan["left_out"]
    assert built["proof"]["ok"]
    described = manifest_of(Path(built["wheel"]), tmp_path)["plan"]
    assert (described["left_out"], described["undecodable"]) == (plan["left_out"], plan["undecodable"])
    said = prebuild("plan", *arguments, environment=environment(STANDIN, **variables)).stdout
    assert f"skipped: a8w8_bpreshuffle: 1 kernels of 1 shapes: {left_out['reason']}: {UNKNOWN_NAME}" in said
    assert f"no kernels of 2 names that AITER cannot decode, for which it runs another library: {SPLIT_NAME}" in said
    assert "\n2 distinct kernels" in said


@pytest.mark.slow
def test_what_this_aiter_decodes_is_built_whatever_is_known_of_its_name(tmp_path: Path) -> None:
    shutil.copytree(STANDIN, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "build"))
    module = tmp_path / "copy" / "aiter" / "ops" / "gemm_op_a8w8.py"
    module.write_text(module.read_text().replace('_default"', '_default(?:_ks4)?(?:_new_x2)?"'))
    table = unusual_rows(tmp_path)
    table.write_text(table.read_text().replace(UNKNOWN_NAME, SPLIT_NAME.replace("_ks4", "_new_x2")))
    arguments = ("--source", "aiter", "--tokens", "1..64", "--kinds", "a8w8_bpreshuffle", "--cu-num", "256")
    plan = run("plan", *arguments, checkout=tmp_path / "copy", variables={PER_TOKEN: str(table)})
    assert (plan["distinct_kernels"], plan["left_out"], plan["undecodable"]) == (4, [], [FIVE_PARTS])


@pytest.mark.slow
def test_everything_that_aiter_imports_and_lacks_is_one_list(tmp_path: Path) -> None:
    """The import stops at the first of them, and FlyDSL is not blamed."""
    shutil.copytree(STANDIN, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "build"))
    for module, name in (("jit/core.py", "absent_one"), ("ops/flydsl/gemm_kernels.py", "absent_two.part as part")):
        path = tmp_path / "copy" / "aiter" / module
        path.write_text(f"import {name}\n{path.read_text()}")
    path.write_text(path.read_text() + "\n\n@part.decorated\nclass Derived(part.Base): ...\n")
    arguments = ("--source", "aiter", "--tokens", "1..8")
    lines = [
        f"AITER ({tmp_path / 'copy' / 'aiter'}) imports what is not installed here: absent_one, absent_two",
        "  pip install absent_one absent_two",
    ]
    for command in (("plan",), ("build", "--out", tmp_path / "dist")):
        assert run(*command, *arguments, checkout=tmp_path / "copy", status=1)["problems"] == lines
    found = run("doctor", "--source", "aiter", checkout=tmp_path / "copy", status=1)["findings"]
    (imports,) = (one for one in found if one["name"] == "AITER's imports")
    assert [imports["status"], imports["detail"], f"  {imports['advice']}"] == ["missing", *lines]


@pytest.mark.slow
def test_the_flydsl_that_aiter_pins_is_named(tmp_path: Path) -> None:
    shutil.copytree(STANDIN, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "build"))
    (tmp_path / "copy" / "setup.py").write_text('FLYDSL_VERSION = "flydsl==0.0.7"\n')
    aiter = installed.Installed(tmp_path / "copy" / "aiter")
    assert needs.pinned_flydsl(aiter) == "flydsl==0.0.7"
    assert needs.requirements(aiter) == ["torch", "flydsl==0.0.7", "packaging", "pandas", "triton", "einops", "psutil"]
    module = aiter.package / "ops" / "flydsl" / "batched_gemm_a8w8_gfx950.py"
    module.write_text("from flydsl.expr import not_there_yet\n" + module.read_text())
    plan = run("plan", "--source", "aiter", "--tokens", "1..8", checkout=tmp_path / "copy")
    reasons = {one["op"]: one["reason"] for one in plan["left_out"]}
    assert reasons["mxscale_bmm"].endswith(f"it is {metadata.version('flydsl')}, and this AITER pins flydsl==0.0.7")


@pytest.mark.slow
def test_the_doctor_examines_aiter(tmp_path: Path) -> None:
    findings = {one["name"]: one for one in run("doctor", "--source", "aiter")["findings"]}
    assert str(STANDIN / "aiter") in findings["AITER"]["detail"]
    assert findings["AITER's FlyDSL"]["detail"] == "this AITER pins none"
    assert findings["AITER's imports"]["status"] == findings["kernels of a8w8_bpreshuffle"]["status"] == "ok"
    assert findings["kernels of mxscale_2d"]["detail"] == "this AITER has none"
    done = prebuild("doctor", "--source", "aiter", "--requirements", environment=environment(STANDIN))
    assert done.stdout.split() == ["torch", "flydsl", "packaging", "pandas", "triton", "einops", "psutil"]
    if not importlib.util.find_spec("aiter"):
        found = run("doctor", "--source", "aiter", checkout=tmp_path, status=1)["findings"]
        assert ("AITER", "missing") in [(one["name"], one["status"]) for one in found]


@pytest.mark.slow
def test_what_a_layer_gets_that_no_table_has() -> None:
    """The heuristic's kernels, beside a table's where a table has some of the token counts."""
    arguments = ("--source", "aiter", "--tokens", "1..128", "--shape", "640,5120,128x128", "--shape", "512,5120,32x32")
    found = run("plan", *arguments)
    pick = "flydsl_bmm_mxfp8_mfma_t{}x32x256_w1x1_nb4_sk{}"
    untuned, tuned = found["shapes"]
    assert [(kernel["name"], kernel["tokens"]) for kernel in untuned["kernels"]] == [
        (pick.format(16, 2), [[1, 16]]),
        (pick.format(64, 2), [[17, 99]]),
        (pick.format(64, 1), [[100, 128]]),
    ]
    assert (untuned["cu_num"], untuned["heuristic"], untuned["uncovered"]) == (256, [[1, 128]], [])
    assert (tuned["n"], tuned["heuristic"]) == (512, [[2, 4], [9, 128]])
    assert [one["op"] for one in found["left_out"]] == ["mxscale_2d"]
    lines = prebuild("plan", *arguments, environment=environment(STANDIN)).stdout.splitlines()
    assert lines[0] == "mxscale_bmm, gfx950, 256 CUs: N=640, K=5120, scales 128x128"
    assert lines[1] == f"  1..16  {pick.format(16, 2)}, by the heuristic"
    # A number of compute units that no row has, and an op without a heuristic.
    found = run("plan", "--source", "aiter", "--shape", "256,512", "--cu-num", "64", "--tokens", "1..8")
    (entry,) = found["shapes"]
    assert (entry["cu_num"], entry["q_dtype_w"]) == (64, "torch.float8_e4m3fn")
    assert (entry["kernels"], entry["uncovered"]) == ([], [[1, 8]])


@pytest.mark.slow
def test_kinds_choose_tables_and_shapes() -> None:
    plan = run("plan", "--source", "aiter", "--tokens", "1..8", "--kinds", "a8w8_bpreshuffle")
    assert {shape["op"] for shape in plan["shapes"]} == {"a8w8_bpreshuffle"}
    assert plan["left_out"] == []


@pytest.mark.slow
def test_a_flydsl_that_is_too_old_leaves_the_family_out(tmp_path: Path) -> None:
    shutil.copytree(STANDIN, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "build"))
    module = tmp_path / "copy" / "aiter" / "ops" / "flydsl" / "batched_gemm_a8w8_gfx950.py"
    module.write_text("from flydsl.expr import not_there_yet\n" + module.read_text())
    plan = run("plan", "--source", "aiter", "--tokens", "1..8", checkout=tmp_path / "copy")
    reasons = {one["op"]: one["reason"] for one in plan["left_out"]}
    assert "the installed FlyDSL lacks what they use" in reasons["mxscale_bmm"]
    assert "not_there_yet" in reasons["mxscale_bmm"]
    assert {shape["op"] for shape in plan["shapes"]} == {"a8w8_bpreshuffle"}
    only = ("--kinds", "mxscale_bmm")
    found = run("build", "--source", "aiter", *only, "--out", tmp_path, checkout=tmp_path / "copy", status=2)
    assert any("skipped: mxscale_bmm" in problem for problem in found["problems"])


@pytest.mark.slow
def test_the_proof_goes_through_the_ops(built: tuple[Path, Any], tmp_path: Path) -> None:
    wheel, result = built
    proof = result["proof"]
    assert proof["ok"]
    assert proof["dispatches"] == 5 * 64
    assert proof["compiled"] == 0
    assert proof["misses"] == []
    kernels = {(k["name"], k["n"], k["w_scale_block"]): k for k in manifest_of(wheel, tmp_path)["kernels"]}
    assert len(kernels) == result["kernels"] == 12
    # Two output types of the per-token op, but of the eight-wave kernels one, which is said.
    assert len(kernels["flydsl_bpreshuflle_16x64x256_F8_F8_B16_1x0x0x2_default", 256, None]["entries"]) == 2
    assert len(kernels["flydsl_bpreshuffle_8w_256x256x128_F8_F8_B16_1x4", 256, None]["entries"]) == 1
    reasons = {one["op"]: one["reason"] for one in result["left_out"]}
    assert reasons["a8w8_bpreshuffle"] == "AITER cannot run them with output type float16"
    # Both layouts of 128-wide x scales where one row and more rows share a name.
    assert len(kernels["flydsl_bmm_mxfp8_mfma_t16x32x256_w1x1_nb4_sk1", 512, "128x128"]["entries"]) == 2
    assert len(kernels["flydsl_bmm_mxfp8_mfma_t16x32x256_w1x1_nb4_sk1", 512, "32x32"]["entries"]) == 1


@pytest.mark.slow
def test_the_manifest_says_which_aiter(built: tuple[Path, Any], tmp_path: Path) -> None:
    manifest = manifest_of(built[0], tmp_path)
    assert manifest["source"]["name"] == "aiter"
    assert manifest["source"]["digest"] == installed.identity(installed.Installed(STANDIN / "aiter"))["digest"]
    assert manifest["plan"]["options"] == {"kinds": [], "dtypes": ["bf16", "f16"], "models": ["none"]}
    assert manifest["plan"]["left_out"] == built[1]["left_out"]
    assert manifest["plan"]["rule"] == "newest"


@pytest.mark.slow
def test_it_holds_in_another_process_and_compiles_without_the_wheel(built: tuple[Path, Any]) -> None:
    assert run("verify", built[0])["ok"]
    cold = run("verify", built[0], "--cold")
    assert cold["ok"]
    assert cold["compiled"] > 0


@pytest.mark.slow
def test_other_kinds_go_through_aiters_own_jobs(tmp_path: Path) -> None:
    arguments = ("--source", "aiter", "--tokens", "1..8", "--kinds", "moe", "nothing")
    plan = run("plan", *arguments)
    assert [name.split("#")[0] for name in plan["beside_tables"]] == ["flydsl_moe1", "flydsl_moe1"]
    assert plan["shapes"] == []
    assert [(one["op"], one["reason"]) for one in plan["left_out"]] == [("nothing", "AITER has no job for this arch")]
    result = run("build", *arguments, "--out", tmp_path)
    assert result["kernels"] == result["proof"]["kernels"] == 2
    assert result["proof"]["ok"]
    assert {kernel["op"] for kernel in manifest_of(Path(result["wheel"]), tmp_path)["kernels"]} == {"moe"}


@pytest.mark.slow
def test_another_aiter_is_said(built: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(STANDIN, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "build"))
    with (tmp_path / "copy" / "aiter" / "ops" / "flydsl" / "kernels.py").open("a") as file:
        file.write("# changed\n")
    found = run("verify", built[0], checkout=tmp_path / "copy", status=1)
    assert any("is not the one that the kernels were built from" in problem for problem in found["problems"])


def test_tables_that_aiter_would_rewrite_are_refused(tmp_path: Path) -> None:
    table = STANDIN / "aiter" / "configs" / "a8w8_bpreshuffle_tuned_gemm.csv"
    other = tmp_path / "other.csv"
    other.write_text(
        table.read_text().replace(",1.5,flydsl_bpreshuflle_16x64x256", ",0.5,flydsl_bpreshuflle_32x64x256")
    )
    before = other.read_bytes(), table.read_bytes()
    variables = {PER_TOKEN: f"{table}{os.pathsep}{other}"}
    kinds = ("--kinds", "a8w8_bpreshuffle")
    found = run("plan", "--source", "aiter", *kinds, status=2, variables=variables)
    assert "AITER's merge would keep" in found["error"]
    assert (other.read_bytes(), table.read_bytes()) == before


# ---- a real AITER ----------------------------------------------------------------------------------------------------

real = pytest.mark.skipif(
    "AITER_SOURCE" not in os.environ, reason="AITER_SOURCE does not name an AITER checkout to test against"
)


@pytest.fixture
def checkout() -> Path:
    return aiter_checkout.source()


@pytest.fixture
def few_rows(tmp_path: Path) -> Path:
    return aiter_checkout.small_table(tmp_path)


@pytest.mark.parametrize(
    ("names", "block", "reason"),
    [
        ('W_SCALE_BLOCKS = {"128x128": 1, "1x32": 2}', "32x32", "read no 32x32 scales"),
        ('W_SCALE_BLOCKS = {"128x128": 1, "1x32": 2}', "128x128", None),
        ("", "128x128", None),
        ("", "32x32", "read no 32x32 scales"),
    ],
)
def test_rows_whose_scales_the_2d_kernels_do_not_read(
    names: str, block: str, reason: str | None, tmp_path: Path
) -> None:
    package = tmp_path / "aiter"
    texts = {
        ops.GEMM: "def get_mxscale_bpreshuffle_config(\ndef gemm_a8w8_mxscale_preshuffle_flydsl(\n",
        ops.MXPSH: "def run_gemm_a8w8_mxscale_preshuffle_gfx950(\n",
        ops.MXPSH_NAMES: names,
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    shape = Shape(rules.MXSCALE_2D, "gfx950", 256, 512, 5120, block, None)
    said = ops.Mxscale2D.lacks(installed.Installed(package), shape)
    assert (said is None) == (reason is None)
    assert reason is None or reason in str(said)


# A server on an MI355X with 256 compute units, but for the GPU: what AITER asks of it is answered here, and every call
# ends at FlyDSL's look-up.
SERVER = """
import os, sys
from pathlib import Path
from aiter_flydsl_prebuild.sources.aiter import installed, standins, tables
os.environ.update(AITER_AOT_IMPORT="1", COMPILE_ONLY="1", GPU_ARCHS="gfx950")
os.environ.update(tables.private_tables(installed.find(), Path(sys.argv[2])))
sys.modules["module_aiter_core"] = standins._core_module(Path("/nowhere"))  # there, it is compiled
import aiter
from aiter.jit.utils import chip_info
from aiter.ops import gemm_op_common
from aiter_flydsl_prebuild import warming
from aiter_flydsl_prebuild.dispatch import rules
from aiter_flydsl_prebuild.packs.format import Pack
chip_info.get_gfx_runtime, chip_info.get_cu_num = (lambda: "gfx950"), (lambda: 256)
gemm_op_common.get_padded_m = lambda m, n, k, level: rules.padded_m(m, n, level, rules.RULES[0])
standins._replace_stream()
from aiter.ops.flydsl import batched_gemm_a8w8_gfx950
standins.split_counters_on_cpu(batched_gemm_a8w8_gfx950)
import aiter_flydsl_prebuild
aiter_flydsl_prebuild.seed(packs=sys.argv[1:2])
monitor = aiter_flydsl_prebuild.watch()
calls = list(warming._tasks(Pack(sys.argv[1]), None, launched=True))
for _, call in calls:
    call()
print(chip_info.get_cu_num(), monitor.compiled, monitor.found, len(calls))
"""


@pytest.mark.slow
def test_a_server_is_warmed_without_standins(built: tuple[Path, Any], toolchain: Any, tmp_path: Path) -> None:
    (pack,) = open_subject(built[0], tmp_path).packs
    version = tmp_path / "rocm" / ".info" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("7.0.0")
    more = {"PYTHONPATH": str(STANDIN), "ROCM_HOME": str(tmp_path / "rocm"), "AITER_FLYDSL_PREBUILD_ARCH": "gfx950"}
    variables = flydsl_environment(toolchain, tmp_path / "cache", **more)
    done = run_python(["-c", SERVER, str(pack), str(tmp_path)], variables)
    assert done.returncode == 0, done.stderr
    cu_num, compiled, found, calls = map(int, done.stdout.split())
    assert (cu_num, compiled) == (256, 0)
    assert 0 < calls <= found <= len(Pack(str(pack)).kernels) * 2


@real
def test_the_real_tables_are_planned(checkout: Path) -> None:
    aiter = installed.Installed(checkout / "aiter")
    before = {path: path.read_bytes() for path in (checkout / "aiter" / "configs").rglob("*.csv")}
    arguments = ("--source", "aiter", "--tokens", "1..32768", "--kinds", "a8w8_bpreshuffle")
    plan = run("plan", *arguments, checkout=checkout, python=aiter_checkout.python())
    assert len(plan["shapes"]) >= 78
    assert plan["distinct_kernels"] == 512 or "e4048607" not in installed.identity(aiter).get("commit", "")
    assert plan["distinct_kernels"] >= 400
    assert before == {path: path.read_bytes() for path in (checkout / "aiter" / "configs").rglob("*.csv")}


@real
def test_real_kernels_build_and_prove(checkout: Path, few_rows: Path, tmp_path: Path) -> None:
    arguments = ("--source", "aiter", "--tokens", "1..4096", "--kinds", "a8w8_bpreshuffle", "--out", tmp_path)
    python = aiter_checkout.python()
    result = run("build", *arguments, checkout=checkout, python=python, variables={PER_TOKEN: str(few_rows)})
    assert result["kernels"] >= 2
    assert result["proof"]["ok"]
    assert result["proof"]["compiled"] == 0
    assert result["proof"]["dispatches"] == 4096
    manifest = manifest_of(Path(result["wheel"]), tmp_path)
    assert {kernel["name"].split("_")[1] for kernel in manifest["kernels"]} == {"bpreshuflle", "bpreshuffle"}
