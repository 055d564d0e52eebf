"""Executing kernels of a wheel: processes, host code, results, and where it can go wrong."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

for module in ("flydsl", "torch", "msgpack", "elftools"):
    pytest.importorskip(module)
np = pytest.importorskip("numpy")

from aiter_flydsl_prebuild.builder.execution import selection  # noqa: E402
from aiter_flydsl_prebuild.builder.execution.facts import executed, parse_kernels  # noqa: E402
from aiter_flydsl_prebuild.builder.execution.running import Executed, Wish, execute  # noqa: E402
from aiter_flydsl_prebuild.builder.proof.proof import open_subject  # noqa: E402
from aiter_flydsl_prebuild.builder.store.store import open_store  # noqa: E402
from aiter_flydsl_prebuild.errors import CheckError, InputError  # noqa: E402
from aiter_flydsl_prebuild.execution import gemm  # noqa: E402
from aiter_flydsl_prebuild.execution.faults import AccessError, ExecutionError  # noqa: E402
from aiter_flydsl_prebuild.execution.memory import Memory  # noqa: E402
from aiter_flydsl_prebuild.execution.problem import Expected, Outcome, Problem, output  # noqa: E402
from aiter_flydsl_prebuild.execution.tinygrad import checkout  # noqa: E402
from aiter_flydsl_prebuild.packs.format import Pack  # noqa: E402
from aiter_flydsl_prebuild.sources import load_source  # noqa: E402
from processes import SUPPORT, prebuild, run_python  # noqa: E402

needs_emulator = pytest.mark.skipif(
    not os.environ.get("TINYGRAD_SOURCE"), reason="TINYGRAD_SOURCE does not name a tinygrad checkout"
)


@pytest.fixture(scope="module")
def subject(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_subject(wheel, tmp_path_factory.mktemp("subject"))


@needs_emulator
def test_kernels_of_a_wheel_are_executed_once(subject: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    told: list[tuple[Executed, int]] = []
    wish = Wish(kernels=2, tiles=2)
    first = execute(subject, wish, store, advance=lambda one, total: told.append((one, total)))
    assert first.ok, first.complaints()
    assert [(one.status, one.kept, total) for one, total in told] == [("equal", False, 2)] * 2
    assert all(len(one.outcomes) == 3 and 0.5 < one.worst <= 1 for one, _ in told)
    assert sum(one.status == "not chosen" for one in first.kernels) == len(first.kernels) - 2
    again = execute(subject, wish, store)
    assert again.ok
    assert sum(one.kept for one in again.kernels) == 2
    assert again.seconds < 2
    other = [one.to_json()["outcomes"] for one in again.kernels]
    assert other == [one.to_json()["outcomes"] for one in first.kernels]


@needs_emulator
def test_a_source_that_expects_something_else(subject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale off by one in the reference alone: the kernels are then wrong, and that is not kept."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('executor' in word for word in sys.orig_argv):\n"
        "    from aiter_flydsl_prebuild.execution import gemm\n"
        "    scaled = gemm.scaled_blocks\n"
        "    def other(values, scales, *rest):\n"
        "        scales = scales.copy()\n"
        "        scales[0, -1] ^= 1\n"
        "        return scaled(values, scales, *rest)\n"
        "    gemm.scaled_blocks = other\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    found = execute(subject, Wish(kernels=1, tiles=2), open_store(str(tmp_path / "store")))
    assert not found.ok
    assert "times the tolerance" in found.complaints()[0]
    assert not list((tmp_path / "store").rglob("*.json"))


def test_without_an_emulator(subject: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINYGRAD_SOURCE", raising=False)
    with pytest.raises(InputError, match="--emulator FOLDER, or TINYGRAD_SOURCE"):
        execute(subject, Wish(), open_store("off"))
    with pytest.raises(InputError, match="no tinygrad source checkout"):
        checkout(tmp_path)


@needs_emulator
def test_without_a_compiler(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="clang 19 or newer"):
        execute(subject, Wish(), open_store("off"))


def test_several_sources_at_once(subject: Any) -> None:
    with pytest.raises(CheckError, match="several sources"):
        execute(replace(subject, packs=()), Wish(), open_store("off"))


# ---- which kernels ---------------------------------------------------------------------------------------------------


def test_a_sample_has_every_trait(subject: Any) -> None:
    source = load_source("reference")
    found = selection.candidates([Pack(str(path)) for path in subject.packs])
    sample = selection.choose(found, source, None, 0)
    assert len(sample) < len(found)
    assert set().union(*(source.traits(one.job) for one in sample)) == set().union(
        *(source.traits(one.job) for one in found)
    )
    assert len(selection.choose(found, source, 3, 0)) == 3
    assert selection.choose(found, source, "all", 0) == found
    more = selection.choose(found, source, len(sample) + 2, 0)
    assert set(sample) < set(more)


def test_what_kernels_may_be_asked_for() -> None:
    assert [parse_kernels(text) for text in (None, "all", "12")] == [None, "all", 12]
    for text in ("0", "-1", "some", "1.5"):
        with pytest.raises(InputError, match="write all, or a number"):
            parse_kernels(text)


# ---- problems --------------------------------------------------------------------------------------------------------


def problem(m: int = 20, n: int = 48, **changes: Any) -> Problem:
    base = Problem("p", {"y": output(m, n, "bfloat16")}, lambda tensors: None, "y", (16, 32), lambda r, c: EXACT)
    return replace(base, **changes)


EXACT = Expected(np.array([[1.0, np.nan]]), np.array([[0.5, 0.5]]))


def test_errors_are_in_units_of_the_tolerance() -> None:
    assert EXACT.worst(np.array([[1.25, np.nan]])) == 0.5
    assert EXACT.worst(np.array([[1.0, 0.0]])) == np.inf
    assert EXACT.worst(np.array([[np.nan, np.nan]])) == np.inf
    assert EXACT.worst(np.array([[np.inf, np.nan]])) == np.inf


def test_a_workgroup_writes_its_tile_and_nothing_else() -> None:
    one = problem()
    written = np.zeros((20, 48), bool)
    assert one.written_tile(written) is None
    written[16:, 32:] = True
    assert one.written_tile(written) == (slice(16, 20), slice(32, 48))
    for change in ((0, 0), (19, 47)):
        wrong = written.copy()
        wrong[change] ^= True
        with pytest.raises(ExecutionError, match="elements of the tile"):
            one.written_tile(wrong)
    assert len(list(one.blocks())) == one.tiles == 4


def test_a_swapped_order_along_k_and_a_wrong_scale_are_out_of_tolerance() -> None:
    random = np.random.default_rng(0)
    k = 512
    x, w = gemm.fp8(random, 8, k), gemm.fp8(random, 32, k)
    x_scale, w_scale = gemm.block_scales(random, 8, k // 32), gemm.block_scales(random, 1, k // 32)
    everything = slice(None)

    def product(x: Any, x_scale: Any) -> Expected:
        return gemm.Product(gemm.scaled_rows(x, x_scale, 32), gemm.scaled_blocks(w, w_scale, 32, 32), k, "bfloat16")(
            everything, everything
        )

    right = product(x, x_scale)
    assert right.worst(right.exact) == 0
    off = x_scale.copy()
    off[-1, -1] += 1
    swapped = x.reshape(8, -1, 2, 32)[:, :, ::-1].reshape(8, k)
    for wrong in (product(x, off), product(swapped, x_scale)):
        assert right.worst(wrong.exact) > 1


def test_outcomes_survive_json() -> None:
    for one in (
        Outcome("M=1", 2, 4, 0.5, 1.25, 100, None, ("a race",)),
        Outcome("M=1", 0, 4, np.inf, 1.25, 0, "AccessError: x"),
    ):
        assert Outcome.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert not Outcome("M=1", 0, 4, 0.0, 1.0).equal


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [True, False])
def test_arrays_lie_flush_against_protected_pages(end: bool) -> None:
    """Reading one byte on the other side of the edge ends the process."""
    script = (
        "import ctypes, sys, numpy as np\n"
        "from aiter_flydsl_prebuild.execution.memory import Memory\n"
        f"a = Memory().place(np.arange(64, dtype=np.uint8), 'a', end={end})\n"
        f"at = a.ctypes.data + (int(sys.argv[1]) + 63 if {end} else -int(sys.argv[1]))\n"
        "ctypes.string_at(at, 1)\n"
    )
    for step, status in ((0, 0), (1, -11)):
        assert run_python(["-c", script, str(step)], dict(os.environ)).returncode == status


def test_accesses_lie_in_one_array_and_may_be_spread_over_several() -> None:
    memory = Memory()
    one, other = (memory.place(np.full(8, value, np.uint32), name) for value, name in ((1, "one"), (2, "other")))
    at = np.array([one.ctypes.data, other.ctypes.data + 28], np.uint64)
    assert memory.load(at, 4).view(np.uint32).ravel().tolist() == [1, 2]
    with pytest.raises(AccessError, match="0 bytes behind the end of other"):
        memory.load(at + np.uint64(4), 4)
    with pytest.raises(AccessError, match="outside every array"):
        memory.load(np.array([16], np.uint64), 4)


# ---- the same on a GPU -----------------------------------------------------------------------------------------------

ON_GPU = SUPPORT / "execute_on_gpu.py"


@needs_emulator
def test_the_launcher_of_a_gpu_runs_the_same_problems(subject: Any, tmp_path: Path) -> None:
    """FlyDSL's launches go to a HIP library that runs them on the emulator, on memory that the launcher made."""
    run = run_python([str(ON_GPU), str(subject.packs[0]), str(tmp_path)], dict(os.environ))
    assert run.returncode == 0, run.stderr[-3000:]
    outcomes = [Outcome.from_json(value) for value in json.loads(run.stdout.splitlines()[-1])]
    assert len(outcomes) == 3
    assert all(outcome.equal and outcome.tiles == outcome.of for outcome in outcomes[:2])
    assert outcomes[2].fault is not None
    assert "x, which is only to be read, was written to" in outcomes[2].fault


