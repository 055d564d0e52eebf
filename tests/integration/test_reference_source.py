"""The reference family: its names, its table, and what FlyDSL makes of its source."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.dispatch.reference_names import Config, check_shape, parse
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain
from processes import ROOT, SUPPORT, flydsl_environment, prebuild

TABLE = ROOT / "tuned_configs" / "reference_mxfp8_tuned_gemm.csv"
Job = tuple[str, int, int]


def table_rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def compile_jobs(
    jobs: list[Job], toolchain: Toolchain, cache: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Compile in another process, through the run-time dispatch, without a launch."""
    return subprocess.run(
        [sys.executable, str(SUPPORT / "compile_reference.py")],
        input=json.dumps(jobs),
        env=flydsl_environment(toolchain, cache, **environment),
        capture_output=True,
        text=True,
        check=False,
    )


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [Config(16, 16, 1, 1), Config(16, 16, 1, 1, 4), Config(256, 128, 4, 2), Config(64, 48, 4, 1, 2)], ids=str
)
def test_a_name_says_its_configuration(config: Config) -> None:
    assert parse(config.name) == config
    assert not config.name.startswith("flydsl_")


def test_what_a_name_looks_like() -> None:
    assert Config(64, 32, 2, 2, 4).name == "refgemm_mxfp8_t64x32_w2x2_d4"
    assert Config(256, 128, 4, 2).name == "refgemm_mxfp8_t256x128_w4x2"
    assert (Config(64, 32, 2, 1).mfma_m, Config(64, 32, 2, 1).mfma_n, Config(64, 32, 2, 1).threads) == (2, 2, 128)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "expected"),
        ("refgemm_mxfp8", "expected"),
        ("refgemm_mxfp8_t16x16_w1x1 ", "expected"),
        ("refgemm_mxfp8_t16x16_w1x1\n", "expected"),
        ("refgemm_mxfp8_t016x16_w1x1", "expected"),
        ("refgemm_mxfp8_t16x16_w0x1", "expected"),
        ("refgemm_mxfp8_t\u0661x16_w1x1", "expected"),
        ("refgemm_mxfp8_t16x16_w1x1_d4_d4", "expected"),
        ("flydsl_bmm_mxfp8_mfma_t16x16x256_w1x1_nb6_sk4", "expected"),
        ("refgemm_mxfp8_t16x16_w1x1_d1", "written refgemm_mxfp8_t16x16_w1x1"),
        ("refgemm_mxfp8_t24x16_w1x1", "tile M 24 is not a multiple of 16 x 1 waves"),
        ("refgemm_mxfp8_t16x16_w1x2", "tile N 16 is not a multiple of 16 x 2 waves"),
        ("refgemm_mxfp8_t64x64_w4x4", "16 waves, at most 8"),
        ("refgemm_mxfp8_t16x16_w1x1_d3", "depth 3 is not one of 1, 2, 4"),
        ("refgemm_mxfp8_t128x128_w1x1", "registers"),
    ],
)
def test_other_names_are_refused_in_one_line(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as error:
        parse(name)
    assert len(str(error.value).strip("\n").splitlines()) <= 2  # a line break in the name itself
    assert name in str(error.value)


@pytest.mark.parametrize("bad", [(0, 128), (24, 128), (16, 96), (16, 0), (1 << 19, 128), (16, 1 << 19)])
def test_shapes_that_the_family_cannot_do(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"must be a multiple of"):
        check_shape(*bad)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_what_its_generator_writes() -> None:
    tool = ROOT / "tools" / "make_reference_table.py"
    assert subprocess.run([sys.executable, str(tool), "--check"], check=False).returncode == 0


def test_the_table_names_enough_kernels_for_every_shape() -> None:
    rows = table_rows()
    shapes = {(int(row["N"]), int(row["K"])) for row in rows}
    assert len(shapes) == 18
    assert len({row["kernelName"] for row in rows}) >= 12
    assert len({(row["kernelName"], row["N"], row["K"]) for row in rows}) >= 100
    for row in rows:
        parse(row["kernelName"])
        check_shape(int(row["N"]), int(row["K"]))
    for n, k in shapes:
        tokens = {int(row["M"]) for row in rows if (int(row["N"]), int(row["K"])) == (n, k)}
        assert tokens >= {1 << i for i in range(14)}


def test_nothing_in_the_table_claims_to_be_measured() -> None:
    for row in table_rows():
        assert not any(row[column] for column in ("us", "tflops", "bw", "errRatio"))
        fixed = [row[c] for c in ("gfx", "cu_num", "w_scale_block", "libtype", "kernelId", "splitK")]
        assert fixed == ["gfx950", "256", "32x32", "flydsl", "bmm", "0"]


# ---- the run-time dispatch and the compiler --------------------------------------------------------------------------

needs_flydsl = pytest.mark.skipif(
    find_spec("flydsl") is None or find_spec("torch") is None, reason="FlyDSL or torch is not installed"
)

JOBS: list[Job] = [
    ("refgemm_mxfp8_t16x16_w1x1_d4", 512, 5120),
    ("refgemm_mxfp8_t16x16_w1x1_d4", 5120, 576),
    ("refgemm_mxfp8_t16x16_w1x1", 5120, 576),
    ("refgemm_mxfp8_t32x16_w2x1", 5120, 576),
    ("refgemm_mxfp8_t32x32_w2x1", 5120, 576),
    ("refgemm_mxfp8_t32x32_w1x2", 5120, 576),
    ("refgemm_mxfp8_t32x32_w1x2", 5136, 576),
    ("refgemm_mxfp8_t32x32_w1x2", 5120, 640),
]


@pytest.mark.slow
@needs_flydsl
def test_every_configuration_and_shape_is_a_kernel_of_its_own(toolchain: Toolchain, tmp_path: Path) -> None:
    cold = compile_jobs(JOBS, toolchain, tmp_path)
    assert cold.returncode == 0, cold.stderr
    results: list[dict[str, Any]] = json.loads(cold.stdout)
    entries = [Path(result["entry"]) for result in results]
    assert len(set(entries)) == len(JOBS)
    assert all(re.match(r"refgemm_mxfp8(_[0-9a-f]+)?$", entry.parent.name) for entry in entries)
    assert all(entry.stat().st_size < 10_000 for entry in entries)
    assert results[-1]["kept"] == 0  # COMPILE_ONLY: flyc.compile returns nothing

    warm = compile_jobs(JOBS, toolchain, tmp_path, FLYDSL_RUNTIME_RUN_ONLY="1")
    assert warm.returncode == 0, warm.stderr
    assert {result["entry"] for result in json.loads(warm.stdout)} == {""}


@pytest.mark.slow
@needs_flydsl
def test_another_configuration_misses(toolchain: Toolchain, tmp_path: Path) -> None:
    assert compile_jobs(JOBS[:1], toolchain, tmp_path).returncode == 0
    missed = compile_jobs(JOBS[1:2], toolchain, tmp_path, FLYDSL_RUNTIME_RUN_ONLY="1")
    assert missed.returncode == 1
    assert "RuntimeError" in missed.stderr


@pytest.fixture
def dispatch(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("flydsl")
    pytest.importorskip("torch")
    from aiter_flydsl_prebuild.sources.reference import dispatch

    monkeypatch.delenv("COMPILE_ONLY", raising=False)
    return dispatch


def operands(m: int, n: int, k: int) -> dict[str, Any]:
    import torch

    return {
        "x": torch.empty(m, k, dtype=torch.float8_e4m3fn),
        "x_scale": torch.empty(m, k // 32, dtype=torch.uint8),
        "w": torch.empty(n, k, dtype=torch.float8_e4m3fn),
        "w_scale": torch.empty(-(-n // 32), k // 32, dtype=torch.uint8),
    }


def test_every_token_count_has_a_kernel(dispatch: Any) -> None:
    rows = {(int(r["N"]), int(r["K"]), int(r["M"])): r["kernelName"] for r in table_rows()}
    for n, k in {key[:2] for key in rows}:
        assert all(dispatch.resolve(m, n, k) for m in range(1, 8193))
        assert dispatch.resolve(8193, n, k) == (rows[n, k, 8192] if n > 4096 else None)
    assert dispatch.resolve(40, 512, 5120) == rows[512, 5120, 48]  # fine padding comes first
    assert dispatch.resolve(49, 512, 5120) == rows[512, 5120, 64]
    assert dispatch.resolve(1, 48, 128) is None
    # As AITER's, the key holds the GPU's compute units.
    assert dispatch.resolve(1, 512, 5120, 256) == dispatch.resolve(1, 512, 5120)
    assert dispatch.resolve(1, 512, 5120, 32) is None


def test_no_tokens_no_launch(dispatch: Any) -> None:
    y = dispatch.gemm(**operands(0, 512, 5120))
    assert tuple(y.shape) == (0, 512)
    assert dispatch.gemm(**operands(0, 512, 5120), out=y) is y


def test_the_second_call_takes_what_flydsl_compiled(dispatch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlyDSL's compile stands in for a GPU here: it is called once per kernel, and launches that once itself."""
    compiles: list[int] = []
    launches: list[int] = []

    def compile_(launcher: Any, *arguments: Any) -> Any:
        compiles.append(arguments[5])
        return lambda *later: launches.append(later[5])

    monkeypatch.setenv("COMPILE_ONLY", "1")
    monkeypatch.setattr(dispatch, "_compiled", {})
    monkeypatch.setattr(dispatch.flyc, "compile", compile_)
    for m in (17, 30, 256, 250):
        dispatch.gemm(**operands(m, 512, 5120))
    assert (compiles, launches) == ([17, 256], [30, 250])


def test_a_weight_without_rows_is_a_lookup_error(dispatch: Any) -> None:
    with pytest.raises(LookupError, match="no reference kernel for M=3, N=48, K=128"):
        dispatch.gemm(**operands(3, 48, 128))


def test_the_cpu_is_no_place_to_run(dispatch: Any) -> None:
    with pytest.raises(ValueError, match="on cpu"):
        dispatch.gemm(**operands(3, 512, 5120))


@pytest.mark.parametrize(
    ("which", "change", "problem"),
    [
        ("x", lambda t: t[0], "matrices"),
        ("x", lambda t: t[:, :-64].contiguous(), "x_scale must have shape"),
        ("x", lambda t: t.repeat(1, 2)[:, ::2], "x must be contiguous"),
        ("x", lambda t: t.float(), "x must be torch.float8_e4m3fn"),
        ("x_scale", lambda t: t.T.contiguous(), "x_scale must have shape"),
        ("x_scale", lambda t: t.to(dtype=t.float().dtype), "x_scale must be torch.uint8"),
        ("x_scale", lambda t: t.repeat(2, 1).view(-1)[1 : 1 + t.numel()].view(t.shape), "multiple of 16 bytes"),
        ("w", lambda t: t[:-8], "N must be a multiple of 16"),
        ("w_scale", lambda t: t[:-1], "w_scale must have shape"),
        ("w_scale", lambda t: t.to("meta"), "w_scale is on meta, x on cpu"),
    ],
)
def test_operands_outside_the_contract(dispatch: Any, which: str, change: Any, problem: str) -> None:
    given = operands(3, 512, 5120)
    given[which] = change(given[which])
    with pytest.raises(ValueError, match=problem) as error:
        dispatch.gemm(**given)
    assert "\n" not in str(error.value)


def test_the_light_half_needs_no_flydsl() -> None:
    code = (
        "import sys, aiter_flydsl_prebuild.dispatch.reference_names\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'flydsl', 'numpy')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


def test_what_a_layer_gets() -> None:
    run = prebuild("plan", "--shape", "512,5120", "--shape", "528,5120,32x32", "--tokens", "1..40", "--json")
    assert run.returncode == 0, run.stderr
    tuned, untuned = json.loads(run.stdout)["shapes"]
    assert [kernel["tokens"] for kernel in tuned["kernels"]] == [[[1, 40]]]
    assert (tuned["w_scale_block"], tuned["heuristic"]) == ("32x32", [])
    assert (untuned["kernels"], untuned["uncovered"]) == ([], [[1, 40]])
    for text, said in (
        ("512", "--shape 512: write N,K or N,K,BLOCK, as in 7168,2048 or 7168,2048,32x32"),
        ("512,5120,1x32", "the reference kernels have scale blocks of 32x32 alone, not 1x32"),
        ("500,5120", "the reference kernels: N must be a multiple of 16"),
    ):
        run = prebuild("plan", "--shape", text)
        assert (run.returncode, said in run.stderr) == (2, True), run.stderr
