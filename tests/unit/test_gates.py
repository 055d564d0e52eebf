from __future__ import annotations

from pathlib import Path

import pytest

from aiter_flydsl_prebuild.builder.gates import Gates, parse_known_bad, parse_size
from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import LeftOut
from packs import ABOUT, make_job, make_pack, make_shape
from packs import make_described as kernel


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Built for tokens 1..8: one kernel that spills, one that is missing, one shape with a gap, one row left out."""
    lost = [(make_job("lost"), "reason")]
    kernels = [kernel("tidy"), kernel("spilling", vgpr_spills=5, sgpr_spills=2)]
    plan = ABOUT.plan._replace(
        shapes=(make_shape(8, 64, uncovered=((3, 4), (7, 7))),),
        left_out=(LeftOut("mxscale_2d", 2, 1, "no entry point"),),
        undecodable=("of_another_library",),
    )
    about = ABOUT._replace(plan=plan)
    return Pack(str(make_pack(tmp_path / "a.fkpack", kernels, missing=lost, about=about)))


def test_without_limits_everything_passes(pack: Pack) -> None:
    assert Gates().check([pack], 1 << 40) == []


def test_each_gate_lists_what_is_wrong(pack: Pack) -> None:
    assert Gates(max_size=100).check([pack], 130) == ["size: 130 bytes, 30 more than --max-size allows"]
    assert Gates(max_size=130).check([pack], 130) == []
    spills = "spills: spilling (N=128, K=256, scales 32x32, mxscale_bmm) spills 5 VGPRs and 2 SGPRs, --max-spills is 6"
    assert Gates(max_spills=6).check([pack], 1) == [spills]
    assert Gates(max_spills=7).check([pack], 1) == []
    assert Gates(coverage=(4, 12)).check([pack], 1) == [
        "coverage: mxscale_2d: 2 kernels of 1 shapes: no entry point",
        "coverage: lost (N=128, K=256, scales 32x32, mxscale_bmm) is not in the pack: tokens 4..8",
        "coverage: the kernels were built for tokens 1..8, not for 9..12",
        "coverage: N=8, K=64, scales 32x32, mxscale_bmm, 256 CUs: no row serves tokens 4, 7",
    ]
    bad = (f"flydsl=={pack.version}", "linker==LLD", "flydsl==0.0.1")
    assert Gates(known_bad=bad).check([pack], 1) == [
        f"compiler: flydsl {pack.version} is known to be bad (--known-bad)",
        "compiler: linker LLD is known to be bad (--known-bad)",
    ]


def test_all_gates_are_tried(pack: Pack) -> None:
    gates = Gates(max_size=1, max_spills=0, coverage=(1, 1), known_bad=("linker==LLD",))
    assert [line.split(":")[0] for line in gates.check([pack], 2)] == [
        "size",
        "compiler",
        "spills",
        "coverage",
        "coverage",
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("500kB", 500_000),
        ("1.5 MB", 1_500_000),
        ("2GiB", 2 << 30),
        ("1KiB", 1024),
        ("1kiB", None),
        ("5", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(InputError, match="is not a size"):
            parse_size(text)
    else:
        assert parse_size(text) == size


@pytest.mark.parametrize("text", ["flydsl", "flydsl==", "torch==1", "flydsl=0.5"])
def test_compilers_are_written_in_one_way(text: str) -> None:
    with pytest.raises(InputError, match="is not of the form"):
        parse_known_bad(text)
