"""The command line: thin over the library. Exit status 0 done, 1 the check failed, 2 the input or usage was wrong.

``seed``, ``status`` and ``doctor`` work with the loader alone, so each command imports what it needs itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .. import __version__
from ..errors import CheckError, InputError, PrebuildError
from .processes import terminated_cleanly

if TYPE_CHECKING:
    from ..pack import Pack
    from ..sources.base import Job, LeftOut, Options
    from .gates import Gates

# What the extra "build" brings, and what goes with it, by the names under which they are imported.
_BUILD_MODULES = ("elftools", "flydsl", "msgpack", "numpy", "pebble", "rich", "setuptools", "tomli", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        with terminated_cleanly():
            options = _parser(as_json).parse_args(arguments)
            status = int(options.run(options))
            sys.stdout.flush()
            return status
    except PrebuildError as error:
        return _complain(str(error), 1 if isinstance(error, CheckError) else 2, as_json)
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.startswith("aiter_flydsl_prebuild."):
            # In a checkout Python takes the sources of the working folder, which lack what an installation maps in.
            tree = Path(__file__).parent.parent.parent
            text = f"{tree} is a source tree: call aiter-flydsl-prebuild in place of python -m, or go elsewhere"
            return _complain(text, 2, as_json)
        if name.split(".")[0] not in _BUILD_MODULES:
            raise
        advice = "pip install 'aiter-flydsl-prebuild[build,cross]' flydsl torch"
        return _complain(f"this command needs {error.name}, which is not installed: {advice}", 2, as_json)
    except KeyboardInterrupt:
        print("aiter-flydsl-prebuild: interrupted; nothing was written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output went away, as `head` does.
        sys.stderr.close()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}", 1, as_json)


class _Parser(argparse.ArgumentParser):
    """Says what was wrong with the usage in JSON, too, where that was asked for."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.exit(_complain(message, 2, self.as_json))


def _complain(message: str, status: int, as_json: bool) -> int:
    print(f"aiter-flydsl-prebuild: {message}", file=sys.stderr)
    if as_json:
        with contextlib.suppress(OSError):  # the output may be what the complaint is about
            print(json.dumps({"error": message, "problems": message.splitlines()}), flush=True)
    return status


