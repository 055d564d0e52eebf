"""``build``: compile the kernels, prove them, and make a wheel."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckError
from . import arguments
from .result import Result

if TYPE_CHECKING:
    from ..builder.pipeline import BuildRequest, BuiltPack

HELP = "compile the kernels, prove them, and make a wheel"
INTERRUPTED = "no wheel was written; the kernel store keeps what was compiled for the next build"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    arguments.planning(parser)
    arguments.out(parser)
    parser.add_argument(
        "--workers", type=arguments.positive, metavar="N", help="processes (default: by cores and free memory)"
    )
    parser.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=300.0,
        metavar="SECONDS",
        help="limit for one kernel (default: 300)",
    )
    parser.add_argument("--keep-going", action="store_true", help="make a wheel without the kernels that failed")
    arguments.store(parser, "off for none; ")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write a report of the build there")
    arguments.gates(parser)
    arguments.executing(parser)
    parser.add_argument("--scheduler", metavar="ADDRESS", help="compile on a Dask cluster, as in tcp://host:8786")
    parser.add_argument("--shard", metavar="I/N", help="build part I of N alone, a pack for merge")
    parser.add_argument(
        "--shard-times",
        type=Path,
        metavar="FILE",
        help="measured seconds to balance parts by, one file for all of them",
    )


def run(args: argparse.Namespace) -> Result:
    """Build a wheel, or with ``--shard`` a part."""
    from ..builder import needs

    needs.require("build", *needs.COMPILING, *needs.WHEEL)
    from ..builder.gates import refusal
    from ..builder.pipeline import KernelsFailedError, build_pack
    from ..builder.progress import Progress
    from ..builder.remote import dask_executor
    from ..builder.reporting import Subject, require, write
    from ..builder.scratch import scratch_folder
    from ..builder.wheel import build_wheel, check_epoch
    from ..pack import Pack
    from . import show

    request = _request(args)

    def accept(wheel: Path) -> None:
        if wrong := request.gates.check([], wheel.stat().st_size):
            raise CheckError(refusal(wrong))

    check_epoch()
    if args.report:
        require()
    with (
        arguments.output_folder(args.out) as out,
        scratch_folder("pack") as folder,
        dask_executor(args.scheduler) if args.scheduler else contextlib.nullcontext((None, args.workers)) as (
            executor,
            workers,
        ),
    ):
        request = replace(request, workers=args.workers or workers)
        try:
            built = build_pack(request, out if request.shard else folder, Progress, executor)
        except KernelsFailedError as error:
            if args.report:
                write(Subject(error.manifest, None, error.seconds_of, None, error.failed), args.report)
            raise
        if args.report:
            pack = Pack(str(built.path))
            proof = built.proof.to_json() if built.proof else None
            write(Subject(pack.manifest, len(pack.content), built.seconds_of, proof, built.failed), args.report)
        made = built.path if request.shard else build_wheel(built.path, out, accept)
        size = made.stat().st_size
    value = _to_json(built, made, size, part=request.shard is not None)
    return Result(value, lambda: show.build(value), ok=not built.failed)


def _request(args: argparse.Namespace) -> BuildRequest:
    from ..builder.pipeline import BuildRequest
    from ..builder.reach import parse_tokens
    from ..builder.sharding import parse_shard

    return BuildRequest(
        source=args.source,
        arch=args.arch,
        tokens=parse_tokens(args.tokens),
        cu_num=tuple(args.cu_num),
        rule=args.rule,
        workers=args.workers,
        timeout=args.timeout,
        keep_going=args.keep_going,
        options=arguments.asked_options(args),
        store=args.store,
        shard=parse_shard(args.shard, args.shard_times) if args.shard else None,
        gates=arguments.asked_gates(args),
        execute=arguments.asked_execution(args),
    )


def _to_json(built: BuiltPack, made: Path, size: int, part: bool) -> dict[str, Any]:
    return {
        "wheel": None if part else str(made),
        "part": str(made) if part else None,
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
        "undecodable": list(built.undecodable),
        "proof": built.proof.to_json() if built.proof else None,
        "seconds_of": built.seconds_of,
        "warnings": list(built.warnings),
    }
