"""``verify --execute``: execute kernels of packs in processes of their own, and collect what became of them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...discovery import PACKS_VARIABLE, find_packs
from ...errors import CheckError, InputError
from ...execution import hip
from ...execution.problem import Outcome
from ...execution.tinygrad import checkout
from ...flydsl.install import read_install
from ...flydsl.toolchain import find_toolchain, scrubbed_environment
from ...model.job import Options
from ...packs.format import Pack
from ...progress import Progress
from ...sources import SOURCES, load_source
from ...target import ARCH_VARIABLE
from ..proof.proof import Subject
from ..store.store import Store
from .executor import EMULATOR, GPU
from .selection import Candidate, candidates, choose, emulator_version, key, test_version

TIMEOUT = 900.0
"""Seconds for one kernel, before its process is ended."""

MOST_TILES = 6
"""Tiles of a problem that are executed, where not every one is."""

EQUAL, RACING, WRONG = "equal", "races", "wrong"
NOT_EXECUTED, NOT_CHOSEN = "not executed", "not chosen"


@dataclass(frozen=True)
class Executed:
    """What became of one kernel: ``reason`` is why there are no outcomes. ``kept`` results are from the store."""

    candidate: Candidate
    outcomes: tuple[Outcome, ...] = ()
    reason: str | None = None
    kept: bool = False

    @property
    def status(self) -> str:
        """One of the words above. A racing kernel computes what it should if it wins its races."""
        if not self.outcomes:
            return NOT_CHOSEN if self.reason is None else NOT_EXECUTED
        if not all(outcome.equal for outcome in self.outcomes):
            return WRONG
        return RACING if any(outcome.races for outcome in self.outcomes) else EQUAL

    @property
    def worst(self) -> float:
        """The largest error, in units of the tolerance."""
        return max((outcome.worst for outcome in self.outcomes), default=0.0)

    def complaints(self) -> list[str]:
        """What is wrong with it, a line each."""
        label = self.candidate.job.label
        lines = [f"{label}: not executed: {self.reason}"] if self.reason else []
        for outcome in self.outcomes:
            if outcome.fault:
                lines.append(f"{label}, {outcome.label}: {outcome.fault}")
            elif not outcome.equal:
                lines.append(f"{label}, {outcome.label}: off by {outcome.worst:.3g} times the tolerance")
        return lines

    def races(self) -> list[str]:
        """Instructions that did not wait for what they read, a line each."""
        found = dict.fromkeys(race for outcome in self.outcomes for race in outcome.races)
        return [f"{self.candidate.job.label}: reads LDS that a load in flight is to write: {race}" for race in found]

    def to_json(self) -> dict[str, Any]:
        """As ``verify --execute --json`` prints it, and as the manifest and the report have it."""
        job = self.candidate.job
        return {
            "name": job.name,
            **job.shape.layer(),
            "status": self.status,
            "reason": self.reason,
            "kept": self.kept,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
        }


@dataclass(frozen=True)
class Execution:
    """All of it. ``on`` says where; ``version`` is the digest of the test, and of the emulator where there is one."""

    on: str
    version: str
    kernels: tuple[Executed, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether all that was chosen was executed, and computed what it should without a race."""
        states = {one.status for one in self.kernels}
        return EQUAL in states and states <= {EQUAL, NOT_CHOSEN}

    def complaints(self) -> list[str]:
        """What is wrong, a line each."""
        return [line for one in self.kernels for line in one.complaints()]

    def races(self) -> list[str]:
        """Instructions that did not wait for what they read, a line each."""
        return [line for one in self.kernels for line in one.races()]

    def to_json(self) -> dict[str, Any]:
        """As ``verify --execute --json`` prints it."""
        states = (EQUAL, RACING, WRONG, NOT_EXECUTED, NOT_CHOSEN)
        counts = {status: sum(one.status == status for one in self.kernels) for status in states}
        return {
            "ok": self.ok,
            "on": self.on,
            "version": self.version,
            **{status.replace(" ", "_"): count for status, count in counts.items()},
            "seconds": round(self.seconds, 1),
            "problems": [*self.complaints(), *self.races()],
            "kernels": [one.to_json() for one in self.kernels],
        }