# ---- the command line, the manifest, the gate and the report ---------------------------------------------------------


@needs_emulator
def test_the_command_line_executes(wheel: Path, tmp_path: Path) -> None:
    arguments = ("verify", wheel, "--execute", "--kernels", "1", "--store", tmp_path)
    run = prebuild(*arguments, "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["ok"], found["on"], found["equal"], found["wrong"], found["problems"]) == (True, "emulator", 1, 0, [])
    (kernel,) = (one for one in found["kernels"] if one["status"] == "equal")
    assert kernel["outcomes"][0]["label"] == "M=1"
    run = prebuild(*arguments)
    assert "(kept)" in run.stdout
    assert "1 kernels compute what they should" in run.stdout


def test_what_the_command_line_refuses(wheel: Path) -> None:
    for arguments, said in (
        (("--kernels", "2"), "add it"),
        (("--seed", "3"), "kernels, seed and emulator say what execute does; add it"),
        (("--execute", "--cold"), "takes no --cold"),
        (("--execute", "--kernels", "none"), "write all, or a number"),
    ):
        run = prebuild("verify", wheel, *arguments)
        assert run.returncode == 2
        assert said in run.stderr
        assert "Traceback" not in run.stderr


@needs_emulator
def test_a_build_that_executes_says_so(tmp_path: Path) -> None:
    """In the manifest, which the gate and the report read."""
    common = ("build", "--tokens", "1..1", "--out", tmp_path / "dist", "--store", tmp_path / "store", "--json")
    run = prebuild(*common, "--execute", "--kernels", "2", "--report", tmp_path / "report")
    assert run.returncode == 0, run.stderr
    built = Path(json.loads(run.stdout)["wheel"])
    (path,) = open_subject(built, tmp_path / "unpacked").packs
    manifest = Pack(str(path)).manifest
    assert manifest.extra["execution"]["on"] == "emulator"
    found = (executed(kernel) for kernel in manifest.kernels)
    done = [one for one in found if one is not None and one.reason is None]
    assert len(done) == 2
    assert all(0 < one.worst <= 1 and one.races == 0 and one.problems[0] == "M=1" for one in done)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count("with NaN: 0.") == 2
    assert "no: not among the kernels that were executed" in page
    check = prebuild("check", built, "--require-executed")
    assert check.returncode == 1
    assert "not executed: not among the kernels that were executed" in check.stderr
    assert prebuild("verify", built).returncode == 0


def test_the_gate_knows_packs_that_nothing_was_executed_of(wheel: Path) -> None:
    run = prebuild("check", wheel, "--require-executed")
    assert run.returncode == 1
    assert "executed: the pack was built without --execute" in run.stderr


def test_a_build_without_an_emulator_ends_before_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINYGRAD_SOURCE", raising=False)
    run = prebuild("build", "--tokens", "1..1", "--store", tmp_path / "store", "--out", tmp_path / "dist", "--execute")
    assert run.returncode == 2
    assert "--emulator FOLDER, or TINYGRAD_SOURCE" in run.stderr
    assert not (tmp_path / "dist").exists()
    assert not list(tmp_path.rglob("*.pack"))
    run = prebuild("build", "--tokens", "1..1", "--store", "off", "--out", tmp_path / "dist", "--seed", "3")
    assert run.returncode == 2
    assert "kernels, seed and emulator say what execute does" in run.stderr
