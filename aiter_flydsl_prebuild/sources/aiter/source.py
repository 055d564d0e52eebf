"""AITER as a source of kernels."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...digests import digest, own_code
from ...dispatch import rules
from ...dispatch.reach import UNDECODABLE, UNKNOWN, KernelReach, Reach, ShapeReach, SkippedReach, distinct
from ...errors import CheckError, InputError
from ...flydsl.install import ambiguity, read_install
from ...model.job import Job, Options
from ...model.shape import Shape
from ...model.tokens import Range, merge_ranges
from ...packs.manifest import LeftOut
from ..base import Remember, Source
from ..environment import Finding
from . import ahead, code, installed, needs, standins
from .asking import ask_aiter
from .ops import DTYPES, FP8, FP8_OF_MOST, OPS, Op
from .tables import table_files

if TYPE_CHECKING:
    from ...execution.problem import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NO_MODELS = "none"

# Where AITER's wrappers change the kernel that a name means: one row is row-major whatever the layout (bmm), and up to
# 16 rows a split in K is reduced in the same launch (2D).
_CLASSES = ((1, 1), (2, 16), (17, rules.MAX_TOKENS))


class AiterSource(Source):
    """The kernels of the installed AITER, behind its own op wrappers.

    ``kinds`` are operand contracts (:data:`rules.OPS`; default: all), ``dtypes`` output types of the per-token op
    (default: bf16), ``models`` shape lists (default: all) whose shapes get the kernels of AITER's heuristic.
    """

    def __init__(self, name: str, options: Options, remember: Remember) -> None:
        super().__init__(name, options, remember)
        self._ops: dict[str, Op] = {}
        self._live = False

    def check_options(self) -> None:
        known = {
            "kinds": [*OPS, *self._kinds_of_aiter()],
            "dtypes": sorted(DTYPES),
            "models": [NO_MODELS, *sorted(model_lists())],
        }
        problems = [
            f"the source {self.name} does not know {name} {value!r}; known are {', '.join(known[name])}"
            for name, values in asdict(self.options).items()
            for value in values
            if value not in known[name]
        ]
        if problems:
            raise InputError(problems)

    def _kinds_of_aiter(self) -> list[str]:
        if not self.other_kinds:
            return []
        try:
            return ahead.kinds(installed.find())
        except InputError:
            return []  # without AITER nothing can be built, and that is said later

    @property
    def kinds(self) -> tuple[str, ...]:
        """The operand contracts asked for."""
        return tuple(op for op in rules.OPS if op in (self.options.kinds or rules.OPS))

    @property
    def other_kinds(self) -> tuple[str, ...]:
        """The kinds asked for that only AITER's ahead-of-time jobs know."""
        return tuple(kind for kind in self.options.kinds if kind not in OPS)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The output types asked for."""
        return self.options.dtypes or ("bf16",)

    def tables(self) -> list[Path]:
        # Some table is always read: where none is asked for, refine keeps nothing of it.
        return table_files(installed.find(), self.kinds or (rules.BPRESHUFFLE,))

    def identity(self) -> dict[str, str]:
        return installed.identity(installed.find())

    def rule(self) -> str:
        return installed.rule(installed.find())

    def refine(self, reach: Reach, arch: str) -> tuple[Reach, tuple[LeftOut, ...]]:
        """Add what AITER's heuristic picks, and leave out what this AITER or this FlyDSL does not have."""
        aiter = installed.find()
        shapes = [entry for entry in reach.shapes if entry.shape.op in self.kinds]
        lost: dict[tuple[str, str], list[ShapeReach]] = {}

        def had(entry: ShapeReach, reason: str | None) -> bool:
            if reason is not None:
                lost.setdefault((entry.shape.op, reason), []).append(entry)
            return reason is None

        kept = [entry for entry in shapes if had(entry, OPS[entry.shape.op].lacks(aiter, entry.shape))]
        left_out: list[LeftOut] = []
        # Any op can be too old or too new for the FlyDSL at hand; only the mxscale ops have a heuristic.
        ops = sorted({entry.shape.op for entry in kept})
        if ops:
            untuned = [entry for entry in kept if entry.uncovered and OPS[entry.shape.op].has_heuristic(entry.shape)]
            shapes_of = [[e.shape._asdict(), e.uncovered] for e in untuned]
            names = {op: sorted({name for e in kept if e.shape.op == op for name in _names(e)}) for op in ops}
            found = self._ask({"arch": arch, "kinds": [], "ops": ops, "names": names, "shapes": shapes_of})
            runs = [[(name, (first, last)) for name, first, last in one] for one in found["picks"]]
            picked = dict(zip((entry.shape for entry in untuned), runs, strict=True))
            kept = [entry for entry in kept if had(entry, found["reasons"].get(entry.shape.op))]
            kept, untold = _decoded(kept, found["decoded"])
            kept = [_with_picks(entry, picked.get(entry.shape, [])) for entry in kept]
            left_out += untold
        left_out += [_left_out(op, entries, reason) for (op, reason), entries in sorted(lost.items())]
        kept, without = _in_types(kept, self.dtypes)
        return replace(reach, shapes=tuple(kept)), (*left_out, *without)

    def requirements(self) -> list[str]:
        return needs.requirements(self._aiter)

    def examine(self, arch: str) -> list[Finding]:
        try:
            aiter = self._aiter
        except InputError as error:
            return [Finding("AITER", "missing", "not installed", str(error))]
        identity = self.identity()
        commit = f", commit {identity['commit']}" if "commit" in identity else ""
        findings = [Finding("AITER", "ok", f"{identity['version']}{commit}, {aiter.package}"), needs.flydsl(aiter)]
        ops = [name for name in self.kinds if OPS[name].here(aiter)]
        request = {"arch": arch, "kinds": [], "ops": ops, "names": {}, "shapes": []}
        try:
            reasons = ask_aiter(aiter, request)["reasons"]
        except needs.MissingError as error:
            return [*findings, Finding("AITER's imports", "missing", error.what, error.advice)]
        except CheckError as error:
            return [*findings, Finding("AITER's imports", "missing", str(error))]
        findings.append(Finding("AITER's imports", "ok", ", ".join(f"{n} {v}" for n, v in needs.versions().items())))
        for name in self.kinds:
            if name not in ops:
                findings.append(Finding(f"kernels of {name}", "ok", "this AITER has none"))
            elif (reason := reasons[name]) is not None:
                findings.append(Finding(f"kernels of {name}", "warning", f"skipped: {reason}"))
            else:
                findings.append(Finding(f"kernels of {name}", "ok", "AITER's wrappers can be imported"))
        return findings

    def beside_tables(self, arch: str) -> tuple[list[Job], tuple[LeftOut, ...]]:
        """AITER's own ahead-of-time jobs of the other kinds asked for."""
        if not self.other_kinds:
            return [], ()
        found = self._ask({"arch": arch, "ops": [], "names": {}, "shapes": [], "kinds": self.other_kinds})
        jobs = [self._job(kind, arch, job) for kind in found["jobs"] for job in found["jobs"][kind]]
        reasons = {kind: found["reasons"].get(kind) or "AITER has no job for this arch" for kind in self.other_kinds}
        left_out = [LeftOut(kind, 0, 0, reasons[kind]) for kind in self.other_kinds if not found["jobs"].get(kind)]
        return jobs, tuple(left_out)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What :mod:`.probe` answers, or answered for the same AITER, FlyDSL and Python."""
        install = read_install()
        if install is not None and (twice := ambiguity(install)):
            raise CheckError(twice)
        about = {
            "request": request,
            "aiter": self.watched(),
            "flydsl": None if install is None else install.identity,
            "python": sys.version,
            "packages": needs.versions(),
            "code": own_code(),
        }
        found: dict[str, Any] = self.remember(digest(about), lambda: ask_aiter(self._aiter, request))
        return found

    def _job(self, kind: str, arch: str, job: dict[str, Any]) -> Job:
        """A job of AITER's as one of ours; its name says which of AITER's with that kernel name it is."""
        arguments = json.dumps(job, sort_keys=True)
        name = f"{job.get('kernel_name', kind)}#{hashlib.sha256(arguments.encode()).hexdigest()[:8]}"
        n, k = (int(job.get(key) or 0) for key in ("n", "k"))
        return Job(self.name, arch, name, Shape(kind, arch, 0, n, k, None, None), (), self.options, arguments)

    def inputs(self, job: Job) -> dict[str, Any]:
        """AITER's code for this kernel alone, the output types, and which kinds of token counts the job has."""
        if job.arguments:
            return {"code": self.watched(), "arguments": job.arguments}
        op = OPS[job.shape.op]
        return {
            "code": code.digest(self._aiter.package, op.passed, op.kernel_files(job.name)),
            "dtypes": op.dtypes(job.name, self.dtypes),
            "classes": _classes(job.tokens),
        }

    package = installed.PACKAGE
    distribution = installed.DISTRIBUTION

    def bound_files(self, job: Job) -> dict[str, Path]:
        """The files behind this kernel alone; for AITER's own ahead-of-time jobs all of its FlyDSL kernels."""
        package = self._aiter.package
        if job.arguments:
            files = sorted((package / installed.KERNEL_SOURCES).rglob("*.py"))
        else:
            op = OPS[job.shape.op]
            files = code.files(package, op.passed, op.kernel_files(job.name))
        own = {f"{installed.PACKAGE}/{path.relative_to(package).as_posix()}": path for path in files}
        return {**super().bound_files(job), **own}

    def watched(self) -> str:
        return code.watched(self._aiter.package)

    @functools.cached_property
    def _aiter(self) -> installed.Installed:
        return installed.find()

    def compile(self, job: Job) -> None:
        if job.arguments:
            ahead.compile_job(job.shape.op, job.arch, json.loads(job.arguments))
            return
        op = self._op(job.shape, job.arch)
        for dtype in op.dtypes(job.name, self.dtypes):
            for tokens in counts_to_compile(job.tokens):
                op.kernel(job.name, job.shape, tokens, dtype)

    def resolve(self, shape: Shape, tokens: int) -> str | None:
        op = self._op(shape, shape.gfx)
        name = op.resolve(shape, tokens)
        return name if name is not None and op.dtypes(name, self.dtypes) else None

    def call(self, shape: Shape, tokens: int) -> None:
        op = self._op(shape, shape.gfx)
        name = op.resolve(shape, tokens)
        for dtype in () if name is None else op.dtypes(name, self.dtypes):
            op.call(shape, tokens, dtype)

    def problems(self, job: Job, seed: int) -> Iterator[Problem]:
        from .problems import problems

        if job.arguments:
            return iter(())
        return problems(self._op(job.shape, job.arch), job, self.dtypes, seed)

    def traits(self, job: Job) -> frozenset[str]:
        from .problems import traits

        return traits(job)

    def go_live(self, arch: str) -> None:
        self._live = True
        self._ops.clear()
        standins.import_whole(arch)

    def _op(self, shape: Shape, arch: str) -> Op:
        if shape.op not in self._ops:
            op = OPS[shape.op](arch, self._live)
            op.prepare()
            self._ops[shape.op] = op
        return self._ops[shape.op]

    def layer(self, n: int, k: int, block: str | None, arch: str) -> list[Shape]:
        ops = [op for op in self.kinds if (op == rules.BPRESHUFFLE) == (block is None)]
        if not ops:
            raise InputError(
                f"of the kinds {', '.join(self.kinds)} none has "
                + ("a scale per channel; name the scale block, as in N,K,32x32" if block is None else "scale blocks")
            )
        return [Shape(op, arch, 0, n, k, block, FP8.get(arch, FP8_OF_MOST) if block is None else None) for op in ops]

    def untuned_shapes(self, arch: str) -> list[Shape]:
        """The shapes of the model lists asked for."""
        lists = model_lists()
        chosen = self.options.models or tuple(lists)
        return sorted(
            {
                Shape(lists[name]["op"], arch, 0, shape["n"], shape["k"], lists[name]["w_scale_block"], None)
                for name in chosen
                if name != NO_MODELS and lists[name]["op"] in self.kinds
                for shape in lists[name]["shapes"]
            },
            key=lambda shape: (shape.op, shape.n, shape.k),
        )