@dataclass(frozen=True)
class Wish:
    """What a user asks for: see the options of ``verify --execute``."""

    kernels: int | str | None = None
    seed: int = 0
    on: str = EMULATOR
    emulator: Path | None = None
    tiles: int = MOST_TILES
    workers: int = 1
    timeout: float = TIMEOUT


def execute(
    subject: Subject,
    wish: Wish,
    store: Store,
    *,
    trusted: str | None = None,
    advance: Callable[[Executed, int], None] = lambda one, total: None,
) -> Execution:
    """Execute kernels of packs of one source.

    :param trusted: a source outside this project that may be imported.
    :param advance: is told of every kernel that is done, and how many there are.
    :raises InputError: no emulator, no compiler, or a source that may not be imported.
    :raises CheckError: FlyDSL is not installed, or the packs are of several sources.
    :raises PackError: a pack is damaged.
    """
    started = time.perf_counter()
    packs = [Pack(str(path)) for path in subject.packs]
    named = {pack.manifest.source.name for pack in packs}
    if len(named) != 1 or len({pack.arch for pack in packs}) != 1:
        raise CheckError("the packs are of several sources or arches; execute them one by one")
    (name,) = named
    if name not in (*SOURCES, trusted):
        raise InputError(f"the kernels are of {name}, which runs code of its own: --source {name} allows it")
    if read_install() is None:
        raise CheckError(f"FlyDSL is not installed: pip install flydsl=={packs[0].version}")
    source = load_source(name)
    conditions: dict[str, Any] = {"test": test_version(type(source)), "seed": wish.seed, "on": wish.on}
    if wish.on == EMULATOR:
        folder = checkout(wish.emulator)
        hip.find_compiler()
        conditions |= {"emulator": emulator_version(folder), "tiles": wish.tiles}
    found = candidates(packs)
    chosen = choose(found, source, wish.kernels, wish.seed)
    results: dict[Candidate, Executed] = {}
    keys = {one: key(one, packs[one.pack], conditions) for one in chosen}
    for one in chosen:
        kept = store.recall(keys[one])
        if kept is not None:
            results[one] = Executed(one, tuple(Outcome.from_json(value) for value in kept), kept=True)
            advance(results[one], len(chosen))
    rest = [one for one in chosen if one not in results]
    for done in _in_processes(subject, packs, rest, wish):
        results[done.candidate] = done
        if done.status in (EQUAL, RACING):
            store.keep(keys[done.candidate], [outcome.to_json() for outcome in done.outcomes])
        advance(done, len(chosen))
    version = "".join(str(conditions[part])[:16] for part in ("test", "emulator") if part in conditions)
    kernels = tuple(results.get(one, Executed(one)) for one in found)
    return Execution(wish.on, version, kernels, time.perf_counter() - started)


@contextlib.contextmanager
def shown(progress: Callable[[int], Progress]) -> Iterator[Callable[[Executed, int], None]]:
    """What :func:`execute` may tell how far it is; the display is there from the first kernel on."""
    with contextlib.ExitStack() as stack:
        displays: list[Progress] = []

        def advance(one: Executed, total: int) -> None:
            if not displays:
                displays.append(stack.enter_context(progress(total)))
            displays[0].advance(one.status == EQUAL, one.candidate.job.label)

        yield advance


def _in_processes(
    subject: Subject, packs: Sequence[Pack], chosen: Sequence[Candidate], wish: Wish
) -> Iterator[Executed]:
    """Execute the chosen kernels, spread over processes; each comes as it is done."""
    if not chosen:
        return
    count = 1 if wish.on == GPU else max(1, min(wish.workers, len(chosen)))
    done: list[Executed] = []
    ready = threading.Condition()

    def work(share: Sequence[Candidate], folder: Path) -> None:
        left = list(share)
        while left:
            worker = _Worker(subject, packs, left, wish, folder)
            for one in worker.results():
                left.remove(one.candidate)
                with ready:
                    done.append(one)
                    ready.notify()

    with tempfile.TemporaryDirectory(prefix="afp-execute-") as name:
        threads = []
        for number in range(count):
            folder = Path(name) / str(number)
            folder.mkdir()
            threads.append(threading.Thread(target=work, args=(chosen[number::count], folder), daemon=True))
            threads[-1].start()
        for _ in chosen:
            with ready:
                while not done:
                    ready.wait(1)
                    if not done and not any(thread.is_alive() for thread in threads):
                        raise CheckError("the processes that execute have ended without a result")
                one = done.pop(0)
            yield one