def _parser(as_json: bool) -> argparse.ArgumentParser:
    _Parser.as_json = as_json
    parser = _Parser(
        prog="aiter-flydsl-prebuild",
        description="Precompiled FlyDSL kernels for AITER: plan, build, prove and seed them. No GPU is needed.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    command = _add(commands, "plan", _plan, "which kernels the tuned tables reach, for every token count")
    command.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="tuned tables (default: the source's own)"
    )
    command.add_argument("--from-log", type=Path, metavar="FILE", help="what servers compiled, from the monitor's log")
    _planning(command)

    command = _add(commands, "build", _build, "compile the kernels, prove them, and make a wheel")
    _planning(command)
    command.add_argument(
        "--out", type=Path, default=Path("dist"), metavar="FOLDER", help="where the wheel goes (default: dist)"
    )
    command.add_argument("--workers", type=_positive, metavar="N", help="processes (default: by cores and free memory)")
    command.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="SECONDS", help="limit for one kernel (default: 300)"
    )
    command.add_argument("--keep-going", action="store_true", help="make a wheel without the kernels that failed")
    _store(command, "off for none; ")
    command.add_argument("--report", type=Path, metavar="FOLDER", help="write a report of the build there")
    _gates(command)
    command.add_argument("--scheduler", metavar="ADDRESS", help="compile on a Dask cluster, as in tcp://host:8786")
    command.add_argument("--shard", metavar="I/N", help="build part I of N alone, a pack for merge")
    command.add_argument(
        "--shard-times",
        type=Path,
        metavar="FILE",
        help="measured seconds to balance parts by, one file for all of them",
    )

    command = _add(commands, "verify", _verify, "prove that serving compiles nothing")
    command.add_argument("wheel", nargs="?", type=Path, help="a wheel or a pack (default: what is installed)")
    command.add_argument("--tokens", metavar="FIRST..LAST", help="token counts (default: those it was built for)")
    command.add_argument("--source", metavar="NAME", help="a source outside this project whose code may be run")
    command.add_argument("--cold", action="store_true", help="without the kernels: count what would compile")
    command.add_argument(
        "--exhaustive", action="store_true", help="call FlyDSL for every token count, not only at the ends"
    )
    _packages(command)

    command = _add(commands, "merge", _merge, "join wheels or packs of one plan: several Pythons, or parts")
    command.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="wheels or packs")
    command.add_argument("--source", metavar="NAME", help="a source outside this project whose code may be run")
    command.add_argument("--no-proof", action="store_true", help="do not prove what parts of a build make up")
    command.add_argument("--out", type=Path, default=Path("dist"), metavar="FOLDER", help="where the wheel goes")

    command = _add(commands, "diff", _diff, "what is different between two wheels or packs, kernel by kernel")
    command.add_argument("old", type=Path, help="a wheel or a pack")
    command.add_argument("new", type=Path, help="a wheel or a pack")
    command.add_argument("--exit-code", action="store_true", help="end with status 1 where kernels differ")

    command = _add(commands, "check", _check, "hold a finished wheel against the gates of build")
    command.add_argument("wheel", type=Path, help="a wheel or a pack")
    _gates(command)

    command = _add(commands, "report", _report, "a page, a picture and a summary of a wheel or a pack")
    command.add_argument("wheel", type=Path, help="a wheel or a pack")
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where they go")

    command = _add(commands, "inspect", _inspect, "what is in a wheel or a pack")
    command.add_argument("wheel", nargs="?", type=Path, help="a wheel or a pack (default: what is installed)")
    command.add_argument("--kernel", metavar="NAME", help="only kernels of this name")
    command.add_argument("--extract", type=Path, metavar="FOLDER", help="write their code objects and MLIR there")
    _packages(command)

    command = _add(commands, "seed", _seed, "put the installed kernels into FlyDSL's cache")
    command.add_argument("--cache-dir", metavar="FOLDER", help="FlyDSL's cache (default: the one FlyDSL would use)")
    command.add_argument("--strict", action="store_true", help="fail where a kernel cannot be put in place")
    command.add_argument(
        "--prune", action="store_true", help="remove what packs seeded that are not installed any more"
    )
    _packages(command)

    command = _add(commands, "warm", _warm, "call each installed kernel once, and measure what first calls cost")
    command.add_argument("--source", metavar="NAME", help="a source outside this project whose code may be run")
    _packages(command)

    _packages(_add(commands, "status", _status, "what is installed, what fits, what is seeded"))
    command = _add(commands, "startup", _startup, "seed in every Python process of this environment")
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--install", action="store_true", help="put the start-up file into site-packages")
    what.add_argument("--remove", action="store_true", help="take it away again")

    command = _add(commands, "store", _store_stats, "what builds keep for each other")
    tasks = command.add_subparsers(metavar="TASK")
    task = _add(tasks, "stats", _store_stats, "count the kernels and bytes of the store")
    _store(task)
    task = _add(tasks, "times", _store_times, "print what each kernel took to compile, for --shard-times")
    _store(task)
    task = _add(tasks, "gc", _store_gc, "remove what no build has used for long")
    _store(task)
    task.add_argument("--days", type=_seconds, default=30.0, metavar="N", help="keep what was used since (default: 30)")
    task.add_argument("--max-size", type=_size, default=float("inf"), metavar="SIZE", help="keep no more, as in 5GB")

    _add(commands, "doctor", _doctor, "what a build needs, what is there, and how to get the rest")
    return parser


def _add(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run)
    return command


