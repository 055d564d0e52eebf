"""The build, from tuned tables to a proven pack: what the command line and the hook both run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..digests import compiling_code
from ..dispatch.reach import UNDECODABLE, UNKNOWN, ShapeReach
from ..errors import CheckError, InputError
from ..flydsl.toolchain import Toolchain, find_toolchain, worker_environment
from ..model.job import Job, Options
from ..model.tokens import Range, count
from ..packs.format import Pack
from ..packs.manifest import (
    About,
    FlyDSL,
    LeftOut,
    Manifest,
    OtherFacts,
    PackageFacts,
    PlanFacts,
    ShapeFacts,
    ShardFacts,
    SkippedFacts,
    TableFacts,
    ToolchainFacts,
)
from ..progress import Progress
from ..scratch import scratch_folder
from ..sources import load_source
from ..sources.base import Source
from ..sources.planning import Plan, plan_source
from .backends.pool import Outcome, run_jobs
from .backends.remote import SLOTS, Batch, run_batches
from .bound import describe_packages, files_of
from .compiling import Compiled, Task, building_flydsl, compile_task, make_task
from .executing import execute_pack, require_emulator, wish_of
from .execution.facts import describe as describe_execution
from .gates import Gates, gates_of, refusal
from .machine import default_workers
from .memo import Memo
from .packing import (
    make_manifest,
    missing_kernel,
    pack_name,
    source_facts,
    write_pack,
)
from .proof.proof import Proof, judge
from .settings import BuildSettings
from .sharding import Shard, assign, costs_of, parse_shard
from .store.store import Store, open_store

if TYPE_CHECKING:
    from .execution.running import Wish


@dataclass(frozen=True)
class BuildRequest:
    """What to build. ``cu_num`` empty means every partition of the arch that the tables have; ``rule`` None means the
    source's own; ``timeout`` is in seconds for one kernel; ``workers`` None means as many as cores and memory allow;
    with an executor it says how many batches that runs at once. ``keep_going`` builds a pack although kernels are
    missing, and lists them in its manifest. ``store`` is a folder, a URL or ``off``; None means the user's choice
    (:func:`.store.store.open_store`).
    ``shard`` builds a part of the kernels: a pack that nobody installs, to be merged with
    the other parts, and proven then. ``gates`` are what the pack must pass, before it is proven, which takes longer.
    ``execute`` runs kernels of the pack on an emulator; one that computes something else is an error.
    """

    source: str
    arch: str
    tokens: Range
    cu_num: tuple[int, ...] = ()
    rule: str | None = None
    workers: int | None = None
    timeout: float = 300.0
    keep_going: bool = False
    options: Options = field(default_factory=Options)
    store: str | None = None
    shard: Shard | None = None
    gates: Gates = field(default_factory=Gates)
    execute: Wish | None = None


def request_of(settings: BuildSettings) -> BuildRequest:
    """The request of a build's settings.

    :raises InputError: ``shard`` is not well-formed, or settings of executing kernels are there without ``execute``.
    """
    return BuildRequest(
        source=settings.source,
        arch=settings.arch,
        tokens=settings.tokens,
        cu_num=settings.cu_num,
        rule=settings.rule,
        workers=settings.workers,
        timeout=settings.timeout,
        keep_going=settings.keep_going,
        options=Options(settings.kinds, settings.dtypes, settings.models),
        store=settings.store,
        shard=parse_shard(settings.shard, settings.shard_times) if settings.shard else None,
        gates=gates_of(settings),
        execute=wish_of(settings),
    )


@dataclass(frozen=True)
class BuiltPack:
    """A pack that was written. ``kernels`` are in it, of which ``compiled`` were not in the store; ``failed`` and
    ``left_out`` are not in it, and of the names ``undecodable`` there are no kernels. ``seconds`` from the plan to the
    proof; ``seconds_of`` tells, by label, what compiling a kernel took when it was compiled. A part of a build has no
    ``proof``."""

    path: Path
    kernels: int
    compiled: int
    shapes: int
    failed: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    undecodable: tuple[str, ...]
    uncovered: int
    bytes: int
    compile_seconds: float
    seconds: float
    seconds_of: dict[str, float]
    proof: Proof | None
    warnings: tuple[str, ...]


class KernelsFailedError(CheckError):
    """Kernels could not be compiled, and there is no pack: ``manifest`` is what it would have said."""

    def __init__(self, text: str, manifest: Manifest, seconds_of: dict[str, float], failed: tuple[str, ...]) -> None:
        super().__init__(text)
        self.manifest = manifest
        self.seconds_of = seconds_of
        self.failed = failed


def make_plan(request: BuildRequest, store: Store) -> Plan:
    """The plan of a request.

    :param store: remembers what takes a source long to find out.
    :raises InputError: a table is wrong, or nothing is left to compile.
    """
    source = load_source(request.source, request.options, store.remember)
    plan = plan_source(source, arch=request.arch, cu_num=request.cu_num, tokens=request.tokens, rule=request.rule)
    if not plan.jobs:
        nothing = f"no FlyDSL kernel serves {request.arch} for tokens {request.tokens[0]}..{request.tokens[1]}"
        raise InputError([nothing, *(f"skipped: {one}" for one in plan.left_out)])
    return plan


def build_pack(
    request: BuildRequest, folder: Path, progress: Callable[[int], Progress], executor: Executor | None = None
) -> BuiltPack:
    """Build and prove one pack in ``folder``; nothing is left there unless it is good.

    :param progress: makes the display for a number of kernels.
    :param executor: compiles in place of this machine's own workers (:mod:`.backends.remote`).
    :raises CheckError: kernels failed (all are listed), or the proof did.
    """
    if request.execute is not None:
        require_emulator(request.execute)
    started = time.perf_counter()
    store = open_store(request.store)
    flydsl = building_flydsl()
    toolchain = find_toolchain()
    plan = make_plan(request, store)
    # Before anything is compiled: what changes meanwhile is then other code than the pack says.
    files = {job: files_of(plan.source, job) for job in plan.jobs}
    about = describe(request, plan, toolchain, describe_packages(plan.source, files.values()))
    jobs = plan.jobs
    if request.shard is not None:
        jobs, shard = _part(plan, request.shard)
        about = about._replace(shard=shard)
    memo = Memo(store, plan.source, flydsl, toolchain)
    recalled = memo.recall(jobs)
    left = tuple(job for job in jobs if job not in recalled)
    with _arrivals(len(left), progress, memo, about) as arrived:
        if executor is None:
            outcomes = compile_jobs(left, request, toolchain, arrived)
        else:
            outcomes = _compile_elsewhere(left, request, toolchain, flydsl, plan.source, executor, arrived)
    compile_seconds = time.perf_counter() - started
    failed = [(o.job.job, _reason(o)) for o in outcomes if not o.ok]
    compiled = [*recalled.values(), *(o.result for o in outcomes if o.result is not None)]
    compiled = [replace(kernel, files=files[kernel.job]) for kernel in compiled]
    seconds_of = {kernel.job.label: round(kernel.seconds, 4) for kernel in compiled}
    manifest, payloads = make_manifest(request.arch, flydsl, compiled, [missing_kernel(*one) for one in failed], about)
    if failed and (not request.keep_going or len(failed) == len(jobs)):
        raise KernelsFailedError(_failures(failed, len(jobs)), manifest, seconds_of, _lines(failed))

    final, proof = _written(manifest, payloads, request, memo, store, folder)
    return BuiltPack(
        path=final,
        kernels=len(compiled),
        compiled=len(compiled) - len(recalled),
        shapes=len(plan.reach.shapes),
        failed=_lines(failed),
        left_out=plan.left_out,
        undecodable=tuple(plan.reach.skipped(UNDECODABLE)),
        uncovered=sum(count(shape.uncovered) for shape in plan.reach.shapes),
        bytes=final.stat().st_size,
        compile_seconds=compile_seconds,
        seconds=time.perf_counter() - started,
        seconds_of=seconds_of,
        proof=proof,
        warnings=tuple(store.warnings),
    )


@contextlib.contextmanager
def _arrivals(
    count: int, progress: Callable[[int], Progress], memo: Memo, about: About
) -> Iterator[Callable[[Outcome[Task, Compiled]], None]]:
    """What takes the outcomes of ``count`` compiles: it shows each, and keeps it, so that a stopped build goes on."""
    with progress(count) if count else contextlib.nullcontext() as display:

        def arrived(outcome: Outcome[Task, Compiled]) -> None:
            if outcome.result is not None:
                memo.keep(outcome.result, about)
            if display is not None:
                display.advance(outcome.ok, outcome.job.job.label)

        yield arrived


def _written(
    manifest: Manifest, payloads: list[bytes], request: BuildRequest, memo: Memo, store: Store, folder: Path
) -> tuple[Path, Proof | None]:
    """Write the pack, execute and prove it as the request asks, and put it into ``folder`` once it is good."""
    with scratch_folder("pack", beside=folder) as scratch:
        path = scratch / pack_name(manifest.arch, manifest.flydsl, request.shard)
        write_pack(path, memo.encoded(manifest, payloads))
        if request.execute is not None:
            execution = execute_pack(path, request.source, request.execute, store)
            manifest = describe_execution(manifest, execution, request.execute.seed)
            write_pack(path, memo.encoded(manifest, payloads))
        if wrong := request.gates.check([Pack(str(path))], path.stat().st_size):
            raise CheckError(refusal(wrong))
        proof = None
        if request.shard is None:
            proof = memo.proven(path, request.source)
            judge(proof, manifest.missing)
        final = folder / path.name
        path.replace(final)
    return final, proof


def _part(plan: Plan, shard: Shard) -> tuple[tuple[Job, ...], ShardFacts]:
    """The jobs of a part of a build, and what its manifest says of it."""
    found = assign(plan.jobs, shard.of, costs_of(plan.jobs, plan.source, shard.times))
    return found.parts[shard.index - 1], ShardFacts(shard.index, shard.of, found.digest)


def compile_jobs(
    jobs: tuple[Job, ...],
    request: BuildRequest,
    toolchain: Toolchain,
    on_event: Callable[[Outcome[Task, Compiled]], None],
) -> list[Outcome[Task, Compiled]]:
    """Compile every job in a pool of workers that start from a scrubbed environment."""
    bitcode_root = toolchain.rocm_root_with_bitcode()
    tasks = [make_task(job, toolchain, bitcode_root) for job in jobs]
    with scratch_folder("build") as folder:
        environment = worker_environment(os.environ, rocm_root=toolchain.rocm_root, arch=request.arch, folder=folder)
        return run_jobs(
            tasks,
            compile_task,
            workers=request.workers or default_workers(),
            timeout=request.timeout,
            environment=environment,
            on_event=on_event,
        )


def _compile_elsewhere(
    jobs: tuple[Job, ...],
    request: BuildRequest,
    toolchain: Toolchain,
    flydsl: FlyDSL,
    source: Source,
    executor: Executor,
    on_event: Callable[[Outcome[Task, Compiled]], None],
) -> list[Outcome[Task, Compiled]]:
    fingerprint = toolchain.fingerprint
    about = Batch(
        jobs=(),
        timeout=request.timeout,
        flydsl=flydsl,
        linker=fingerprint.linker,
        bitcode=fingerprint.bitcode,
        code=source.watched(),
        project=compiling_code(type(source)),
    )
    tasks = {job: make_task(job, toolchain, None) for job in jobs}
    return run_batches(
        jobs,
        executor,
        about=about,
        costs=costs_of(jobs, source),
        slots=request.workers or SLOTS,
        on_event=on_event,
        task_of=lambda job: tasks[job],
    )


def describe(request: BuildRequest, plan: Plan, toolchain: Toolchain, packages: Mapping[str, PackageFacts]) -> About:
    """What the manifest says of the whole pack, beside its kernels.

    :param packages: :func:`.bound.describe_packages`.
    """
    fingerprint = toolchain.fingerprint
    reach = plan.reach
    return About(
        source=source_facts(plan.source, packages),
        toolchain=ToolchainFacts(fingerprint.linker, fingerprint.bitcode),
        plan=PlanFacts(
            tokens=request.tokens,
            rule=reach.rule,
            cu_num=request.cu_num,
            tables=tuple(TableFacts(Path(file.path).name, file.sha256) for file in plan.tables.files),
            shapes=tuple(map(_shape_facts, reach.shapes)),
            undecodable=tuple(reach.skipped(UNDECODABLE)),
            unknown=tuple(reach.skipped(UNKNOWN)),
            options={name: tuple(values) for name, values in request.options.to_json().items()},
            left_out=plan.left_out,
        ),
    )


def _shape_facts(entry: ShapeReach) -> ShapeFacts:
    return ShapeFacts(
        entry.shape,
        other=tuple(OtherFacts(one.libtype, one.tokens) for one in entry.other),
        uncovered=entry.uncovered,
        skipped=tuple(SkippedFacts(one.name, one.reason, one.tokens) for one in entry.skipped),
    )


def _reason(outcome: Outcome[Task, Compiled]) -> str:
    reason = outcome.error or outcome.kind
    return f"{reason}\n{outcome.log}" if outcome.kind == "died" and outcome.log else reason


def _lines(failed: list[tuple[Job, str]]) -> tuple[str, ...]:
    return tuple(f"{job.label}: {reason}" for job, reason in failed)


def _failures(failed: list[tuple[Job, str]], total: int) -> str:
    lines = [
        f"{len(failed)} of {total} kernels could not be compiled, no wheel is written (--keep-going leaves them out):"
    ]
    for job, reason in failed:
        first, *rest = reason.splitlines() or ["no reason given"]
        lines.append(f"  {job.label}: {first}")
        lines += [f"      {line}" for line in rest]
    return "\n".join(lines)