class _Worker:
    """One process that executes kernels one after the other."""

    def __init__(
        self, subject: Subject, packs: Sequence[Pack], share: Sequence[Candidate], wish: Wish, folder: Path
    ) -> None:
        self._share = list(share)
        self._timeout = wish.timeout
        self._log = folder / "log.txt"
        pack = packs[0]
        request = {
            "packs": [str(path.resolve()) for path in subject.packs],
            "search": [str(path) for path in subject.search],
            "source": pack.manifest.source.name,
            "digest": pack.manifest.source.digest,
            "options": Options.from_json(pack.manifest.plan.options).to_json(),
            "arch": pack.arch,
            "kernels": [[one.pack, one.index] for one in share],
            "seed": wish.seed,
            "tiles": wish.tiles,
            "on": wish.on,
            "emulator": None if wish.emulator is None else str(wish.emulator.resolve()),
            "parent": os.getpid(),
        }
        reading, writing = os.pipe()
        self._pipe = reading
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.executor", str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(subject, packs, wish, folder),
                cwd=folder,
                pass_fds=[writing],
            )
        os.close(writing)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()

    def results(self) -> Iterator[Executed]:
        """What it finds; where it dies, the kernel that it was at is not executed, and those behind it are left."""
        by_number = {(one.pack, one.index): one for one in self._share}
        left = list(self._share)
        problem: str | None = None
        try:
            for line in self._lines():
                if "kernel" in line:
                    one = by_number[line["kernel"][0], line["kernel"][1]]
                    left.remove(one)
                    outcomes = tuple(Outcome.from_json(value) for value in line["outcomes"])
                    yield Executed(one, outcomes, line["reason"])
                elif "problem" in line:
                    problem = line["problem"]
        except TimeoutError:
            problem = f"it took more than {self._timeout:.0f} s"
            yield Executed(left[0], (), problem)
            return
        finally:
            self._end()
        if problem is not None:  # nothing of this will be better in another process
            for one in left:
                yield Executed(one, (), problem)
        elif left:
            yield Executed(left[0], (), f"its process ended with {self._how()}: {self._said()}")

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while True:
                if not selector.select(self._timeout):
                    raise TimeoutError
                piece = os.read(self._pipe, 1 << 16)
                if not piece:
                    return
                *whole, buffer = (buffer + piece).split(b"\n")
                for line in whole:
                    yield json.loads(line)

    def _end(self) -> None:
        os.close(self._pipe)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _how(self) -> str:
        status = self._process.returncode
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    def _said(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _environment(subject: Subject, packs: Sequence[Pack], wish: Wish, folder: Path) -> dict[str, str]:
    arch = packs[0].arch
    if wish.on == GPU:
        base = dict(os.environ) | {"FLYDSL_RUNTIME_CACHE_DIR": str(folder / "cache")}
    else:
        root = folder / "no-rocm"
        if any(kernel.bitcode for pack in packs for kernel in pack.kernels):
            found = find_toolchain().rocm_root_with_bitcode()
            if found is None:
                raise CheckError("kernels of this pack link device bitcode; install ROCm's device libraries")
            root = found
        base = scrubbed_environment(os.environ, rocm_root=root, arch=arch, cache_dir=folder / "cache")
        for variable in ("CC", "TINYGRAD_SOURCE"):
            if variable in os.environ:
                base[variable] = os.environ[variable]
    given = [str(path.resolve()) for path in subject.packs]
    if not subject.search and any(path not in find_packs() for path in given):
        base[PACKS_VARIABLE] = os.pathsep.join(given)
    # FlyDSL: a miss raises instead of compiling, and a hit is launched.
    return base | {"TMPDIR": str(folder), "FLYDSL_RUNTIME_RUN_ONLY": "1", ARCH_VARIABLE: arch}