def counts_to_compile(tokens: Sequence[Range]) -> list[int]:
    """One token count of these ranges for each kernel that a name can mean over them."""
    return [
        min(max(first, low) for first, last in tokens if _meet(first, last, low, high))
        for low, high in _classes(tokens)
    ]


def _classes(tokens: Sequence[Range]) -> list[Range]:
    """Those of :data:`_CLASSES` that have token counts of these ranges."""
    return [one for one in _CLASSES if any(_meet(*run, *one) for run in tokens)]


def _meet(first: int, last: int, low: int, high: int) -> bool:
    return max(first, low) <= min(last, high)


def model_lists() -> dict[str, dict[str, Any]]:
    """This project's lists of shapes, by id."""
    lists = {}
    for path in sorted(files("aiter_flydsl_prebuild.tuned_configs").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".toml"):
            model = tomllib.loads(path.read_text(encoding="utf-8"))
            lists[model["id"]] = model
    return lists


def _names(entry: ShapeReach) -> list[str]:
    """The names of the FlyDSL kernels that a shape's rows name, those that are to be built and the others."""
    return [one.name for one in _named(entry)]


def _named(entry: ShapeReach) -> list[KernelReach | SkippedReach]:
    return [*entry.kernels, *entry.skipped]


def _decoded(
    shapes: Sequence[ShapeReach], decoded: dict[str, dict[str, bool | str]]
) -> tuple[list[ShapeReach], list[LeftOut]]:
    """The shapes with the kernels whose names this AITER decodes, whatever is known of them here.

    ``decoded`` is the probe's. A name that it cannot decode goes to ``skipped``: AITER runs another library there, but
    for families that nobody here knows, of which it may run the kernels in a way of its own. Names that cannot be told
    about are left out.
    """
    kept = []
    untold: dict[tuple[str, str], list[ShapeReach]] = {}
    for entry in shapes:
        answers = decoded.get(entry.shape.op, {})
        unknown = {one.name for one in entry.skipped if one.reason == UNKNOWN}
        kernels: list[KernelReach] = []
        skipped: list[SkippedReach] = []
        for one in _named(entry):
            answer = answers[one.name]
            if answer is True:
                kernels.append(KernelReach(one.name, one.tokens))
            elif answer is False:
                reason = UNKNOWN if one.name in unknown else UNDECODABLE
                skipped.append(SkippedReach(one.name, one.tokens, reason))
            else:
                lost = replace(entry, kernels=(KernelReach(one.name, one.tokens),), skipped=())
                untold.setdefault((entry.shape.op, answer), []).append(lost)
        kernels.sort(key=lambda kernel: kernel.tokens[0])
        kept.append(replace(entry, kernels=tuple(kernels), skipped=tuple(skipped)))
    return kept, [_left_out(op, lost, reason) for (op, reason), lost in sorted(untold.items())]


