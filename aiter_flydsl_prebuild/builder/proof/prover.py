"""The proof's own process: ``python -m aiter_flydsl_prebuild.builder.proof.prover RESULT.json < request.json``.

Started by :mod:`.proof` with a clean environment, an empty cache folder and (unless cold) FlyDSL forbidden to compile.
It does what a server does: seed, then dispatch every token count, and call FlyDSL where a run of token counts that
share a kernel begins and ends. FlyDSL returns from a hit without launching (COMPILE_ONLY), so no GPU is needed; a hit
alone says nothing about the payload, so every one is parsed by FlyDSL and compared with the manifest as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...discovery import find_packs, rocm_root
from ...errors import PrebuildError
from ...files import write_whole
from ...fitting import Placement, fit, lost
from ...flydsl import cache
from ...flydsl.install import checked, read_install
from ...model.job import Job, Options
from ...model.shape import Shape, kernel_label
from ...model.tokens import Range, merge_ranges
from ...packs.codeobject import read_code_object
from ...packs.format import Pack
from ...packs.manifest import CodeFacts
from ...processes import die_with_parent
from ...seeding import seed
from ...sources import load_source
from ...sources.base import Source
from ...sources.planning import Plan, plan_source

Kernel = tuple[str, Shape]
Dispatched = dict[Shape, list[tuple[str | None, Range]]]
"""For each shape, which kernel the dispatch picks for which run of token counts."""


def main() -> int:
    """Read the request, prove, write the result."""
    request = json.load(sys.stdin)
    die_with_parent(request["parent"])
    try:
        # A wheel's own folder is looked at last: it must not stand in for what is installed.
        sys.path += request["search"]
        source = load_source(request["source"], Options.from_json(request["options"]))
        result = prove(request, source)
    except PrebuildError as error:
        result = {"problems": [str(error)]}
    except Exception as error:
        traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error).splitlines()[0] if str(error) else ""
        at = f"{Path(where.filename).name}, line {where.lineno}"
        result = {"problems": [f"the proof stopped with {type(error).__name__}: {said} ({at})"]}
    write_whole(sys.argv[1], json.dumps(result).encode())
    return 0


def prove(request: dict[str, Any], source: Source) -> dict[str, Any]:
    """Run the whole proof in this process; see :class:`.proof.Proof` for what comes back."""
    started = time.perf_counter()
    root = Path(os.environ["FLYDSL_RUNTIME_CACHE_DIR"])
    problems = [] if request["cold"] else _seed(request)
    install = read_install()
    if install is not None and (damage := checked(install, "all").damage):
        # Altered sources are what seeding found wrong already.
        problems += [damage] if not any(damage in line for line in problems) else []
    packs = _readable(request["packs"])
    seeded = _cached_files(root)

    arch = request["arch"]
    tokens = (request["tokens"][0], request["tokens"][1])
    plan = plan_source(source, arch=arch, cu_num=request["cu_num"], tokens=tokens, rule=request["rule"])
    reach = plan.reach
    if source.identity()["digest"] != request["identity"]["digest"]:
        problems.append(f"the source {source.name} installed here is not the one that the kernels were built from")
    changed = [Path(file.path).name for file in plan.tables.files if file.sha256 not in request["tables"]]
    problems += [f"{name} is not the tuned table that the kernels were built from" for name in changed]

    dispatched = _dispatch(source, [entry.shape for entry in reach.shapes], tokens)
    planned = {entry.shape: {k.name: k.tokens for k in entry.kernels} for entry in reach.shapes}
    for shape, runs in dispatched.items():
        problems += _disagreements(shape, runs, planned[shape])

    calls, hit, misses = _call_all(source, plan, dispatched, exhaustive=request["exhaustive"])
    compiled = _cached_files(root) - seeded
    if request["whole"]:
        problems += _misdescribed(packs, plan.jobs)
    if not request["cold"]:
        payloads, faults = _check_payloads(packs, root)
    else:
        payloads, faults = _compare_with_cold(packs, root) if request["same_linker"] else (0, [])
    return {
        "dispatches": len(dispatched) * (tokens[1] - tokens[0] + 1),
        "calls": calls,
        "kernels": len(hit - misses.keys()),
        "compiled": len(compiled),
        "misses": list(misses.values()),
        "uncovered": [
            {**entry.shape.layer(), "tokens": [list(r) for r in entry.uncovered]}
            for entry in reach.shapes
            if entry.uncovered
        ],
        "payloads": payloads,
        "problems": problems + faults,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _call_all(
    source: Source, plan: Plan, dispatched: Dispatched, *, exhaustive: bool
) -> tuple[int, set[Kernel], dict[Kernel, dict[str, Any]]]:
    """Make the calls of a proof: how many, the kernels that were found, and what is said of those that were not."""
    calls = 0
    hit: set[Kernel] = set()
    misses: dict[Kernel, dict[str, Any]] = {}
    for shape, name, run in _served(dispatched):
        counts = range(run[0], run[1] + 1) if exhaustive else sorted(set(run))
        for count in counts:
            calls += 1
            try:
                source.call(shape, count)
                hit.add((name, shape))
            except Exception as error:
                # FlyDSL says "would compile" with a RuntimeError; anything else is no hit either.
                miss = misses.setdefault((name, shape), _miss(name, shape, error))
                miss["tokens"].append(run)
                break
    for job in plan.beside:
        calls += 1
        try:
            source.compile(job)
            hit.add((job.name, job.shape))
        except Exception as error:
            misses[job.name, job.shape] = _miss(job.name, job.shape, error)
    for miss in misses.values():
        miss["tokens"] = [list(run) for run in merge_ranges(miss["tokens"])]
    return calls, hit, misses


def _seed(request: dict[str, Any]) -> list[str]:
    paths = [os.path.realpath(path) for path in request["packs"]]
    there = find_packs(request["packages"])
    unseen = [os.path.basename(path) for path in paths if path not in there]
    problems = [f"the loader does not find {name} where it is installed" for name in unseen]
    report = seed(packs=paths, mode="on")
    # What a pack lacks is missed below, and whether it may be is the caller's to say.
    expected = {f"{os.path.basename(pack.path)}: {why}" for pack in _readable(paths) for why in lost(pack)}
    problems += [line for line in report.problems if line not in expected]
    again = seed(packs=paths, mode="on")
    if again.written:
        problems.append(f"a second seeding wrote {again.written} files again")
    return problems


def _readable(paths: list[str]) -> list[Pack]:
    packs = []
    for path in paths:
        with contextlib.suppress(PrebuildError):  # seed said so already
            packs.append(Pack(path))
    return packs


def _cached_files(root: Path) -> set[Path]:
    return set(root.rglob("*.pkl"))


def _dispatch(source: Source, shapes: list[Shape], tokens: Range) -> Dispatched:
    """Every token count of every shape through the source's own dispatch; runs of equal answers."""
    dispatched: Dispatched = {}
    for shape in shapes:
        runs: list[tuple[str | None, Range]] = []
        for count in range(tokens[0], tokens[1] + 1):
            name = source.resolve(shape, count)
            if runs and runs[-1][0] == name:
                runs[-1] = (name, (runs[-1][1][0], count))
            else:
                runs.append((name, (count, count)))
        dispatched[shape] = runs
    return dispatched


