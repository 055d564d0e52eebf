"""Which kernels a GPU of a given size calls, by the manifest and the driver's files: seeding, status and a build."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from aiter_flydsl_prebuild import seed, status, target
from aiter_flydsl_prebuild.builder.compiling import Compiled
from aiter_flydsl_prebuild.cli import show
from aiter_flydsl_prebuild.compute_units import Serving, serving, unserved
from aiter_flydsl_prebuild.discovery import PACKS_VARIABLE
from aiter_flydsl_prebuild.dispatch.reach import KernelReach, Reach, ShapeReach
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.model.job import NO_OPTIONS
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import ShapeFacts
from aiter_flydsl_prebuild.sources.base import jobs_of
from packs import ABOUT, make_compiled, make_job, make_pack, make_shape
from processes import run_python


def gpus(root: Path, *simds: str) -> str:
    """The driver's files for a CPU and gfx950 GPUs, each with these lines about its SIMDs."""
    for number, lines in enumerate(("gfx_target_version 0\nsimd_count 0\n", *simds)):
        node = root / str(number)
        node.mkdir(parents=True, exist_ok=True)
        version = "" if number == 0 else "gfx_target_version 90500\n"
        (node / "properties").write_text(version + lines)
    return str(root)


WHOLE = "simd_count 1024\nsimd_per_cu 4\n"
"""An MI355X as one GPU: 256 compute units."""

EIGHTH = "simd_count 128\nsimd_per_cu 4\n"
"""An eighth of it: 32."""


@pytest.mark.parametrize(
    ("nodes", "units"),
    [
        ([WHOLE], {"gfx950": [256]}),
        ([EIGHTH] * 8, {"gfx950": [32]}),
        ([WHOLE, EIGHTH], {"gfx950": [32, 256]}),
        (["simd_count 1024\n"], {}),
        (["simd_count 1024\nsimd_per_cu 0\n"], {}),
        (["simd_count many\nsimd_per_cu 4\n"], {}),
        # One of which nothing is known is enough to know nothing.
        ([WHOLE, ""], {}),
    ],
)
def test_the_driver_tells_the_number_or_nothing_is_said(
    nodes: list[str], units: dict[str, list[int]], tmp_path: Path
) -> None:
    found = target.read_target({}, gpus(tmp_path, *nodes))
    assert (found.arches, found.units) == (["gfx950"], units)


def test_settings(tmp_path: Path) -> None:
    topology = gpus(tmp_path, EIGHTH)
    assert target.read_target({"CU_NUM": "256"}, topology).units == {"gfx950": [256]}
    assert target.read_target({"CU_NUM": "0"}, topology).units == {"gfx950": [32]}
    assert target.read_target({"FLYDSL_GPU_ARCH": "gfx950"}, topology).units == {"gfx950": [32]}
    assert target.read_target({"FLYDSL_GPU_ARCH": "gfx942"}, topology).units == {}
    # An image may be made here for GPUs elsewhere.
    assert target.read_target({"AITER_FLYDSL_PREBUILD_ARCH": "gfx950"}, topology).units == {}


# ---- what a pack says ------------------------------------------------------------------------------------------------


def kernel(name: str, n: int, cu_num: tuple[int, ...] | None) -> Compiled:
    made = make_compiled(name, f"module {{ {name} }}")
    return replace(made, job=replace(make_job(name, n), cu_num=cu_num))


def shape(n: int, cu_num: int) -> ShapeFacts:
    return make_shape(n, 256, cu_num)


