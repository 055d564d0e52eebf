"""Compiling through executors: threads, processes that die, and a real Dask cluster that loses a worker."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.backends.remote import Batch, batches, compile_batch
from aiter_flydsl_prebuild.builder.compiling import building_flydsl
from aiter_flydsl_prebuild.builder.pipeline import BuildRequest, build_pack
from aiter_flydsl_prebuild.digests import compiling_code
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.flydsl.toolchain import find_toolchain
from aiter_flydsl_prebuild.progress import Progress
from aiter_flydsl_prebuild.scratch import remove_abandoned
from aiter_flydsl_prebuild.sources import load_source
from aiter_flydsl_prebuild.sources.planning import plan_source
from packs import make_job
from processes import prebuild, wait_until

REQUEST = BuildRequest("reference", "gfx950", (1, 1), store="off")


@pytest.fixture(scope="module")
def here(built_reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack that this machine's own workers make."""
    request = replace(REQUEST, store=str(built_reference / "store"))
    return build_pack(request, tmp_path_factory.mktemp("here"), Progress).path


@contextmanager
def dask_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster


def test_batches_take_about_as_long_as_each_other() -> None:
    jobs = [make_job(f"kernel{number}") for number in range(200)]
    costs = [1.0 + number % 7 for number in range(len(jobs))]
    found = list(batches(jobs, costs, 16))
    assert sorted(job.name for batch in found for job in batch) == sorted(job.name for job in jobs)
    by_job = dict(zip(jobs, costs, strict=True))
    loads = [sum(by_job[job] for job in batch) for batch in found]
    assert 14 <= len(found) <= 16
    assert max(loads[:-1]) <= min(loads[:-1]) + 7
    assert list(batches(jobs[::-1], costs[::-1], 16)) == found
    assert list(batches([], [], 16)) == []


@pytest.mark.slow
def test_threads(here: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        built = build_pack(REQUEST, tmp_path, Progress, executor)
    assert built.compiled == built.kernels == 18
    assert built.path.read_bytes() == here.read_bytes()


@pytest.mark.slow
def test_processes_of_which_one_is_killed(here: Path, tmp_path: Path) -> None:
    """The pool breaks, which nobody can mend: every kernel that it lost is named, and the store has the others."""
    store = tmp_path / "store"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        killer = threading.Thread(target=kill_when, args=(executor, store))
        killer.start()
        with pytest.raises(CheckError, match="its machine was lost"):
            build_pack(replace(REQUEST, store=str(store)), tmp_path, Progress, executor)
        killer.join()
    again = build_pack(replace(REQUEST, store=str(store)), tmp_path, Progress)
    assert 0 < again.compiled < 18
    assert again.path.read_bytes() == here.read_bytes()


def kill_when(executor: Any, store: Path) -> None:
    """Kill one of a pool's processes as soon as the store has a kernel."""
    while not list(store.rglob("*.fkpack")):
        time.sleep(0.05)
    os.kill(next(iter(executor._processes)), signal.SIGKILL)


@pytest.mark.slow
def test_dask_and_a_worker_that_is_killed(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with dask_cluster() as cluster:
        store = tmp_path / "store"

        def kill() -> None:
            while not list(store.rglob("*.fkpack")):
                time.sleep(0.05)
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
            # Its batch loses its parent, and takes its folders away.
            assert wait_until(lambda: len(list(temporary.glob("afp-batch-*"))) <= 1)

        killer = threading.Thread(target=kill)
        killer.start()
        done = prebuild(
            *("build", "--tokens", "1..1", "--scheduler", cluster.scheduler_address, "--json"),
            *("--store", str(store), "--out", str(tmp_path / "dist")),
        )
        killer.join()
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["compiled"], found["failed"], found["proof"]["compiled"]) == (18, [], 0)
        local = build_pack(replace(REQUEST, store=str(store)), tmp_path, Progress)
        assert local.compiled == 0
        assert local.path.read_bytes() == here.read_bytes()
        assert list(temporary.glob("afp-*")) == []


def test_a_worker_that_is_killed_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of its batch; then the batch's own process is killed as well, as by a power cut."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for both in (False, True):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            future = executor.submit(compile_batch, batch_here())
            assert wait_until(
                lambda: bool(list(tmp_path.glob("afp-batch-*/afp-jobs-*")) or list(tmp_path.glob("afp-jobs-*")))
            )
            (worker,) = executor._processes
            (batch,) = children(worker)
            if both:
                os.kill(batch, signal.SIGSTOP)
                os.kill(worker, signal.SIGKILL)
                os.kill(batch, signal.SIGKILL)
            else:
                os.kill(worker, signal.SIGKILL)
            with pytest.raises(BrokenProcessPool):
                future.result(timeout=30)
        assert wait_until(functools.partial(is_dead, batch))
        assert bool(list(tmp_path.glob("afp-*"))) == both
    # The batch's own workers hold their folders until they see that it is gone.
    assert wait_until(lambda: bool(remove_abandoned(tmp_path)))
    assert wait_until(lambda: remove_abandoned(tmp_path) == [] == list(tmp_path.iterdir()))


def batch_here() -> Batch:
    """A batch of some seconds that this machine takes."""
    toolchain, source = find_toolchain(), load_source("reference")
    fingerprint = toolchain.fingerprint
    plan = plan_source(source, arch="gfx950", cu_num=(), tokens=(1, 1), rule=None)
    code, project = source.watched(), compiling_code(type(source))
    return Batch(plan.jobs, 60.0, building_flydsl(), fingerprint.linker, fingerprint.bitcode, code, project)


def is_dead(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def children(process: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
def test_no_scheduler(tmp_path: Path) -> None:
    done = prebuild("build", "--scheduler", "tcp://127.0.0.1:9", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "tcp://127.0.0.1:9: no Dask scheduler answers" in done.stderr
    assert "Traceback" not in done.stderr


class Elsewhere(Executor):
    """A machine that has something else than the planner: it is told so, in place of being it."""

    def __init__(self, **different: Any) -> None:
        self.different = different
        self.pool = ThreadPoolExecutor(1)

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
        (batch,) = arguments
        assert function is compile_batch
        assert isinstance(batch, Batch)
        return self.pool.submit(function, replace(batch, **self.different))


@pytest.mark.parametrize(
    ("different", "said"),
    [
        ({"linker": "LLD 1.0"}, "linker"),
        ({"code": "0" * 64}, "source reference"),
        ({"project": "0" * 64}, "aiter-flydsl-prebuild"),
    ],
)
def test_a_machine_that_is_not_like_the_planners(different: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=f"this machine's {said} is not the one that the build was planned with"):
        build_pack(REQUEST, tmp_path, Progress, Elsewhere(**different))
    assert not list(tmp_path.iterdir())