def _served(dispatched: Dispatched) -> Iterator[tuple[Shape, str, Range]]:
    for shape, runs in dispatched.items():
        for name, run in runs:
            if name is not None:
                yield shape, name, run


def _disagreements(
    shape: Shape, runs: list[tuple[str | None, Range]], planned: dict[str, tuple[Range, ...]]
) -> list[str]:
    """Where the run-time dispatch picks another kernel than the plan says."""
    really: dict[str, list[Range]] = {}
    for name, run in runs:
        if name is not None:
            really.setdefault(name, []).append(run)
    problems = []
    for name in sorted(really.keys() | planned.keys()):
        if merge_ranges(really.get(name, [])) != tuple(planned.get(name, ())):
            label = kernel_label(name, **shape.layer())
            problems.append(f"{label}: the run-time dispatch and the plan give it different token counts")
    return problems


def _miss(name: str, shape: Shape, error: Exception) -> dict[str, Any]:
    lines = str(error).splitlines() or [""]
    return {"name": name, **shape.layer(), "tokens": [], "reason": f"{type(error).__name__}: {lines[0]}"}


def _misdescribed(packs: list[Pack], jobs: Sequence[Job]) -> list[str]:
    """Kernels of which the manifest says something else than the plan: what they compute, which tokens they serve."""
    planned = {job.label: job for job in jobs}
    problems = []
    for kernel in (kernel for pack in packs for kernel in pack.kernels):
        job = planned.get(kernel.label)
        if job is None:
            problems.append(f"{kernel.label} is in the pack, and no token count reaches it")
        elif kernel.tokens != job.tokens:
            problems.append(f"{kernel.label} serves other token counts than the manifest says")
        elif kernel.cu_num is not None and kernel.cu_num != (job.cu_num or ()):
            problems.append(f"{kernel.label} serves GPUs of other sizes than the manifest says")
    return problems