def _gates(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("gates, which the wheel must pass")
    group.add_argument("--max-size", type=_size, metavar="SIZE", help="of the wheel, as in 20MB")
    group.add_argument("--max-spills", type=_whole, metavar="N", help="registers that a kernel may spill")
    group.add_argument(
        "--require-coverage", metavar="FIRST..LAST", help="token counts that every shape must be served for"
    )
    group.add_argument(
        "--known-bad",
        nargs="+",
        default=[],
        metavar="WHAT==VERSION",
        help="compilers that no kernel may come from: flydsl, linker",
    )


def _asked_gates(options: argparse.Namespace) -> Gates:
    from .gates import Gates, parse_known_bad
    from .reach import parse_tokens

    return Gates(
        max_size=options.max_size,
        max_spills=options.max_spills,
        coverage=parse_tokens(options.require_coverage) if options.require_coverage else None,
        known_bad=tuple(map(parse_known_bad, options.known_bad)),
    )


def _store(command: argparse.ArgumentParser, more: str = "") -> None:
    from .store import VARIABLE, default_folder

    text = f"the kernel store, a folder or an fsspec URL ({more}default: {VARIABLE}, else {default_folder()})"
    command.add_argument("--store", metavar="WHERE", help=text.replace("%", "%%"))


def _packages(command: argparse.ArgumentParser) -> None:
    text = "a package that carries kernels, beside aiter and wheels of kernels (may be repeated)"
    command.add_argument("--package", action="append", default=[], metavar="NAME", help=text)


def _planning(command: argparse.ArgumentParser) -> None:
    from ..sources import SOURCES
    from .rules import RULES

    command.add_argument(
        "--source", default="reference", metavar="NAME", help=f"{', '.join(SOURCES)}, or package.module:Class"
    )
    command.add_argument("--arch", default="gfx950", help="GPU architecture (default: gfx950)")
    command.add_argument(
        "--cu-num",
        nargs="+",
        type=_positive,
        default=[],
        metavar="N",
        help="compute units of the GPU (default: all that the tables have)",
    )
    command.add_argument("--tokens", default="1..8192", metavar="FIRST..LAST", help="token counts (default: 1..8192)")
    command.add_argument("--rule", choices=RULES, help="AITER's dispatch rule (default: that of the source)")
    for name, help_text in (
        ("kinds", "families of kernels (default: the source's own choice)"),
        ("dtypes", "output types of kernels whose tables do not fix them (default: bfloat16)"),
        ("models", "shape lists whose untuned shapes get the heuristic's kernels, or none (default: all)"),
    ):
        command.add_argument(f"--{name}", nargs="+", default=[], metavar="NAME", help=help_text)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _size(text: str) -> int:
    from .gates import parse_size

    try:
        return parse_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _plan(options: argparse.Namespace) -> int:
    from ..sources import load_source
    from . import show
    from .fromlog import read_log, wanted
    from .planning import plan_source
    from .reach import parse_tokens, plan_reach, to_json
    from .rules import RULES
    from .tables import read_tables

    selected = {"cu_num": options.cu_num, "tokens": parse_tokens(options.tokens)}
    source = load_source(options.source, _asked(options))
    rule = options.rule or (RULES[0] if options.table else source.rule())
    if options.from_log is not None:
        found = wanted(read_log(options.from_log), read_tables(options.table or source.tables()), rule)
        if options.json:
            _print_json({"wanted": [one.to_json() for one in found]})
        else:
            show.log(found)
        return 0
    left_out: tuple[LeftOut, ...] = ()
    beside: tuple[Job, ...] = ()
    if options.table:
        reach = plan_reach(read_tables(options.table), gfx=[options.arch], rule=rule, **selected)
    else:
        plan = plan_source(source, arch=options.arch, rule=rule, **selected)
        reach, left_out, beside = plan.reach, plan.left_out, plan.beside
    if options.json:
        more = {"left_out": [asdict(one) for one in left_out], "beside_tables": [job.name for job in beside]}
        _print_json({**to_json(reach), **more})
    else:
        show.plan(reach, left_out, len(beside))
    return 0


def _asked(options: argparse.Namespace) -> Options:
    from ..sources.base import Options

    return Options(tuple(options.kinds), tuple(options.dtypes), tuple(options.models))


def _build(options: argparse.Namespace) -> int:
    from ..pack import Pack
    from . import show
    from .gates import refusal
    from .pipeline import BuildRequest, KernelsFailedError, build_pack
    from .progress import Progress
    from .reach import parse_tokens
    from .remote import dask_executor
    from .reporting import Subject, require, write
    from .sharding import parse_shard
    from .wheel import build_wheel, check_epoch

    request = BuildRequest(
        source=options.source,
        arch=options.arch,
        tokens=parse_tokens(options.tokens),
        cu_num=tuple(options.cu_num),
        rule=options.rule,
        workers=options.workers,
        timeout=options.timeout,
        keep_going=options.keep_going,
        options=_asked(options),
        store=options.store,
        shard=parse_shard(options.shard, options.shard_times) if options.shard else None,
        gates=_asked_gates(options),
    )

    def accept(wheel: Path) -> None:
        if wrong := request.gates.check([], wheel.stat().st_size):
            raise CheckError(refusal(wrong))

    check_epoch()
    if options.report:
        require()
    with (
        _output_folder(options.out) as out,
        tempfile.TemporaryDirectory(prefix="afp-pack-") as name,
        dask_executor(options.scheduler) if options.scheduler else contextlib.nullcontext((None, options.workers)) as (
            executor,
            workers,
        ),
    ):
        request = replace(request, workers=options.workers or workers)
        try:
            built = build_pack(request, out if request.shard else Path(name), Progress, executor)
        except KernelsFailedError as error:
            if options.report:
                write(Subject(error.manifest, None, error.seconds_of, None, error.failed), options.report)
            raise
        if options.report:
            pack = Pack(str(built.path))
            proof = built.proof.to_json() if built.proof else None
            write(Subject(pack.manifest, len(pack.content), built.seconds_of, proof, built.failed), options.report)
        made = built.path if request.shard else build_wheel(built.path, out, accept)
        size = made.stat().st_size
    result = {
        "wheel": None if request.shard else str(made),
        "part": str(made) if request.shard else None,
        "kernels": built.kernels,
        "compiled": built.compiled,
        "reused": built.kernels - built.compiled,
        "shapes": built.shapes,
        "seconds": round(built.seconds, 1),
        "compile_seconds": round(built.compile_seconds, 1),
        "bytes": size,
        "bytes_per_kernel": round(size / max(1, built.kernels)),
        "uncovered": built.uncovered,
        "failed": list(built.failed),
        "left_out": [asdict(one) for one in built.left_out],
        "proof": built.proof.to_json() if built.proof else None,
        "seconds_of": built.seconds_of,
        "warnings": list(built.warnings),
    }
    if options.json:
        _print_json(result)
    else:
        show.build(result)
    return 1 if built.failed else 0


@contextlib.contextmanager
def _output_folder(path: Path) -> Iterator[Path]:
    """A folder that can be written to, known before anything is compiled; it goes again if it stays empty.

    :raises InputError: it cannot be made, or not be written to.
    """
    existed = path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written to: {error.strerror or error}") from error
    try:
        yield path
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                path.rmdir()


def _verify(options: argparse.Namespace) -> int:
    from . import show
    from .proof import open_subject, prove
    from .reach import parse_tokens

    with tempfile.TemporaryDirectory(prefix="afp-verify-") as name:
        tokens = parse_tokens(options.tokens) if options.tokens else None
        with _named(options.wheel, name):
            subject = open_subject(options.wheel, Path(name), options.package)
            proof = prove(
                subject, cold=options.cold, exhaustive=options.exhaustive, tokens=tokens, trusted=options.source
            )
    if options.json:
        _print_json(proof.to_json())
    else:
        show.proof(proof)
    return 0 if proof.ok else 1


@contextlib.contextmanager
def _named(wheel: Path | None, folder: str) -> Iterator[None]:
    """Let complaints about a pack name the wheel that the user gave, not where it was unpacked.

    :raises CheckError: in place of a PackError.
    """
    from ..pack import PackError

    try:
        yield
    except PackError as error:
        raise CheckError(str(error).replace(f"{folder}/", f"{wheel}: ")) from None


def _merge(options: argparse.Namespace) -> int:
    from .merging import merge_packs
    from .proof import open_subject
    from .wheel import build_wheel, check_epoch

    check_epoch()
    with _output_folder(options.out) as out, tempfile.TemporaryDirectory(prefix="afp-merge-") as name:
        packs: list[Path] = []
        for number, wheel in enumerate(options.wheels):
            packs += open_subject(wheel, Path(name, str(number))).packs
        merged, proof = merge_packs(packs, Path(name), prove=not options.no_proof, trusted=options.source)
        wheel = build_wheel(merged, out)
    result = {"wheel": str(wheel), "bytes": wheel.stat().st_size, "proof": proof.to_json() if proof else None}
    if options.json:
        _print_json(result)
    else:
        print(wheel)
        if proof is not None:
            print(f"proven: {proof.dispatches} dispatches, {proof.compiled} compiles")
    return 0


def _diff(options: argparse.Namespace) -> int:
    from . import show
    from .diffing import diff

    old, new = _opened(options.old), _opened(options.new)
    found = diff(old, new)
    if options.json:
        _print_json(found.to_json())
    else:
        show.difference(found)
    return int(options.exit_code and not found.same_kernels)


def _check(options: argparse.Namespace) -> int:
    from .gates import refusal

    packs = _opened(options.wheel)
    wrong = _asked_gates(options).check(packs, options.wheel.stat().st_size)
    if wrong:
        raise CheckError(refusal(wrong))
    if options.json:
        _print_json({"ok": True})
    else:
        print("all gates are passed")
    return 0


def _report(options: argparse.Namespace) -> int:
    from .reporting import subject_of, write

    packs = _opened(options.wheel)
    written = []
    for pack in packs:
        # A wheel may hold packs for several arches or FlyDSLs: each gets a folder.
        folder = options.out / Path(pack.path).stem if len(packs) > 1 else options.out
        written += [str(path) for path in write(subject_of(pack), folder)]
    if options.json:
        _print_json({"written": written})
    else:
        print("\n".join(written))
    return 0


def _opened(wheel: Path) -> list[Pack]:
    """The packs of a wheel, read and checked."""
    from ..pack import Pack
    from .proof import open_subject

    with tempfile.TemporaryDirectory(prefix="afp-open-") as name, _named(wheel, name):
        return [Pack(str(path)) for path in open_subject(wheel, Path(name)).packs]


def _inspect(options: argparse.Namespace) -> int:
    from . import show
    from .inspecting import extract, summarize
    from .proof import open_subject

    with tempfile.TemporaryDirectory(prefix="afp-inspect-") as name, _named(options.wheel, name):
        subject = open_subject(options.wheel, Path(name), options.package)
        summaries = [summarize(path, options.kernel) for path in subject.packs]
        written = [str(f) for path in subject.packs for f in extract(path, options.kernel, options.extract)]
    if options.kernel and not any(summary["kernels"] for summary in summaries):
        raise InputError(f"no kernel is called {options.kernel}")
    if options.json:
        _print_json({"packs": summaries, "extracted": written})
    else:
        show.packs(summaries, written)
    return 0


def _seed(options: argparse.Namespace) -> int:
    from ..discovery import find_packs, folder_in_use
    from ..seeding import prune, seed
    from . import show

    packages = options.package
    report = seed(packages, mode="strict" if options.strict else None, cache_dir=options.cache_dir)
    pruned = prune(report.cache_dir or folder_in_use(), find_packs(packages)) if options.prune else []
    if options.json:
        counts = {"kernels": report.kernels, "written": report.written, "pruned": pruned}
        _print_json({**report.to_json(), **counts})
    else:
        show.seeded(report, pruned)
    # A caution beside kernels that are in place is no failure; kernels that are not, are one.
    return 1 if (report.problems or report.mode == "strict") and not report.kernels else 0


def _warm(options: argparse.Namespace) -> int:
    from . import show
    from .warming import warm

    report = warm(options.package, trusted=options.source)
    if options.json:
        _print_json(report.to_json())
    else:
        show.warmed(report)
    return 0 if report.ok else 1


def _startup(options: argparse.Namespace) -> int:
    from ..startup import startup_file

    name, content = startup_file()
    path = Path(name)
    try:
        if options.install:
            path.write_text(content, encoding="utf-8")
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; install into an environment of your own") from error
    if options.json:
        _print_json({"file": name, "installed": options.install})
    else:
        print(f"{name} {'written' if options.install else 'is not there any more'}")
    return 0


def _status(options: argparse.Namespace) -> int:
    from ..state import status
    from . import show

    found = status(options.package)
    if options.json:
        _print_json(found)
    else:
        show.state(found)
    return 0


def _store_stats(options: argparse.Namespace) -> int:
    from . import show
    from .store import open_store, statistics

    found = statistics(open_store(getattr(options, "store", None)).shelf())
    if options.json:
        _print_json(asdict(found))
    else:
        show.store(found)
    return 0


def _store_times(options: argparse.Namespace) -> int:
    from .store import compile_times, open_store

    _print_json({"seconds_of": compile_times(open_store(options.store).shelf())})
    return 0


def _store_gc(options: argparse.Namespace) -> int:
    from .store import collect_garbage, open_store

    shelf = open_store(options.store).shelf()
    removed = collect_garbage(shelf, keep_seconds=options.days * 86400, keep_bytes=options.max_size)
    result = {"where": shelf.where, "removed": len(removed), "bytes": sum(item.size for item in removed)}
    if options.json:
        _print_json(result)
    else:
        print(f"{shelf.where}: {result['removed']} entries of {result['bytes']} bytes removed")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from . import doctor

    findings = doctor.examine()
    if options.json:
        _print_json({"ok": doctor.ok(findings), "findings": doctor.to_json(findings)})
    else:
        doctor.render(findings)
    return 0 if doctor.ok(findings) else 1