def pack_of(path: Path, kernels: list[Compiled], shapes: list[ShapeFacts]) -> Path:
    return make_pack(path, kernels, about=ABOUT._replace(plan=ABOUT.plan._replace(shapes=tuple(shapes))))


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A pack with rows for 256 compute units alone."""
    return pack_of(tmp_path / "tuned.fkpack", [kernel(f"k{i}", 128, (256,)) for i in range(4)], [shape(128, 256)])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A layer that the heuristic serves too, sharing a kernel with a row, and one that has rows for 256 alone."""
    kernels = [
        *(kernel("row", 128, (256,)), kernel("both", 128, (0, 256)), kernel("heuristic", 128, (0,))),
        *(kernel("other", 512, (256,)), kernel("beside", 64, None)),
    ]
    return pack_of(tmp_path / "mixed.fkpack", kernels, [shape(128, 256), shape(128, 0), shape(512, 256)])


def test_how_many_kernels_serve_a_gpu(tuned: Path, mixed: Path) -> None:
    assert serving(Pack(str(tuned)), [32, 256]) == [Serving(32, 0), Serving(256, 4)]
    assert serving(Pack(str(mixed)), [32, 256]) == [Serving(32, 3), Serving(256, 4)]
    assert serving(Pack(str(mixed)), []) is None


def test_only_layers_without_rows_and_heuristic_are_lost(tuned: Path, mixed: Path) -> None:
    assert len(unserved(Pack(str(tuned)), [32])) == 4
    assert [(k.name, theirs) for k, theirs in unserved(Pack(str(mixed)), [32])] == [("other", [256])]
    for counts in ([256], [32, 256], []):
        assert unserved(Pack(str(tuned)), counts) == []


def test_two_sizes_in_one_pack_are_no_news(tmp_path: Path) -> None:
    kernels = [kernel("small", 128, (80,)), kernel("large", 128, (304,)), kernel("any", 128, (80, 304))]
    pack = Pack(str(pack_of(tmp_path / "a.fkpack", kernels, [shape(128, 80), shape(128, 304)])))
    assert unserved(pack, [304]) == []
    assert serving(pack, [304]) == [Serving(304, 2)]


def test_packs_of_earlier_versions(tmp_path: Path) -> None:
    old = [kernel(f"k{i}", 128, None) for i in range(2)]
    one = Pack(str(pack_of(tmp_path / "one.fkpack", old, [shape(128, 256)])))
    assert (serving(one, [32]), len(unserved(one, [32]))) == ([Serving(32, 0)], 2)
    # Which of the two leads to which kernel, it does not say.
    several = Pack(str(pack_of(tmp_path / "several.fkpack", old, [shape(128, 256), shape(128, 0)])))
    assert (serving(several, [32]), unserved(several, [32])) == (None, [])
    none = Pack(str(pack_of(tmp_path / "none.fkpack", old, [])))
    assert (serving(none, [32]), unserved(none, [32])) == (None, [])


def test_jobs_say_which_rows_lead_to_them() -> None:
    at_256, anywhere = make_job().shape._replace(cu_num=256), make_job().shape
    runs = ((1, 8),)
    shapes = (
        ShapeReach(at_256, (KernelReach("row", runs), KernelReach("both", runs)), (), ()),
        ShapeReach(anywhere, (KernelReach("both", runs), KernelReach("heuristic", runs)), (), ()),
    )
    jobs = jobs_of("reference", Reach((1, 8), "newest", shapes, {}), "gfx950", NO_OPTIONS)
    assert {job.name: job.cu_num for job in jobs} == {"row": (256,), "both": (0, 256), "heuristic": (0,)}
    assert {job.shape for job in jobs} == {anywhere}