def _placements(packs: list[Pack]) -> Iterator[tuple[Placement, str]]:
    """Where each entry of the packs is, or would be, in the cache of this process."""
    install = read_install()
    bitcode = cache.bitcode_digest(rocm_root())
    for pack in packs:
        for placement in fit(pack, [pack.arch], install, bitcode).placements:
            yield placement, pack.arch


def _check_payloads(packs: list[Pack], root: Path) -> tuple[int, list[str]]:
    """Load every seeded entry as FlyDSL does, parse its module with FlyDSL, and compare with the manifest."""
    checked = 0
    faults: list[str] = []
    for placement, arch in _placements(packs):
        checked += 1
        if fault := _fault(root / placement.path, placement, arch):
            faults.append(f"{placement.kernel.label}: {fault}")
    return checked, faults


def _compare_with_cold(packs: list[Pack], root: Path) -> tuple[int, list[str]]:
    """Compare what was compiled just now with what the packs hold under the same keys."""
    texts = {pack.path: list(pack.payloads()) for pack in packs}
    owner = {id(kernel): pack.path for pack in packs for kernel in pack.kernels}
    checked = 0
    faults: list[str] = []
    for placement, _ in _placements(packs):
        file = root / placement.path
        if not file.exists():
            continue  # a warm run says whether a call misses it
        checked += 1
        packed = cache.Entry(texts[owner[id(placement.kernel)]][placement.entry.payload], placement.entry.fields)
        if cache.decode_entry(file.read_bytes()) != packed:
            faults.append(f"{placement.kernel.label}: compiling it again gives other code than the pack holds")
    return checked, faults


def _fault(path: Path, placement: Placement, arch: str) -> str | None:
    """What is wrong with one seeded entry, by FlyDSL's own reading of it."""
    from flydsl._mlir import ir
    from flydsl._mlir.dialects import gpu
    from flydsl.compiler.jit_function import _create_mlir_context

    entry = placement.entry
    try:
        with path.open("rb") as file:
            artifact = pickle.load(file)
        if artifact._entry != entry.launcher:
            return f"its entry point is {artifact._entry}, the manifest says {entry.launcher}"
        found: list[CodeFacts] = []
        functions: set[str] = set()
        with _create_mlir_context():
            module = ir.Module.parse(artifact._ir_text)
            for operation in module.body.operations:
                if operation.operation.name == "llvm.func":
                    functions.add(ir.StringAttr(operation.attributes["sym_name"]).value)
                if operation.operation.name != "gpu.binary":
                    continue
                for attribute in operation.attributes["objects"]:
                    code = gpu.ObjectAttr(attribute)
                    if f'chip = "{arch}"' not in str(code.target):
                        return f"its code object is for {code.target}, not for {arch}"
                    found += read_code_object(bytes(code.object))
    except Exception as error:
        return f"FlyDSL cannot read it: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if entry.launcher not in functions:
        return f"its module has no function {entry.launcher}"
    # Facts that a newer version recorded are not read here.
    described = [code._replace(extra={}) for code in entry.code]
    return None if found == described else "its code object is not the one that the manifest describes"


if __name__ == "__main__":
    sys.exit(main())
