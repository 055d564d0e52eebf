"""Compiling on other machines, through any ``concurrent.futures.Executor``: Dask's, a process pool's, a cluster's own.

What an executor runs is :func:`compile_batch`: some jobs, compiled there as they are here, in a process of their own
with a scrubbed environment, a time limit for each, and deaths that end one kernel and nothing else. What comes back are
packs of one kernel each, which are checked as any pack is. The machine must have this project, the same FlyDSL and the
same source; it finds its own linker, which has to be of the same version.

A batch amortises the seconds that a process needs for importing torch and FlyDSL. One that is lost with its machine is
given out again, job by job.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ... import needs
from ...digests import compiling_code
from ...errors import CheckError, InputError, PrebuildError
from ...flydsl.toolchain import find_toolchain, worker_environment
from ...model.job import Job
from ...packs.format import Pack
from ...packs.manifest import FlyDSL, ToolchainFacts
from ...processes import die_with_parent, terminated_cleanly
from ...scratch import scratch_folder
from ...sources import load_source
from ..compiling import Compiled, Task, building_flydsl, compile_task, make_task
from ..packing import encode_kernel, source_facts, unpacked
from ..sharding import longest_first
from .pool import Kind, Outcome, run_jobs

BATCHES = 4
"""How many batches there are for each that an executor runs at once: a slow or lost one does not hold up the rest."""

FEW = 8
"""Kernels that are too few for a batch, as long as every machine has one: its process imports torch and FlyDSL, which
takes as long as some kernels."""

SLOTS = 4
"""How many batches an executor runs at once, where nobody says."""


@dataclass(frozen=True)
class Batch:
    """Jobs of one source for one arch; ``timeout`` is in seconds for one kernel.

    The rest must be the same there, but for the device bitcode: a machine that has other compiles what needs none.
    """

    jobs: tuple[Job, ...]
    timeout: float
    flydsl: FlyDSL
    linker: str
    bitcode: str | None
    code: str
    project: str


@dataclass(frozen=True)
class Answer:
    """What became of one job: a pack of its kernel, or why there is none (as :class:`.pool.Outcome`)."""

    kind: Kind
    pack: bytes | None
    error: str | None
    seconds: float
    attempts: int
    log: str


def compile_batch(batch: Batch) -> list[Answer]:
    """Compile a batch on this machine; answers in the order of its jobs.

    In a process of its own: an executor's workers may be threads, and may not be allowed to have children.

    :raises CheckError: this machine is not like the one that planned; the message says in what.
    """
    command = [sys.executable, "-m", f"{__package__}.remote"]
    run = subprocess.run(command, input=pickle.dumps((os.getpid(), batch)), capture_output=True, check=False)
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise CheckError(f"{os.uname().nodename}: {said[-1]}")
    answers: list[Answer] = pickle.loads(run.stdout)
    return answers


def run_batches(
    jobs: Sequence[Job],
    executor: Executor,
    *,
    about: Batch,
    costs: Sequence[float],
    slots: int,
    on_event: Callable[[Outcome[Task, Compiled]], None],
    task_of: Callable[[Job], Task],
) -> list[Outcome[Task, Compiled]]:
    """Compile jobs through an executor; outcomes in the order of the jobs.

    :param about: a batch without jobs.
    :param costs: what each job takes, against the others.
    :param slots: how many batches the executor runs at once.
    :raises CheckError: a machine of the executor is not like this one.
    """
    outcomes: dict[Job, Outcome[Task, Compiled]] = {}
    waiting: dict[Future[list[Answer]], tuple[Job, ...]] = {}

    def submit(batch: tuple[Job, ...]) -> None:
        try:
            waiting[executor.submit(compile_batch, _with_jobs(about, batch))] = batch
        except Exception as error:  # A pool whose worker died takes nothing more.
            lose(batch, error)

    def lose(batch: tuple[Job, ...], error: BaseException) -> None:
        for job in batch:
            settle(job, Answer("died", None, f"its machine was lost: {_said(error)}", 0.0, 2, ""))

    def settle(job: Job, answer: Answer) -> None:
        result = None
        if answer.pack is not None:
            (result,) = unpacked(Pack(f"{job.label} from {type(executor).__name__}", answer.pack))
        said = answer.kind, result, answer.error, answer.seconds, answer.attempts, answer.log
        outcomes[job] = Outcome(task_of(job), *said)
        on_event(outcomes[job])

    try:
        for batch in batches(jobs, costs, min(BATCHES * slots, max(slots, len(jobs) // FEW))):
            submit(batch)
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                batch = waiting.pop(future)
                try:
                    answers = future.result()
                except PrebuildError:
                    raise
                except Exception as error:
                    if len(batch) == 1:
                        lose(batch, error)
                    for job in batch if len(batch) > 1 else ():
                        submit((job,))
                    continue
                for job, answer in zip(batch, answers, strict=True):
                    settle(job, answer)
    finally:
        for future in waiting:
            future.cancel()
    return [outcomes[job] for job in jobs]


def batches(jobs: Sequence[Job], costs: Sequence[float], count: int) -> Iterator[tuple[Job, ...]]:
    """Jobs in ``count`` batches or fewer that take about as long as each other, the longest jobs first."""
    share = sum(costs) / count
    batch: list[Job] = []
    load = 0.0
    for job, cost in longest_first(jobs, costs):
        batch.append(job)
        load += cost
        if load >= share:
            yield tuple(batch)
            batch, load = [], 0.0
    if batch:
        yield tuple(batch)


def _with_jobs(about: Batch, jobs: tuple[Job, ...]) -> Batch:
    return replace(about, jobs=jobs)


def _said(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """The executor of a Dask cluster, by the address of its scheduler, and how many batches it runs at once now.

    :raises MissingError: Dask is not installed.
    :raises InputError: no scheduler answers.
    """
    needs.require("--scheduler", "distributed")
    from distributed import Client

    try:
        client = Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"{address}: no Dask scheduler answers: {_said(error)}") from error
    with client:
        # A cluster may have no worker yet, and get them when there is work.
        yield client.get_executor(pure=False, retries=2), sum(client.nthreads().values()) or SLOTS


# ---- the machine's side ----------------------------------------------------------------------------------------------


def _compile_here(batch: Batch) -> list[Answer]:
    here, toolchain = building_flydsl(), find_toolchain()
    source = load_source(batch.jobs[0].source, batch.jobs[0].options)
    for what, there, ours in (
        ("FlyDSL", (batch.flydsl.version, batch.flydsl.identities), (here.version, here.identities)),
        ("linker", batch.linker, toolchain.linker_version),
        (f"source {source.name}", batch.code, source.watched()),
        ("aiter-flydsl-prebuild", batch.project, compiling_code(type(source))),
    ):
        if there != ours:
            raise CheckError(f"this machine's {what} is not the one that the build was planned with")
    same_bitcode = toolchain.fingerprint.bitcode == batch.bitcode
    bitcode_root = toolchain.rocm_root_with_bitcode() if same_bitcode else None
    with scratch_folder("batch") as folder:
        environment = worker_environment(
            os.environ, rocm_root=toolchain.rocm_root, arch=batch.jobs[0].arch, folder=folder
        )
        tasks = [make_task(job, toolchain, bitcode_root) for job in batch.jobs]
        outcomes = run_jobs(tasks, compile_task, workers=1, timeout=batch.timeout, environment=environment)
    facts, mine = source_facts(source, {}), ToolchainFacts(toolchain.linker_version, toolchain.fingerprint.bitcode)
    return [
        Answer(
            outcome.kind,
            None if outcome.result is None else encode_kernel(outcome.result, here, facts, mine),
            outcome.error,
            outcome.seconds,
            outcome.attempts,
            outcome.log,
        )
        for outcome in outcomes
    ]


def main() -> int:
    """Take a batch from standard input, give its answers to standard output."""
    sent: tuple[int, Any] = pickle.load(sys.stdin.buffer)
    parent, batch = sent
    # A worker that is killed leaves this process the time to remove its folders.
    with terminated_cleanly():
        die_with_parent(parent, signal.SIGTERM)
        # What a compile prints must not be taken for an answer.
        answer = os.dup(1)
        os.dup2(2, 1)
        try:
            answers = _compile_here(batch)
        except PrebuildError as error:
            print(error, file=sys.stderr)
            return 1
        with open(answer, "wb") as file:
            pickle.dump(answers, file)
    return 0


if __name__ == "__main__":
    # Under its own name, so that both sides mean the same classes.
    from aiter_flydsl_prebuild.builder.backends.remote import main as run

    sys.exit(run())
