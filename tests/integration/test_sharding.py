"""One build in several parts, and what merge makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_flydsl_prebuild.builder.packing import encode_pack
from aiter_flydsl_prebuild.builder.sharding import assign, costs_of, parse_shard
from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import to_json
from aiter_flydsl_prebuild.sources import load_source
from packs import make_job, pack_in
from processes import prebuild

BUILD = ("build", "--tokens", "1..1", "--json")
PARTS = 3


@given(st.lists(st.floats(0.1, 100), min_size=0, max_size=60), st.integers(1, 9))
def test_every_job_is_in_one_part_and_no_part_is_much_longer(costs: list[float], of: int) -> None:
    jobs = [make_job(f"kernel{number}") for number in range(len(costs))]
    by_job = dict(zip(jobs, costs, strict=True))
    found = assign(jobs, of, costs)
    assert sorted(job.name for part in found.parts for job in part) == sorted(job.name for job in jobs)
    loads = [sum(by_job[job] for job in part) for part in found.parts]
    # Graham's bound for the longest first.
    best = max(sum(costs) / of, max(costs, default=0.0))
    assert max(loads) <= 4 / 3 * best + max(costs, default=0.0) / 3 + 1e-9
    assert assign(jobs[::-1], of, costs[::-1]) == found


def test_measured_seconds_count_before_estimates(tmp_path: Path) -> None:
    jobs = [make_job("gemm_t16x64"), make_job("gemm_t32x64"), make_job("gemm_t64x64")]
    source = load_source("reference")
    assert costs_of(jobs, source, None) == [1024, 2048, 4096]
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"seconds_of": {jobs[0].label: 0.5, "gone": 7}}))
    assert costs_of(jobs, source, times) == [0.5, 1.0, 2.0]
    for content in ("", "[]", '{"seconds_of": {"a": "b"}}', "{}"):
        times.write_text(content)
        with pytest.raises(InputError, match="holds no seconds"):
            costs_of(jobs, source, times)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "1/3/5", "-1/3", ""])
def test_a_part_is_written_in_one_way(text: str) -> None:
    with pytest.raises(InputError, match="write I/N"):
        parse_shard(text)


@pytest.fixture(scope="module")
def whole(with_kernels: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = prebuild(*BUILD, "--out", str(tmp_path_factory.mktemp("whole")), environment=with_kernels)
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["wheel"])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All parts of a build, each made with another number of workers."""
    out = tmp_path_factory.mktemp("parts")
    found = []
    for index in range(1, PARTS + 1):
        done = prebuild(*BUILD, "--shard", f"{index}/{PARTS}", "--workers", str(index), "--out", str(out))
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["wheel"], said["proof"]) == (None, None)
        found.append(Path(said["part"]))
    return found


def merge(*arguments: Any, out: Path, status: int = 0) -> dict[str, Any]:
    done = prebuild("merge", *map(str, arguments), "--out", str(out), "--json")
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_parts_make_up_the_wheel_of_one_build(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    sizes = [len(Pack(str(part)).kernels) for part in parts]
    assert sum(sizes) == 18
    assert min(sizes) >= 4
    assert [part.name for part in parts] == [f"gfx950-flydsl0.5.0-shard{i}of{PARTS}.fkpack" for i in (1, 2, 3)]
    merged = merge(*parts[::-1], out=tmp_path)
    assert (merged["proof"]["ok"], merged["proof"]["compiled"]) == (True, 0)
    assert Path(merged["wheel"]).read_bytes() == whole.read_bytes()
    # A part that is given twice adds nothing.
    assert Path(merge(*parts, parts[0], out=tmp_path / "twice")["wheel"]).read_bytes() == whole.read_bytes()
    assert merge(*parts, "--no-proof", out=tmp_path / "unproven")["proof"] is None


def test_more_parts_than_kernels(with_kernels: dict[str, str], tmp_path: Path) -> None:
    for index in (1, 20):
        done = prebuild(*BUILD, "--shard", f"{index}/20", "--out", str(tmp_path), environment=with_kernels)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["kernels"] == (1 if index == 1 else 0)


@pytest.mark.slow
def test_what_is_no_whole_build_is_refused(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "part 2 of 3 is not among these" in merge(parts[0], parts[2], out=out, status=1)["error"]
    assert "some are whole" in merge(parts[0], pack_in(whole, tmp_path), out=out, status=1)["error"]

    truncated = tmp_path / "truncated.fkpack"
    truncated.write_bytes(parts[1].read_bytes()[:-9])
    assert "truncated.fkpack: truncated or damaged" in merge(parts[0], truncated, parts[2], out=out, status=1)["error"]

    manifest = to_json(Pack(str(parts[1])).manifest)
    payloads = [text.encode() for text in Pack(str(parts[1])).payloads()]
    other = tmp_path / "other.fkpack"
    other.write_bytes(encode_pack({**manifest, "shard": {**manifest["shard"], "assignment": "another"}}, payloads))
    assert "split in different ways" in merge(parts[0], other, parts[2], out=out, status=1)["error"]

    abroad = json.loads(json.dumps(manifest))
    abroad["flydsl"]["identities"] = {"cp399": ["0" * 64]}
    other.write_bytes(encode_pack(abroad, payloads))
    assert "for several Pythons or FlyDSLs" in merge(parts[0], other, parts[2], out=out, status=1)["error"]

    # The same part with different code for a kernel: the kernel is named.
    changed = json.loads(json.dumps(manifest))
    changed["kernels"][0]["entries"][0]["fields"]["link_libs"] = ["other"]
    other.write_bytes(encode_pack(changed, payloads))
    said = merge(*parts, other, out=out, status=1)["error"]
    assert f"{manifest['kernels'][0]['name']} (N=" in said
    assert "is not the same kernel in all packs" in said
    assert not out.exists()


@pytest.mark.slow
def test_a_part_is_not_used_by_mistake(parts: list[Path], tmp_path: Path) -> None:
    shutil.copy(parts[0], tmp_path)
    environment = {
        "AITER_FLYDSL_PREBUILD_PACKS": str(tmp_path),
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = prebuild("seed", environment=environment)
    assert "is part 1 of 3 of a build: merge the parts, and install the result" in done.stderr + done.stdout
    assert not list(tmp_path.rglob("*.pkl"))
