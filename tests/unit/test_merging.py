from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aiter_flydsl_prebuild import seed
from aiter_flydsl_prebuild.builder.compiling import Compiled
from aiter_flydsl_prebuild.builder.merging import merge_packs
from aiter_flydsl_prebuild.builder.packing import encode_pack, make_manifest, missing_kernel, write_pack
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.flydsl import cache
from aiter_flydsl_prebuild.flydsl.install import interpreter_abi
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import About, FlyDSL
from packs import ABOUT, flydsl_here, install_here, make_compiled, make_job, make_pack
from processes import prebuild

TEXTS = [f"module {{ {index} }}" * 20 for index in range(6)]
KERNELS = [make_compiled(f"k{i}", text) for i, text in enumerate(TEXTS)]


def for_abi(abi: str, names: range, *, text: str = "") -> list[Compiled]:
    """Kernels of the older generation, whose paths hold for one ABI."""
    made = []
    for index in names:
        kernel = make_compiled(f"k{index}", text or TEXTS[index], path=f"gemm_{abi}{index}/0.pkl")
        (entry,) = kernel.entries
        made.append(replace(kernel, entries=(replace(entry, paths=((abi, entry.paths[0][1]),)),)))
    return made


def old_flydsl(abi: str) -> FlyDSL:
    install = install_here()
    identity = install.identity if abi == install.abi else "0" * 64
    return flydsl_here(generation=cache.CALL_KEY, identities={abi: [identity]})


def test_parts_make_the_whole_to_the_byte(tmp_path: Path) -> None:
    whole = make_pack(tmp_path / "whole.fkpack", KERNELS)
    parts = [make_pack(tmp_path / f"{i}.fkpack", KERNELS[i::3]) for i in range(3)]
    (tmp_path / "out").mkdir()
    assert merge_packs(parts, tmp_path / "out")[0].read_bytes() == whole.read_bytes()
    overlapping = [make_pack(tmp_path / "a.fkpack", KERNELS[:4]), make_pack(tmp_path / "b.fkpack", KERNELS[2:])]
    assert merge_packs(overlapping[::-1], tmp_path / "out")[0].read_bytes() == whole.read_bytes()


def test_several_pythons_share_payloads(tmp_path: Path) -> None:
    here = interpreter_abi()
    packs = [make_pack(tmp_path / f"{abi}.fkpack", for_abi(abi, range(6)), old_flydsl(abi)) for abi in (here, "cp399")]
    merged = Pack(str(merge_packs(packs, tmp_path)[0]))
    assert len(merged.manifest.payloads) == 6
    assert sorted(merged.identities) == sorted([here, "cp399"])
    assert sorted(merged.kernels[0].entries[0].paths) == sorted([here, "cp399"])
    environ = {
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
        "ROCM_PATH": str(tmp_path),
    }
    report = seed(packs=[merged.path], environ=environ)
    assert (report.kernels, report.problems) == (6, [])
    assert {path.parent.name for path in (tmp_path / "cache").rglob("*.pkl")} == {f"gemm_{here}{i}" for i in range(6)}


