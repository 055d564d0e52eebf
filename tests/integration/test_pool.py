"""The worker pool, with real processes that hang, die and print."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.backends.pool import Outcome, run_jobs
from aiter_flydsl_prebuild.builder.machine import available_memory, default_workers
from aiter_flydsl_prebuild.flydsl.toolchain import scrubbed_environment

HERE = Path(__file__).parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "MARK": "worker"}

# ---- what the workers run: they import this module ------------------------------------------------------------------


def double(job: int) -> int:
    print(f"doubling {job}")
    return job * 2


def fail(job: object) -> None:
    if job == "exit":
        sys.exit(3)
    if job == "silent":
        raise KeyError
    raise ValueError("no such tile\nsecond line")


def unpicklable(job: object) -> object:
    return lambda: job


def kill_myself(job: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(flag: str) -> str:
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["MARK"]


def abort_as_llvm_does(job: str) -> None:
    print("through Python")
    os.write(2, b"LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.none\n")
    os.abort()


def compile_what_llvm_cannot_select(job: str) -> None:
    """A kernel for gfx950 with an instruction of gfx1250."""
    import flydsl.compiler as flyc
    import flydsl.expr as fx
    from flydsl._mlir import ir
    from flydsl._mlir.dialects import arith, llvm

    @flyc.kernel  # type: ignore[untyped-decorator]
    def bad_kernel(data: fx.Pointer) -> None:
        zero = arith.constant(ir.IntegerType.get_signless(16), 0)
        llvm.call_intrinsic(None, "llvm.amdgcn.s.wait.asynccnt", [zero], [], [])

    @flyc.jit  # type: ignore[untyped-decorator]
    def bad(data: fx.Pointer, stream: fx.Stream) -> None:
        bad_kernel(data).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)

    bad(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), fx.Stream(0))


def mixed(job: str) -> str:
    if job == "abort":
        os.abort()
    if job == "sleep":
        time.sleep(60)
    return job


def view(job: int) -> dict[str, Any]:
    time.sleep(0.3)
    return {"pid": os.getpid(), "environ": dict(os.environ), "hash": hash("a string"), "started": STARTED}


STARTED: list[str] = []


def note_start() -> None:
    STARTED.append(os.environ["MARK"])


def failing_start() -> None:
    raise RuntimeError("no torch here")


def hang_with_child(folder: str) -> None:
    """Starts a process, as LLVM starts a linker, leaves both ids, and hangs."""
    child = subprocess.Popen(["sleep", "600"])
    Path(folder, f"{os.getpid()}.pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def hang_in_two_workers(folder: str) -> None:
    run_jobs([folder, folder], hang_with_child, workers=2, timeout=600, environment=ENVIRONMENT)


# ---- helpers --------------------------------------------------------------------------------------------------------


def run(jobs: list[Any], function: Any, **options: Any) -> list[Outcome[Any, Any]]:
    options = {"workers": 2, "timeout": 30, "environment": ENVIRONMENT, **options}
    return run_jobs(jobs, function, **options)


def views(outcomes: list[Outcome[Any, Any]]) -> list[dict[str, Any]]:
    """What :func:`view` returned to each job."""
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


# ---- results --------------------------------------------------------------------------------------------------------


def test_outcomes_come_in_the_order_of_the_jobs() -> None:
    seen: list[Outcome[int, int]] = []
    outcomes = run([3, 1, 2], double, on_event=seen.append)
    assert [(o.job, o.result, o.kind, o.error, o.attempts) for o in outcomes] == [
        (job, job * 2, "ok", None, 1) for job in (3, 1, 2)
    ]
    assert outcomes[0].log == "doubling 3"
    assert sorted(seen, key=lambda o: o.job) == sorted(outcomes, key=lambda o: o.job)


def test_no_jobs() -> None:
    assert run([], double) == []


def test_an_exception_is_final_and_reported_in_its_own_words() -> None:
    plain, silent, leaving = run(["", "silent", "exit"], fail)
    assert (plain.kind, plain.error, plain.attempts) == ("error", "no such tile\nsecond line", 1)
    assert plain.log.startswith("Traceback")
    assert (silent.error, leaving.error) == ("KeyError", "SystemExit(3)")


def test_a_result_that_does_not_pickle_is_an_error() -> None:
    (outcome,) = run([1], unpicklable)
    assert outcome.kind == "error"
    assert "local object" in (outcome.error or "")


def test_functions_of_the_main_module_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double, "__module__", "__main__")
    with pytest.raises(ValueError, match="main module"):
        run([1], double)


# ---- deaths ---------------------------------------------------------------------------------------------------------


def test_a_worker_killed_once_is_replaced_and_its_job_tried_again(tmp_path: Path) -> None:
    (outcome,) = run([str(tmp_path / "flag")], die_once)
    assert (outcome.kind, outcome.attempts) == ("ok", 2)
    assert outcome.result == "worker", "the new worker has the given environment too"


@pytest.mark.parametrize("retries", [0, 2])
def test_a_job_that_always_kills_its_worker_is_reported(retries: int) -> None:
    (outcome,) = run(["x"], kill_myself, retries=retries)
    assert (outcome.kind, outcome.attempts) == ("died", retries + 1)
    assert outcome.error == "its process was killed by SIGKILL (out of memory?)"


def test_an_abort_carries_what_was_printed_before_it() -> None:
    (outcome,) = run(["x"], abort_as_llvm_does, retries=0)
    assert outcome.error == "its process was killed by SIGABRT"
    assert outcome.log.splitlines()[-1] == "LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.none"


@pytest.mark.skipif(
    not importlib.util.find_spec("flydsl") or not importlib.util.find_spec("torch"), reason="FlyDSL or torch is missing"
)
def test_a_real_abort_of_flydsls_compiler_is_reported(tmp_path: Path) -> None:
    environment = {
        **scrubbed_environment(os.environ, rocm_root=tmp_path, arch="gfx950", cache_dir=tmp_path / "cache"),
        "COMPILE_ONLY": "1",
    }
    (outcome,) = run(["x"], compile_what_llvm_cannot_select, environment=environment, timeout=60, retries=0)
    assert (outcome.kind, outcome.error) == ("died", "its process was killed by SIGABRT")
    assert "LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.s.wait.asynccnt" in outcome.log


def test_deaths_and_hangs_leave_the_other_jobs_alone() -> None:
    jobs = ["abort" if n % 5 == 0 else "sleep" if n == 7 else f"job {n}" for n in range(20)]
    outcomes = run(jobs, mixed, retries=0, timeout=1)
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert outcome.kind == {"abort": "died", "sleep": "timeout"}.get(job, "ok"), outcome
    assert sum(outcome.ok for outcome in outcomes) == 15


def test_a_job_over_its_time_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    (outcome,) = run([str(tmp_path)], hang_with_child, timeout=1)
    assert (outcome.kind, outcome.error, outcome.attempts) == ("timeout", "timed out after 1 s", 1)
    assert time.monotonic() - began < 5
    (pids,) = (path.read_text().split() for path in tmp_path.iterdir())
    assert len(pids) == 2
    assert wait_until(lambda: not any(alive(int(pid)) for pid in pids), 2)


# ---- how workers start ----------------------------------------------------------------------------------------------


def test_workers_start_in_exactly_the_given_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYDSL_DEBUG_ENABLE_DEBUG_INFO", "1")
    monkeypatch.setenv("MARK", "parent")
    first, second = views(run([1, 2], view, initializer=note_start))
    assert first["environ"] == second["environ"] == ENVIRONMENT
    assert first["pid"] != second["pid"]
    # PYTHONHASHSEED counts only when the interpreter starts.
    assert first["hash"] == second["hash"]
    assert first["started"] == ["worker"]
    assert os.environ["MARK"] == "parent"


def test_the_initializer_runs_once_in_each_worker() -> None:
    outcomes = run([1, 2, 3, 4], view, initializer=note_start, workers=1)
    assert {tuple(seen["started"]) for seen in views(outcomes)} == {("worker",)}


def test_an_initializer_that_fails_is_each_jobs_error() -> None:
    assert [o.error for o in run([1, 2], double, initializer=failing_start)] == ["no torch here"] * 2


def test_no_more_workers_than_jobs() -> None:
    (outcome,) = run([1], view, workers=8)
    assert outcome.ok
    outcomes = run([1, 2, 3], view, workers=2)
    assert len({seen["pid"] for seen in views(outcomes)}) <= 2


def test_the_main_module_does_not_run_again(tmp_path: Path) -> None:
    """As in ``python setup.py bdist_wheel``, whose main module is not written for it."""
    script = tmp_path / "setup.py"
    script.write_text(
        "import test_pool\nprint('main runs')\nprint([o.result for o in test_pool.run([1, 2], test_pool.double)])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["main runs", "[2, 4]"]


# ---- the end of the parent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)],
    ids=["interrupt", "interrupt-from-terminal", "terminate", "kill"],
)
def test_no_worker_outlives_the_parent(tmp_path: Path, number: signal.Signals, whole_group: bool) -> None:
    from processes import start_interruptible  # not above: the workers import this module, and need none of it

    parent = start_interruptible(
        [sys.executable, "-c", f"import test_pool; test_pool.hang_in_two_workers({str(tmp_path)!r})"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    pids: list[int] = []
    try:
        assert wait_until(lambda: len(list(tmp_path.glob("*.pids"))) == 2, 20)
        time.sleep(0.1)
        pids = [int(pid) for path in tmp_path.glob("*.pids") for pid in path.read_text().split()]
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
        sent = time.monotonic()
        (os.killpg if whole_group else os.kill)(parent.pid, number)
        _, said = parent.communicate(timeout=10)
        assert time.monotonic() - sent < 2
        assert parent.returncode == -number
        if number == signal.SIGINT:
            assert said.rstrip().endswith("KeyboardInterrupt")
        if number == signal.SIGKILL:
            # The kernel ends the workers; what those started is out of reach then.
            pids = [int(path.stem) for path in tmp_path.glob("*.pids")]
        assert wait_until(lambda: not any(alive(pid) for pid in pids), 2)
        if number != signal.SIGKILL:
            assert not list(tmp_path.glob("aiter-flydsl-prebuild-*")), "the logs' folder is gone as well"
    finally:
        for path in tmp_path.glob("*.pids"):
            for pid in path.read_text().split():
                if alive(int(pid)):
                    os.kill(int(pid), signal.SIGKILL)
        parent.kill()
        parent.wait()


def test_an_error_of_the_callback_stops_the_work() -> None:
    def stop(outcome: Outcome[str, str]) -> None:
        raise LookupError(outcome.job)

    began = time.monotonic()
    with pytest.raises(LookupError, match="quick"):
        run(["quick", "sleep"], mixed, on_event=stop)
    assert time.monotonic() - began < 5


# ---- how many -------------------------------------------------------------------------------------------------------


def machine(root: Path, *, free_kb: int, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 9\nMemAvailable:   {free_kb} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_workers_are_limited_by_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    root = machine(tmp_path, free_kb=4_000_000, files={})
    assert default_workers(root=root) == 5
    assert default_workers(2.0, root=root) == 2
    assert default_workers(100.0, root=root) == 1


def test_workers_are_limited_by_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 4})
    assert default_workers(root=machine(tmp_path, free_kb=10**9, files={})) == 3


def test_a_machine_that_says_nothing_of_memory(tmp_path: Path) -> None:
    assert default_workers(root=tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/ci/job\n",
            "sys/fs/cgroup/ci/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/ci/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/ci/job/memory.max": "max\n",
            "sys/fs/cgroup/ci/memory.max": "3000000000\n",
            "sys/fs/cgroup/ci/memory.current": "2000000000\n",
            "sys/fs/cgroup/ci/memory.stat": "anon 5\ninactive_file 600000000\n",
        },
        {
            "proc/self/cgroup": "4:memory:/ci\n1:cpu,cpuacct:/not/mounted/here\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/ci/memory.limit_in_bytes": "3000000000\n",
            "sys/fs/cgroup/memory/ci/memory.usage_in_bytes": "2000000000\n",
            "sys/fs/cgroup/memory/ci/memory.stat": "total_inactive_file 600000000\n",
        },
    ],
    ids=["cgroup-v2", "cgroup-v1"],
)
def test_a_containers_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    root = machine(tmp_path, free_kb=10**9, files=files)
    assert available_memory(root) == 1_600_000_000
    assert default_workers(0.1, root=root) == 2
    assert default_workers(root=root) == 2
    assert default_workers(1.5, root=root) == 1
