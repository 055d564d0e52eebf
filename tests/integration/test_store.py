"""The kernel store, with real builds by the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aiter_checkout
from aiter_flydsl_prebuild import files
from aiter_flydsl_prebuild.builder.compiling import building_flydsl
from aiter_flydsl_prebuild.builder.store import store
from aiter_flydsl_prebuild.builder.store.keys import KernelKeys
from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain
from aiter_flydsl_prebuild.sources import load_source
from aiter_flydsl_prebuild.sources.aiter import code, installed
from aiter_flydsl_prebuild.sources.aiter.ops import OPS, PerToken
from packs import make_job
from processes import SUPPORT, flydsl_environment, prebuild, run_python, wait_until

# One worker: the machine has other tests to run.
BUILD = ("build", "--tokens", "1..1", "--workers", "1", "--json")
KERNELS = 18


def build(where: Path | str, out: Path, *more: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    done = prebuild(*BUILD, "--store", str(where), "--out", str(out), *more, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kernels(folder: Path) -> list[Path]:
    return sorted((folder / "kernels").rglob("*.fkpack"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store that one build has filled, and what that build said."""
    folder = tmp_path_factory.mktemp("filled")
    return folder / "store", build(folder / "store", folder / "dist")


@pytest.fixture
def copied(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled[0], tmp_path / "store"))


