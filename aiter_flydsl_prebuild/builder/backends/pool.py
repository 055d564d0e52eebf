"""A pool of worker processes for compile jobs, for functions that hang, abort and print.

What FlyDSL's compiler does to a process decides the shape: LLVM ends the process on some kernels (``LLVM ERROR: Cannot
select``), prints why on the file descriptors and not through Python, and cannot be interrupted while it runs. So every
job runs in a worker process with its output in a file, under a time limit, and may be tried again in another worker.

Built on ``pebble.ProcessPool`` with the start method spawn, one pool of one process for each slot: with one process to
a pool a death is always the death of that slot's job, and no other job can be held up by it.

A worker starts with exactly the given environment (it matters from the first instruction on: PYTHONHASHSEED and
LD_LIBRARY_PATH are read when the interpreter starts), and does not run the program's main module again, as spawn
otherwise does: ``python setup.py bdist_wheel`` would start another build in every worker.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from pebble import ProcessExpired, ProcessPool

from ...errors import PrebuildError
from ...processes import die_with_parent, terminated_cleanly
from ...scratch import scratch_folder

J = TypeVar("J")
R = TypeVar("R")

Kind = Literal["ok", "error", "timeout", "died"]

LOG_LINES, LOG_BYTES = 30, 8000
"""How much of what a job printed its outcome carries: its last lines."""


@dataclass(frozen=True)
class Outcome(Generic[J, R]):
    """What became of one job.

    ``kind`` is ``ok`` (``result`` is what the function returned), ``error`` (it raised), ``timeout`` or ``died`` (its
    process was ended by a signal, or ended itself: one that leaves with status 0 is only missed at the time limit).
    ``error`` is for people: the exception's own message, or what happened to the process; None when ok. ``log`` is the
    end of what the last attempt printed, by Python or not, a traceback included. ``seconds`` is the time from the first
    start to the end, all attempts and the wait between them together.
    """

    job: J
    kind: Kind
    result: R | None
    error: str | None
    seconds: float
    attempts: int
    log: str = ""

    @property
    def ok(self) -> bool:
        return self.kind == "ok"


def run_jobs(
    jobs: Sequence[J],
    function: Callable[[J], R],
    *,
    workers: int,
    timeout: float,
    environment: Mapping[str, str],
    initializer: Callable[[], None] | None = None,
    retries: int = 1,
    on_event: Callable[[Outcome[J, R]], None] | None = None,
) -> list[Outcome[J, R]]:
    """Runs ``function`` on every job in worker processes. The outcomes come back in the order of the jobs.

    ``function`` and ``initializer`` must be importable by name, jobs and results must pickle. ``initializer`` runs once
    in every worker, before its first job and within that job's limit. ``timeout`` is in seconds for one attempt; a job
    over it is stopped and not tried again. A job whose worker died is tried again up to ``retries`` times, in a new
    worker; one that raised is not. ``environment`` is all that a worker's environment holds. ``on_event`` is called in
    the caller's thread with each outcome as it arrives. No more workers start than there are jobs.

    A failed job raises nothing. KeyboardInterrupt, or anything that ``on_event`` raises, kills all workers and what
    they started, and goes on to the caller. SIGTERM does the same and then ends this process, where nothing else
    handles it. However this process ends, the kernel kills its workers. Raises PrebuildError when no worker can be
    started, and ValueError or pickle's errors for what cannot be sent to one.
    """
    if workers < 1 or timeout <= 0 or retries < 0:
        raise ValueError("workers must be at least 1, timeout above 0 and retries at least 0")
    if "__main__" in (getattr(function, "__module__", None), getattr(initializer, "__module__", None)):
        raise ValueError("workers do not load the main module: move the function to a module of its own")
    outcomes: dict[int, Outcome[J, R]] = {}
    waiting = deque(_Attempt(index, job) for index, job in enumerate(jobs))
    running: dict[Future[bytes], tuple[_Slot, _Attempt[J]]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_cleanly())
        folder = stack.enter_context(scratch_folder("jobs"))
        slots = [_Slot(folder / f"worker-{n}.log", environment) for n in range(min(workers, len(jobs)))]
        stack.callback(_stop, slots)
        idle = list(slots)
        while waiting or running:
            while waiting and idle:
                slot, attempt = idle.pop(), waiting.popleft()
                attempt.number += 1
                attempt.began = attempt.began or time.monotonic()
                running[slot.start((initializer, function, attempt.job), timeout)] = (slot, attempt)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                slot, attempt = running.pop(future)
                kind, value, log = slot.finish(future, timeout)
                idle.append(slot)
                if kind == "died" and attempt.number <= retries:
                    # To the end of the queue: what killed it, lack of memory say, may be over by then.
                    waiting.append(attempt)
                    continue
                outcome: Outcome[J, R] = _outcome(attempt, kind, value, log)
                outcomes[attempt.index] = outcome
                if on_event is not None:
                    on_event(outcome)
    return [outcomes[index] for index in range(len(jobs))]


def _outcome(attempt: _Attempt[J], kind: Kind, value: Any, log: str) -> Outcome[J, Any]:
    return Outcome(
        job=attempt.job,
        kind=kind,
        result=value if kind == "ok" else None,
        error=None if kind == "ok" else str(value),
        seconds=time.monotonic() - attempt.began,
        attempts=attempt.number,
        log=log,
    )


# ---- the parent's side -----------------------------------------------------------------------------------------------


@dataclass
class _Attempt(Generic[J]):
    """A job on its way: how often it was started, and when first."""

    index: int
    job: J
    number: int = 0
    began: float = 0.0


class _Slot:
    """One worker at a time, started again when it has died, and the file that has what it prints."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._environment = dict(environment)
        self._context = _CleanContext(self._environment)
        self._pool: Any = None

    def start(self, work: tuple[object, object, object], timeout: float) -> Future[bytes]:
        payload = pickle.dumps(work)
        self._log.write_bytes(b"")
        if self._pool is not None and not self._pool.active:
            # Its worker died between two jobs, and pebble gives such a pool up.
            self.stop()
            self.join()
            self._pool = None
        if self._pool is None:
            arguments = (str(self._log), self._environment, os.getpid())
            self._pool = ProcessPool(max_workers=1, initializer=_prepare, initargs=arguments, context=self._context)
        try:
            return cast("Future[bytes]", self._pool.schedule(_execute, args=(payload,), timeout=timeout))
        except (BrokenProcessPool, OSError) as error:
            raise PrebuildError(f"a worker process could not be started: {error.__cause__ or error}") from error

    def finish(self, future: Future[bytes], timeout: float) -> tuple[Kind, Any, str]:
        """How the attempt ended, its result or message, and the end of what it printed."""
        try:
            ok, value = pickle.loads(future.result())
        except FutureTimeoutError:
            self._context.kill_dead_groups()
            return "timeout", f"timed out after {timeout:g} s", _tail(self._log)
        except (ProcessExpired, BrokenProcessPool):
            return "died", _how_it_died(self._context.kill_dead_groups()), _tail(self._log)
        return "ok" if ok else "error", value, _tail(self._log)

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()
        self._context.kill_all()

    def join(self) -> None:
        if self._pool is not None:
            self._pool.join()