def _with_picks(entry: ShapeReach, picks: Sequence[tuple[str | None, Range]]) -> ShapeReach:
    """A shape's reach with the heuristic's kernels on token counts that no row serves."""
    if not picks:
        return entry
    tokens: dict[str, list[Range]] = {kernel.name: list(kernel.tokens) for kernel in entry.kernels}
    uncovered: list[Range] = []
    for name, run in picks:
        (uncovered if name is None else tokens.setdefault(name, [])).append(run)
    kernels = [KernelReach(name, merge_ranges(ranges)) for name, ranges in tokens.items()]
    kernels.sort(key=lambda kernel: kernel.tokens[0])
    return replace(entry, kernels=tuple(kernels), uncovered=merge_ranges(uncovered))


def _in_types(shapes: Sequence[ShapeReach], asked: Sequence[str]) -> tuple[list[ShapeReach], list[LeftOut]]:
    """The shapes with the kernels that can be run in an output type asked for, and what is not to be had of them."""
    kept = []
    without: dict[tuple[str, str], list[ShapeReach]] = {}
    for entry in shapes:
        op = OPS[entry.shape.op]
        for dtype in asked:
            lost = tuple(k for k in entry.kernels if not op.fixed_dtype and dtype not in op.dtypes(k.name, asked))
            if lost:
                without.setdefault((op.name, dtype), []).append(replace(entry, kernels=lost))
        kept.append(replace(entry, kernels=tuple(k for k in entry.kernels if op.dtypes(k.name, asked))))
    reason = "AITER cannot run them with output type {}"
    return kept, [_left_out(op, lost, reason.format(DTYPES[dtype])) for (op, dtype), lost in sorted(without.items())]


def _left_out(op: str, shapes: Sequence[ShapeReach], reason: str) -> LeftOut:
    kernels = distinct((entry.shape, kernel.name) for entry in shapes for kernel in entry.kernels)
    return LeftOut(op, len(kernels), len({e.shape for e in shapes if e.kernels or not kernels}), reason)