# ---- seeding and status ----------------------------------------------------------------------------------------------


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's files, read in place of this machine's."""
    folder = tmp_path / "topology"
    monkeypatch.setattr(target, "_TOPOLOGY", str(folder))
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"), "ROCM_PATH": str(tmp_path / "rocm")}


def test_kernels_for_other_gpus_are_one_line_and_an_error_in_strict(
    tuned: Path, topology: Path, environ: dict[str, str]
) -> None:
    environ[PACKS_VARIABLE] = str(tuned)
    gpus(topology, WHOLE)
    assert seed(environ=environ).problems == []
    gpus(topology, EIGHTH)
    for _ in range(2):  # by the pack, and by the stamp
        report = seed(environ=environ)
        line = "tuned.fkpack: kernels are for 256 compute units, this GPU has 32"
        # The kernels are the same on every partition, and it may become another one.
        assert (report.kernels, report.problems) == (4, [line])
    with pytest.raises(CheckError, match=r"this GPU has 32 \(tuned.fkpack is for tokens 1..8\)"):
        seed(mode="strict", environ=environ)
    gpus(topology, WHOLE)
    assert seed(mode="strict", environ=environ).problems == []


def test_some_kernels_for_other_gpus(mixed: Path, topology: Path, environ: dict[str, str]) -> None:
    environ[PACKS_VARIABLE] = str(mixed)
    gpus(topology, EIGHTH, "simd_count 256\nsimd_per_cu 4\n")
    (line,) = seed(environ=environ).problems
    what = (
        "1 kernel is for 256 compute units, these GPUs have 32 and 64: other (N=512, K=256, scales 32x32, mxscale_bmm)"
    )
    assert line == f"mixed.fkpack: {what}"
    # A process may use that one alone.
    gpus(topology, EIGHTH, WHOLE)
    assert seed(environ=environ).problems == []


def test_status_counts_what_serves_this_gpu(
    tuned: Path, mixed: Path, topology: Path, environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    environ[PACKS_VARIABLE] = os.pathsep.join([str(tuned), str(mixed)])
    gpus(topology, EIGHTH)
    found = status(environ=environ)
    assert found["compute_units"] == {"gfx950": [32]}
    assert [pack["serving"] for pack in found["packs"]] == [
        [{"cu_num": 32, "kernels": 0}],
        [{"cu_num": 32, "kernels": 3}],
    ]
    assert [pack["reasons"][0].split(",")[0] for pack in found["packs"]] == [
        "kernels are for 256 compute units",
        "1 kernel is for 256 compute units",
    ]
    assert [pack["tokens"] for pack in found["packs"]] == ["1..8", "1..8"]
    show.state(found)
    said = capsys.readouterr().out
    for words in (
        "gfx950 (32 compute units)",
        "0 serve a GPU with 32 compute units",
        "4 kernels for tokens 1..8, 4 fit",
    ):
        assert words in said
    (topology / "1" / "properties").write_text("gfx_target_version 90500\n")
    found = status(environ=environ)
    assert (found["compute_units"], [pack["serving"] for pack in found["packs"]]) == ({}, [None, None])
    assert [pack["reasons"] for pack in found["packs"]] == [[], []]


def test_a_second_start_takes_the_markers_word_for_the_same_gpus_alone(
    tuned: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    topology = gpus(tmp_path / "topology", WHOLE)
    script = (
        f"from aiter_flydsl_prebuild import target; target._TOPOLOGY = {topology!r}\n"
        "import sys, aiter_flydsl_prebuild as p; print(p.seed().kernels, 'json' in sys.modules)"
    )
    ours = ("AITER_FLYDSL_PREBUILD", "FLYDSL_", "ARCH", "CU_NUM")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment = {**inherited, **environ, PACKS_VARIABLE: str(tuned)}

    def start() -> tuple[str, str]:
        done = run_python(["-S", "-c", f"import sys; sys.path += {sys_path()!r}\n{script}"], environment)
        return done.stdout, done.stderr

    assert [start() for _ in range(2)] == [("4 True\n", ""), ("4 False\n", "")]
    gpus(tmp_path / "topology", EIGHTH)
    for _ in range(2):
        assert "this GPU has 32" in start()[1]
    gpus(tmp_path / "topology", WHOLE)
    assert start()[1] == ""


def sys_path() -> list[str]:
    """This process's, for one that runs without the start-up files of an environment."""
    import sys

    import aiter_flydsl_prebuild

    return [str(Path(aiter_flydsl_prebuild.__file__).parent.parent), *(entry for entry in sys.path if entry)]