def test_the_wheel_names_every_abi(tmp_path: Path) -> None:
    packs = [
        make_pack(tmp_path / f"{abi}.fkpack", for_abi(abi, range(2)), old_flydsl(abi)) for abi in ("cp311", "cp312")
    ]
    run = prebuild("merge", *packs, "--out", tmp_path / "dist", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["wheel"].endswith("-cp311.cp312-none-any.whl")


def test_a_contradiction_is_refused_and_named(tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one.fkpack", for_abi("cp311", range(3)), old_flydsl("cp311"))
    other = make_pack(
        tmp_path / "other.fkpack", for_abi("cp312", range(2, 3), text="module { x }"), old_flydsl("cp312")
    )
    with pytest.raises(
        CheckError, match=r"k2 \(N=128, K=256, scales 32x32, mxscale_bmm\) is not the same kernel in all packs"
    ):
        merge_packs([one, other], tmp_path)
    assert prebuild("merge", one, other, "--out", tmp_path / "dist").returncode == 1


def test_two_keys_of_one_kernel_are_a_contradiction(tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one.fkpack", [make_compiled("k", TEXTS[0], "0" * 64)])
    other = make_pack(tmp_path / "other.fkpack", [make_compiled("k", TEXTS[0], "1" * 64)])
    with pytest.raises(CheckError, match="is not the same kernel in all packs"):
        merge_packs([one, other], tmp_path)


def test_parts_of_different_builds_are_refused(tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one.fkpack", KERNELS[:1])
    other = make_pack(tmp_path / "other.fkpack", KERNELS[1:], flydsl_here(version="9.9"), arch="gfx942")
    with pytest.raises(CheckError) as caught:
        merge_packs([one, other], tmp_path)
    assert str(caught.value).splitlines() == [
        "one.fkpack and other.fkpack differ in their arch: they are not parts of one build",
        "one.fkpack and other.fkpack differ in their flydsl version: they are not parts of one build",
    ]


def test_what_one_part_lacks_another_may_have(tmp_path: Path) -> None:
    paths = []
    for name, kernels, lost in (("a", KERNELS[:1], ["k1", "k9"]), ("b", KERNELS[1:2], ["k9"])):
        missing = [missing_kernel(make_job(kernel), "failed") for kernel in lost]
        manifest, payloads = make_manifest("gfx950", flydsl_here(), kernels, missing, ABOUT)
        paths.append(tmp_path / f"{name}.fkpack")
        write_pack(paths[-1], encode_pack(manifest, payloads))
    merged = Pack(str(merge_packs(paths, tmp_path)[0]))
    assert [kernel.name for kernel in merged.kernels] == ["k0", "k1"]
    assert [kernel.name for kernel in merged.missing] == ["k9"]


def test_packs_of_one_name_are_told_apart_and_the_difference_is_named(tmp_path: Path) -> None:
    paths = []
    for folder, tokens in (("a", (1, 8)), ("b", (9, 16))):
        about = ABOUT._replace(plan=ABOUT.plan._replace(tokens=tokens))
        manifest, payloads = make_manifest("gfx950", flydsl_here(), KERNELS, [], about)
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "p.fkpack")
        write_pack(paths[-1], encode_pack(manifest, payloads))
    with pytest.raises(CheckError, match=r"\(number 1\) and p.fkpack \(number 2\) differ in their plan's tokens"):
        merge_packs(paths, tmp_path)


def test_what_was_executed_is_kept_where_packs_agree(tmp_path: Path) -> None:
    """And goes where they do not: it is no reason to refuse them."""
    about = ABOUT._replace(extra={"execution": {"on": "emulator", "seed": 0}})
    ran = [replace(one, extra={"executed": {"worst": 0.5}}) for one in KERNELS[:2]]

    def pack(name: str, kernels: list[Compiled], said: About) -> Path:
        path = tmp_path / f"{name}.fkpack"
        write_pack(path, encode_pack(*make_manifest("gfx950", flydsl_here(), kernels, [], said)))
        return path

    first = pack("first", ran[:1], about)
    for other, kept in (
        (pack("same", ran, about), True),
        (pack("other", ran, about._replace(extra={"execution": {"on": "emulator", "seed": 1}})), False),
        (pack("none", KERNELS[:2], ABOUT), False),
    ):
        for paths in ([first, other], [other, first]):
            merged = Pack(str(merge_packs(paths, tmp_path)[0])).manifest
            assert ("execution" in merged.extra) == kept
            assert ["executed" in kernel.extra for kernel in merged.kernels] == [kept] * 2
    differs = pack("differs", [replace(KERNELS[0], extra={"executed": {"worst": 0.6}})], about)
    merged = Pack(str(merge_packs([first, differs], tmp_path)[0])).manifest
    assert "execution" in merged.extra
    assert "executed" not in merged.kernels[0].extra
