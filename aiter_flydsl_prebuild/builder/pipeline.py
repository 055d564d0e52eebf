"""The build, from tuned tables to a proven pack: what the command line and the hook both run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckError, InputError
from ..sources import load_source
from ..sources.base import Job, LeftOut, Options
from .compiling import Compiled, Task, building_flydsl, compile_task, make_task
from .machine import default_workers
from .packing import make_manifest, pack_name, write_pack
from .planning import Plan, plan_source
from .pool import Outcome, run_jobs
from .progress import Progress
from .proof import Proof, Subject, prove
from .reach import Range, to_json
from .tables import LAYER
from .toolchain import Toolchain, find_toolchain, scrubbed_environment


@dataclass(frozen=True)
class BuildRequest:
    """What to build. ``cu_num`` empty means every partition of the arch that the tables have; ``rule`` None means the
    source's own; ``timeout`` is in seconds for one kernel; ``workers`` None means as many as cores and memory allow.
    ``keep_going`` builds a pack although kernels are missing, and lists them in its manifest."""

    source: str
    arch: str
    tokens: Range
    cu_num: tuple[int, ...] = ()
    rule: str | None = None
    workers: int | None = None
    timeout: float = 300.0
    keep_going: bool = False
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class BuiltPack:
    """A pack that was written. ``kernels`` are in it, ``failed`` and ``left_out`` are not; ``seconds`` from the plan to
    the proof."""

    path: Path
    kernels: int
    shapes: int
    failed: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    uncovered: int
    bytes: int
    compile_seconds: float
    seconds: float
    proof: Proof


def make_plan(request: BuildRequest) -> Plan:
    """The plan of a request.

    :raises InputError: a table is wrong, or nothing is left to compile.
    """
    source = load_source(request.source, request.options)
    plan = plan_source(source, arch=request.arch, cu_num=request.cu_num, tokens=request.tokens, rule=request.rule)
    if not plan.jobs:
        nothing = f"no FlyDSL kernel serves {request.arch} for tokens {request.tokens[0]}..{request.tokens[1]}"
        raise InputError([nothing, *(f"left out: {one}" for one in plan.left_out)])
    return plan


def build_pack(request: BuildRequest, folder: Path, progress: Callable[[int], Progress]) -> BuiltPack:
    """Build and prove one pack in ``folder``; nothing is left there unless it is good.

    :param progress: makes the display for a number of kernels.
    :raises CheckError: kernels failed (all are listed), or the proof did.
    """
    started = time.perf_counter()
    flydsl = building_flydsl()
    toolchain = find_toolchain()
    plan = make_plan(request)
    outcomes = compile_jobs(plan.jobs, request, toolchain, progress)
    compile_seconds = time.perf_counter() - started
    failed = [(o.job.job, _reason(o)) for o in outcomes if not o.ok]
    if failed and (not request.keep_going or len(failed) == len(outcomes)):
        raise CheckError(_failures(failed, len(outcomes)))

    compiled = [o.result for o in outcomes if o.result is not None]
    about = describe(request, plan, toolchain)
    manifest, payloads = make_manifest(request.arch, flydsl, compiled, failed, about)
    with tempfile.TemporaryDirectory(prefix=".afp-pack-", dir=folder) as name:
        path = Path(name, pack_name(request.arch, flydsl))
        write_pack(path, manifest, payloads)
        proof = prove(Subject((path,), (), ()), trusted=request.source)
        judge(proof, [job for job, _ in failed])
        final = folder / path.name
        path.replace(final)
    return BuiltPack(
        path=final,
        kernels=len(compiled),
        shapes=len(plan.reach.shapes),
        failed=tuple(f"{job.label}: {reason}" for job, reason in failed),
        left_out=plan.left_out,
        uncovered=sum(last - first + 1 for shape in plan.reach.shapes for first, last in shape.uncovered),
        bytes=final.stat().st_size,
        compile_seconds=compile_seconds,
        seconds=time.perf_counter() - started,
        proof=proof,
    )


def compile_jobs(
    jobs: tuple[Job, ...], request: BuildRequest, toolchain: Toolchain, progress: Callable[[int], Progress]
) -> list[Outcome[Task, Compiled]]:
    """Compile every job in a pool of workers that start from a scrubbed environment."""
    bitcode_root = toolchain.rocm_root_with_bitcode()
    tasks = [make_task(job, toolchain, bitcode_root) for job in jobs]
    with tempfile.TemporaryDirectory(prefix="afp-build-") as folder, progress(len(tasks)) as display:
        environment = scrubbed_environment(
            os.environ, rocm_root=toolchain.rocm_root, arch=request.arch, cache_dir=Path(folder, "unused")
        )
        # A worker that is killed leaves its files; this folder goes away with all of them.
        environment["TMPDIR"] = folder
        # FlyDSL: compile and write the cache entry, do not launch.
        environment["COMPILE_ONLY"] = "1"
        return run_jobs(
            tasks,
            compile_task,
            workers=request.workers or default_workers(),
            timeout=request.timeout,
            environment=environment,
            on_event=lambda outcome: display.advance(outcome.ok, outcome.job.job.label),
        )


def judge(proof: Proof, missing: list[Job]) -> None:
    """Let a proof pass that misses nothing but the kernels that are known to be missing.

    :raises CheckError: anything else is wrong with it.
    """
    expected = [{"name": job.name, **job.shape.layer()} for job in missing]
    surprise = any({key: miss[key] for key in ("name", *LAYER)} not in expected for miss in proof.misses)
    if surprise or proof.problems or proof.compiled or not proof.kernels or not proof.payloads:
        complaints = "\n".join(proof.complaints())
        raise CheckError(f"the proof failed, no wheel is written:\n{complaints}")


def describe(request: BuildRequest, plan: Plan, toolchain: Toolchain) -> dict[str, Any]:
    """What the manifest says of the whole pack, beside its kernels."""
    fingerprint = toolchain.fingerprint
    reach = to_json(plan.reach)
    return {
        "source": {"name": plan.source.name, **plan.source.identity()},
        "toolchain": {"linker": fingerprint.linker, "bitcode": fingerprint.bitcode},
        "plan": {
            "tokens": list(request.tokens),
            "rule": plan.reach.rule,
            "options": request.options.to_json(),
            "left_out": [asdict(one) for one in plan.left_out],
            "cu_num": list(request.cu_num),
            "tables": [{"file": Path(file.path).name, "sha256": file.sha256} for file in plan.tables.files],
            "shapes": [{k: v for k, v in shape.items() if k != "kernels"} for shape in reach["shapes"]],
            "undecodable": reach["undecodable"],
        },
    }


def _reason(outcome: Outcome[Task, Compiled]) -> str:
    reason = outcome.error or outcome.kind
    return f"{reason}\n{outcome.log}" if outcome.kind == "died" and outcome.log else reason


def _failures(failed: list[tuple[Job, str]], total: int) -> str:
    lines = [
        f"{len(failed)} of {total} kernels could not be compiled, no wheel is written (--keep-going leaves them out):"
    ]
    for job, reason in failed:
        first, *rest = reason.splitlines() or ["no reason given"]
        lines.append(f"  {job.label}: {first}")
        lines += [f"      {line}" for line in rest]
    return "\n".join(lines)