def _stop(slots: Sequence[_Slot]) -> None:
    """Ends all workers at once. Pebble's own way would ask each in turn, and wait."""
    for slot in slots:
        slot.stop()
    for slot in slots:
        slot.join()


class _CleanContext(SpawnContext):
    """The spawn start method, but a worker starts in the given environment and without this program's main module."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        process = _CleanProcess(*args, **kwargs)
        process.environment = self._environment
        self._started.append(process)
        return process

    def kill_dead_groups(self) -> int | None:
        """Kills what dead workers left running, a linker say. Returns the last one's exit status, -N for signal N."""
        dead = [process for process in self._started if process.pid and process.exitcode is not None]
        for process in dead:
            _kill(process)
            self._started.remove(process)
        return dead[-1].exitcode if dead else None

    def kill_all(self) -> None:
        for process in self._started:
            _kill(process)


class _CleanProcess(SpawnProcess):
    environment: Mapping[str, str]

    def start(self) -> None:
        with _start_lock, _replaced_environment(self.environment), _hidden_main(), _blocked_interrupt():
            super().start()


_start_lock = threading.Lock()


@contextlib.contextmanager
def _replaced_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Spawn has no way to give a process an environment: it inherits this one's, which is exchanged for a moment."""
    saved = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(environment)
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextlib.contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """A worker inherits what this thread blocks: Ctrl-C is for the parent, which kills its workers itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Spawn tells a process where this program's main module is, and it runs that: here it sees an empty one."""
    saved = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = saved


def _kill(process: SpawnProcess) -> None:
    """Kills a worker, dead or not, and all that it started: it leads a process group, once it is ready."""
    if process.pid is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _how_it_died(code: int | None) -> str:
    if code is None:
        return "its process died"
    if code >= 0:
        return f"its process exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:]).strip()


# ---- the worker's side -----------------------------------------------------------------------------------------------

_initialized = False


def _prepare(log: str, environment: Mapping[str, str], parent: int) -> None:
    """Makes a new process a worker: before anything else is imported in it."""
    # Pebble's handler cannot run while LLVM does.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    die_with_parent(parent)
    # Aborts are expected, and nobody wants their core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever the interpreter added at its start (LC_CTYPE, in the C locale) goes.
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)


def _execute(payload: bytes) -> bytes:
    """Runs one job. Everything it may raise is turned into text here: not every exception survives pickling."""
    global _initialized
    try:
        initializer, function, job = pickle.loads(payload)
        if initializer is not None and not _initialized:
            initializer()
        _initialized = True
        return pickle.dumps((True, function(job)))
    except BaseException as error:
        traceback.print_exc()
        text = str(error).strip() if isinstance(error, Exception) else repr(error)
        return pickle.dumps((False, text or type(error).__name__))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
