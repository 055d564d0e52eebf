from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiter_flydsl_prebuild.builder.compiling import Compiled
from aiter_flydsl_prebuild.builder.packing import encode_pack
from aiter_flydsl_prebuild.builder.reports.diffing import diff
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import to_json
from packs import flydsl_here, make_pack, make_shape
from packs import make_described as kernel
from processes import prebuild


def pack(path: Path, kernels: Sequence[Compiled], **more: Any) -> Pack:
    return Pack(str(make_pack(path, list(kernels), **more)))


def test_kernel_by_kernel(tmp_path: Path) -> None:
    old = [kernel("same"), kernel("gone"), kernel("code"), kernel("host"), kernel("moved"), kernel("served")]
    served = kernel("served")
    new = [
        kernel("same"),
        kernel("new"),
        kernel("code", "module { x }", vgpr=140, vgpr_spills=3, code_object_bytes=5000, code_object_sha256="b" * 64),
        kernel("host", "module { other }"),
        kernel("moved", key="0" * 64),
        replace(served, job=replace(served.job, tokens=((1, 4), (9, 9)))),
    ]
    found = diff([pack(tmp_path / "a.fkpack", old)], [pack(tmp_path / "b.fkpack", new)])
    (one,) = found.packs
    where = " (N=128, K=256, scales 32x32, mxscale_bmm)"
    assert (one.added, one.dropped, one.same) == ([f"new{where}"], [f"gone{where}"], 1)
    assert {change.kernel.split()[0]: change.changes for change in one.changed} == {
        "code": {
            "code": (["a" * 64], ["b" * 64]),
            "vgpr": (128, 140),
            "vgpr_spills": (0, 3),
            "code_object_bytes": (4096, 5000),
        },
        "host": {"host code": (None, None)},
        "moved": {"key": (None, None)},
        "served": {"tokens": ([[1, 8]], [[1, 4], [9, 9]])},
    }
    assert not found.same_kernels


def test_what_describes_the_packs(tmp_path: Path) -> None:
    a = pack(tmp_path / "a.fkpack", [kernel("same")])
    manifest = to_json(a.manifest)
    manifest["source"]["digest"] = "new"
    manifest["plan"]["shapes"] = [to_json(make_shape(8, 64, uncovered=((1, 4),)))]
    manifest["plan"]["tables"] = [{"file": "t.csv", "sha256": "f" * 64}]
    manifest["new_key"] = 1
    (tmp_path / "b.fkpack").write_bytes(encode_pack(manifest, [text.encode() for text in a.payloads()]))
    found = diff([a], [Pack(str(tmp_path / "b.fkpack"))])
    assert found.same_kernels
    assert not found.identical
    assert found.packs[0].about == {
        "source.digest": ("0" * 64, "new"),
        "tables.t.csv": (None, "f" * 64),
        "uncovered.N=8, K=64, scales 32x32, mxscale_bmm, 256 CUs": (None, [[1, 4]]),
        "other.N=8, K=64, scales 32x32, mxscale_bmm, 256 CUs": (None, []),
        "new_key": (None, 1),
    }


def test_packs_without_a_partner(tmp_path: Path) -> None:
    a = pack(tmp_path / "a.fkpack", [kernel("k")])
    b = pack(tmp_path / "b.fkpack", [kernel("k")], arch="gfx942")
    c = pack(tmp_path / "c.fkpack", [kernel("k")], flydsl=flydsl_here(version="0.4.9"))
    found = diff([a, b], [c, a])
    assert (found.only_old, found.only_new) == (
        ["reference kernels for gfx942 and flydsl " + a.version],
        ["reference kernels for gfx950 and flydsl 0.4.9"],
    )
    assert [one.same for one in found.packs] == [1]


kernels = st.lists(
    st.builds(
        lambda name, text, vgpr: kernel(name, f"module {{ {text} }}", vgpr=vgpr),
        st.sampled_from("abcdef"),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    unique_by=lambda one: one.job.name,
    max_size=6,
)


@given(kernels, kernels)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_it_mirrors(tmp_path: Path, one: list[Compiled], other: list[Compiled]) -> None:
    a, b = pack(tmp_path / "a.fkpack", one), pack(tmp_path / "b.fkpack", other)
    assert diff([a], [a]).identical
    (there,), (back,) = diff([a], [b]).packs, diff([b], [a]).packs
    assert (there.added, there.dropped, there.same) == (back.dropped, back.added, back.same)
    mirrored = {change.kernel: {k: v[::-1] for k, v in change.changes.items()} for change in back.changed}
    assert mirrored == {change.kernel: change.changes for change in there.changed}
    assert diff([a], [b]).same_kernels == (a.kernels == b.kernels and a.content == b.content)


def test_the_command(tmp_path: Path) -> None:
    a = make_pack(tmp_path / "a.fkpack", [kernel("one"), kernel("two")])
    b = make_pack(tmp_path / "b.fkpack", [kernel("two", vgpr=200, code_object_sha256="c" * 64), kernel("three")])
    text = prebuild("diff", str(a), str(b))
    assert text.returncode == 0
    assert "1 added, 1 dropped, 1 changed, 0 the same" in text.stdout
    assert (
        "  + three (N=128, K=256, scales 32x32, mxscale_bmm)\n  - one (N=128, K=256, scales 32x32, mxscale_bmm)"
        in text.stdout
    )
    assert "  ~ two (N=128, K=256, scales 32x32, mxscale_bmm): code, vgpr 128 -> 200" in text.stdout
    found = prebuild("diff", str(a), str(b), "--json", "--exit-code")
    assert found.returncode == 1
    assert json.loads(found.stdout)["packs"][0]["changed"][0]["changes"]["vgpr"] == [128, 200]
    assert prebuild("diff", str(a), str(tmp_path / "gone.whl")).returncode == 2


@pytest.mark.parametrize("content", [b"", b"no pack"])
def test_a_damaged_pack(tmp_path: Path, content: bytes) -> None:
    a = make_pack(tmp_path / "a.fkpack", [kernel("one")])
    (tmp_path / "b.fkpack").write_bytes(content)
    done = prebuild("diff", str(a), str(tmp_path / "b.fkpack"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