def same_wheel(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return Path(one["wheel"]).read_bytes() == Path(other["wheel"]).read_bytes()


@pytest.mark.slow
def test_an_unchanged_build_compiles_and_proves_nothing_again(
    filled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    where, first = filled
    assert (first["compiled"], first["reused"], first["warnings"]) == (KERNELS, 0, [])
    again = build(where, tmp_path / "dist")
    assert (again["compiled"], again["reused"]) == (0, KERNELS)
    assert again["proof"] == first["proof"]  # its seconds, too
    assert again["seconds_of"] == first["seconds_of"]
    assert set(first["seconds_of"].values()) != {0.0}
    assert same_wheel(first, again)


@pytest.mark.slow
def test_without_a_store_everything_is_compiled(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    again = build("off", tmp_path / "dist", "--workers", "2")
    assert (again["compiled"], again["reused"]) == (KERNELS, 0)
    assert same_wheel(filled[1], again)
    assert prebuild("store", "stats", "--store", "off").returncode == 2


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    where = tmp_path / "store"
    command = [sys.executable, "-m", "aiter_flydsl_prebuild", *BUILD, "--store", str(where), "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    assert wait_until(lambda: len(kernels(where)) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(kernels(where))
    assert 3 <= kept < KERNELS
    again = build(where, tmp_path / "dist")
    assert (again["compiled"], again["reused"]) == (KERNELS - kept, kept)
    assert same_wheel(filled[1], again)


@pytest.mark.slow
def test_damaged_entries_are_made_again_and_reported(
    filled: tuple[Path, dict[str, Any]], copied: Path, tmp_path: Path
) -> None:
    flipped, cut, empty = kernels(copied)[:3]
    data = bytearray(flipped.read_bytes())
    data[-5] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-7])
    empty.write_bytes(b"")
    again = build(copied, tmp_path / "dist")
    assert (again["compiled"], again["reused"]) == (3, KERNELS - 3)
    assert [[path.name in line for line in again["warnings"]].count(True) for path in (flipped, cut, empty)] == [
        1,
        1,
        1,
    ]
    assert same_wheel(filled[1], again)
    assert build(copied, tmp_path / "dist")["warnings"] == []


@pytest.mark.slow
def test_an_entry_of_another_kernel_is_no_answer(
    filled: tuple[Path, dict[str, Any]], copied: Path, tmp_path: Path
) -> None:
    one, other = kernels(copied)[:2]
    shutil.copy(one, other)
    again = build(copied, tmp_path / "dist")
    assert (again["compiled"], len(again["warnings"])) == (1, 1)
    assert "not the kernel that its name says" in again["warnings"][0]
    assert same_wheel(filled[1], again)


@pytest.mark.slow
def test_a_store_that_cannot_be_used_costs_a_warning(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    again = build(tmp_path / "file" / "store", tmp_path / "dist")
    (warning,) = again["warnings"]
    assert "Not a directory" in warning
    assert "building on without it" in warning
    assert same_wheel(filled[1], again)


@pytest.mark.slow
def test_a_store_that_vanishes_in_the_middle(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    where = tmp_path / "store"
    command = [sys.executable, "-m", "aiter_flydsl_prebuild", *BUILD, "--store", str(where), "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/")
    while not kernels(where) and process.poll() is None:
        time.sleep(0.01)
    shutil.rmtree(where)
    where.write_text("a file where it was")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    found = json.loads(said)
    assert ["building on without it" in warning for warning in found["warnings"]] == [True]
    assert same_wheel(filled[1], found)


@pytest.mark.slow
def test_a_build_that_fails_says_that_it_kept_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    select = ("--source", "sources_for_tests:Raises", "--store", str(tmp_path / "file"))
    done = prebuild(*BUILD, *select, "--out", str(tmp_path), environment={**os.environ, "PYTHONPATH": str(SUPPORT)})
    assert done.returncode == 1
    assert done.stderr.count("building on without it") == 1
    assert "1 of 18 kernels could not be compiled" in done.stderr


@pytest.mark.slow
def test_a_store_that_is_full(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", full], check=False).returncode:
        pytest.skip("mounting takes root")
    try:
        again = build(full, tmp_path / "dist")
        assert ["No space left on device" in warning for warning in again["warnings"]] == [True]
        assert same_wheel(filled[1], again)
        assert not list(full.rglob(".*")), "a part of an entry was left"
    finally:
        subprocess.run(["umount", full], check=True)


@pytest.mark.slow
def test_two_builds_into_one_store_at_once(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    where = tmp_path / "store"
    outs = [tmp_path / "one", tmp_path / "two"]
    command = [sys.executable, "-m", "aiter_flydsl_prebuild", *BUILD, "--store", str(where), "--out"]
    both = [subprocess.Popen([*command, str(out)], stdout=subprocess.PIPE, cwd="/") for out in outs]
    for process in both:
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        assert same_wheel(filled[1], json.loads(said))
    assert len(kernels(where)) == KERNELS


@pytest.mark.slow
def test_a_store_by_url(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'remote'}"
    first = build(url, tmp_path / "dist")
    again = build(url, tmp_path / "dist")
    assert [(one["compiled"], one["reused"]) for one in (first, again)] == [(KERNELS, 0), (0, KERNELS)]
    assert same_wheel(filled[1], again)
    stats = json.loads(prebuild("store", "stats", "--store", url, "--json").stdout)
    assert stats["entries"] == {"kernels": KERNELS, "memos": 1, "packs": 1}
    unknown = prebuild(*BUILD, "--store", "nosuch://place", "--out", str(tmp_path))
    assert unknown.returncode == 2
    assert "nosuch://place: is no store" in unknown.stderr


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An environment with a server that speaks S3, and a bucket there."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        variables = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        pytest.importorskip("s3fs").S3FileSystem().mkdir("bucket")
        yield {**os.environ, **variables}
    finally:
        server.stop()


@pytest.mark.slow
def test_a_store_in_a_bucket(s3: dict[str, str], filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    url = "s3://bucket/kernels"
    first, again = (build(url, tmp_path / "dist", environment=s3) for _ in range(2))
    assert [(one["compiled"], one["reused"], one["warnings"]) for one in (first, again)] == [
        (KERNELS, 0, []),
        (0, KERNELS, []),
    ]
    assert same_wheel(filled[1], again)
    shelf = store.Remote(url)
    assert len(store.compile_times(shelf)) == KERNELS
    assert len(store.collect_garbage(shelf, keep_seconds=3600, keep_bytes=0)) == KERNELS + 2
    assert list(shelf.items()) == []

    nowhere = store.open_store("s3://no-such-bucket")
    nowhere.keep_pack("packs/name", b"data")
    assert nowhere.where is None
    assert "the store s3://no-such-bucket cannot be written to" in nowhere.warnings[0]
    gone = {**s3, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    stats = prebuild("store", "stats", "--store", url, environment=gone)
    assert (stats.returncode, stats.stderr.count("\n")) == (1, 1)
    assert f"aiter-flydsl-prebuild: {url}: " in stats.stderr


@pytest.mark.slow
def test_garbage_goes_by_age_and_by_size(copied: Path) -> None:
    old = kernels(copied)[:4]
    theirs = copied / "kernels" / "notes.txt"
    left = Path(files.temporary_path(str(old[0].parent)))  # by a writer that was killed
    for path in (theirs, left):
        path.write_text("")
    for path in (*old, theirs, left):
        os.utime(path, (0, 0))
    removed = json.loads(prebuild("store", "gc", "--store", str(copied), "--days", "1", "--json").stdout)
    assert removed["removed"] == 5
    assert not any(path.exists() for path in (*old, left))
    prebuild("store", "gc", "--store", str(copied), "--max-size", "10kB")
    assert theirs.exists(), "not an entry of the store"
    assert sum(path.stat().st_size for path in copied.rglob("*") if path.is_file()) <= 10_000
    assert prebuild("store", "gc", "--max-size", "big").returncode == 2


@pytest.mark.slow
def test_zero_days_keep_nothing_but_what_is_being_written(copied: Path) -> None:
    (some, *_) = kernels(copied)
    future = time.time() + 86400  # by a file server's clock
    os.utime(some, (future, future))
    fresh, stale = Path(files.temporary_path(str(some.parent))), some.with_name(f".{some.name}.{'1' * 12}")
    for path in (fresh, stale):
        path.write_text("")
    os.utime(stale, (0, 0))
    done = prebuild("store", "gc", "--store", str(copied), "--days", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert [item.name for item in store.Folder(copied).items()] == [fresh.relative_to(copied).as_posix()]


@pytest.mark.slow
@pytest.mark.parametrize("days", ["-1", "nan", "inf", "month"])
def test_days_that_are_none(copied: Path, days: str) -> None:
    done = prebuild("store", "gc", "--store", str(copied), f"--days={days}")
    assert done.returncode == 2
    assert done.stderr.endswith(f"argument --days: {days!r} is not a number of days, 0 or more\n")


def test_a_memo_is_asked_once(tmp_path: Path) -> None:
    asked = []

    def ask() -> Any:
        asked.append(1)
        return {"answer": len(asked)}

    kept = store.open_store(str(tmp_path))
    assert [kept.remember("key", ask) for _ in range(3)] == [{"answer": 1}] * 3
    memo = tmp_path / "memos" / "key.json"
    sound = memo.read_text()
    for number, damaged in enumerate(["{", "7", "null", "{}", sound.replace('"answer": 1', '"answer": 7')], 2):
        memo.write_text(damaged)
        assert kept.remember("key", ask) == {"answer": number}
        assert "damaged" in kept.warnings.pop()
    assert store.open_store("off").remember("key", ask) == {"answer": len(asked)}


@pytest.mark.slow
def test_asking_for_times_uses_nothing(copied: Path, filled: tuple[Path, dict[str, Any]]) -> None:
    kept = kernels(copied)
    for path in kept:
        os.utime(path, (0, 0))
    kept[0].write_bytes(b"damaged")
    times = json.loads(prebuild("store", "times", "--store", str(copied)).stdout)["seconds_of"]
    assert len(times) == KERNELS - 1
    assert all(filled[1]["seconds_of"][label] == pytest.approx(times[label], abs=1e-4) for label in times)
    assert {path.stat().st_mtime for path in kept[1:]} == {0}


def test_the_users_own_store_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(store.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.open_store().where == str(tmp_path / "aiter-flydsl-prebuild" / "store")
    monkeypatch.setenv(store.VARIABLE, "off")
    assert store.open_store().where is None
    with pytest.raises(InputError):
        store.open_store().shelf()


def test_a_kernel_is_bound_to_the_bitcode_that_it_linked(toolchain: Toolchain, tmp_path: Path) -> None:
    """Wherever that was: a machine of a cluster may have bitcode, and this one none."""
    (tmp_path / "ocml.bc").write_bytes(b"bitcode")
    here = replace(toolchain, bitcode=tmp_path)
    source, flydsl, job = load_source("reference"), building_flydsl(), make_job()
    with_bitcode, without = (KernelKeys(source, flydsl, replace(here, bitcode=b)) for b in (tmp_path, None))
    portable, bound = with_bitcode.names(job)
    assert without.names(job) == [portable]
    for keys in (with_bitcode, without):
        assert keys.name(job, None) == portable
        assert keys.name(job, with_bitcode.bitcode) == bound
        assert keys.name(job, "f" * 64) not in (portable, bound)


# ---- what a kernel of AITER depends on -------------------------------------------------------------------------------

STANDIN = SUPPORT / "standin_aiter"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STANDIN, tmp_path / "aiter-checkout"))


@pytest.mark.slow
def test_touching_one_family_compiles_that_family_alone(checkout: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    select = ("--source", "aiter", "--tokens", "1..64", "--models", "none", "--store", str(tmp_path / "store"))

    def counts() -> tuple[int, int]:
        done = prebuild("build", *select, "--out", tmp_path, "--json", environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        return found["compiled"], found["reused"]

    total, _ = counts()
    assert counts() == (0, total)
    module = checkout / "aiter" / "ops" / "flydsl" / "batched_gemm_a8w8_gfx950.py"
    module.write_text(module.read_text() + "# touched\n")
    compiled, reused = counts()
    assert 0 < compiled < total
    assert compiled + reused == total
    (checkout / "aiter" / "ops" / "gemm_op_a8w8.py").write_text(
        (checkout / "aiter" / "ops" / "gemm_op_a8w8.py").read_text() + "# passed by every call\n"
    )
    assert counts() == (total, 0)


def test_imports_are_followed_below_the_folder_of_kernels(tmp_path: Path) -> None:
    package = tmp_path / "aiter"
    texts = {
        "ops/wrapper.py": "import aiter.ops.flydsl.other",
        "ops/flydsl/main.py": "def late():\n    from .kernels import one\n    from . import helper\n",
        "ops/flydsl/helper.py": "import aiter.ops.flydsl.kernels.two, torch, aiter.ops.wrapper",
        "ops/flydsl/other.py": "",
        "ops/flydsl/__init__.py": "from . import other",
        "ops/flydsl/kernels/__init__.py": "",
        "ops/flydsl/kernels/one.py": "from ..helper import name\nfrom aiter.jit import core",
        "ops/flydsl/kernels/two.py": "",
        "jit/core.py": "",
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    found = code.files(package, ("ops/wrapper.py", "ops/gone.py"), ("ops/flydsl/main.py",))
    kept = {path.relative_to(package).as_posix() for path in found}
    assert {"ops/wrapper.py", "ops/flydsl/main.py", "ops/flydsl/helper.py"} <= kept
    assert {"ops/flydsl/kernels/one.py", "ops/flydsl/kernels/two.py", "ops/flydsl/kernels/__init__.py"} <= kept
    assert "jit/core.py" not in kept


# Compiles one kernel of each family and prints which of AITER's files were executed for it, beyond imports.
TRACE = """
import json, sys
from pathlib import Path
from aiter_flydsl_prebuild.sources.planning import plan_source
from aiter_flydsl_prebuild.sources import load_source
from aiter_flydsl_prebuild.sources.aiter import code, installed
from aiter_flydsl_prebuild.sources.aiter.ops import OPS
from aiter_flydsl_prebuild.model.job import Options
source = load_source("aiter", Options(models=("none",)))
package = installed.find().package
families = {}
for job in plan_source(source, arch="gfx950", cu_num=(), tokens=(1, 4096)).jobs:
    op = OPS[job.shape.op]
    families.setdefault((op.passed, op.kernel_files(job.name)), []).append(job)
found = {}
for (passed, kernels), (first, *more) in families.items():
    source.compile(first)  # imports what it needs
    executed = set()
    sys.settrace(lambda frame, event, argument: executed.add(frame.f_code.co_filename))
    source.compile((more or [first])[0])
    sys.settrace(None)
    declared = {str(path) for path in code.files(package, passed, kernels)}
    ours = {name for name in executed if name.startswith(str(package))}
    found[first.name] = [sorted(ours - declared), len(ours)]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["stand-in", "AITER_SOURCE"])
def test_no_undeclared_file_of_aiter_has_a_say(where: str, toolchain: Any, tmp_path: Path) -> None:
    if where == "AITER_SOURCE" and where not in os.environ:
        pytest.skip("AITER_SOURCE does not name a checkout of AITER")
    source = os.environ.get("AITER_SOURCE", "") if where == "AITER_SOURCE" else str(STANDIN)
    python = aiter_checkout.python() if where == "AITER_SOURCE" else sys.executable
    done = run_python(["-c", TRACE], flydsl_environment(toolchain, tmp_path / "cache", PYTHONPATH=source), python)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found
    assert all(undeclared == [] and executed for undeclared, executed in found.values()), found


def test_every_op_declares_its_files() -> None:
    aiter = installed.Installed(STANDIN / "aiter")
    for op in OPS.values():
        names = ("kernel", PerToken.eight_waves)
        assert all(code.files(aiter.package, op.passed, op.kernel_files(name)) for name in names)
