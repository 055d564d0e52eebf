"""``inspect``: what is in a wheel or a pack."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import InputError
from . import arguments
from .result import Result

HELP = "what is in a wheel or a pack"
INTERRUPTED = "with --extract, only some files may have been written"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    arguments.wheel(parser)
    parser.add_argument("--kernel", metavar="NAME", help="only kernels of this name")
    parser.add_argument("--extract", type=Path, metavar="FOLDER", help="write their code objects and MLIR there")
    arguments.packages(parser)


def run(args: argparse.Namespace) -> Result:
    """List the kernels, and extract what was asked for."""
    from ..builder.proof.proof import open_subject
    from ..builder.reports.inspecting import extract, summarize
    from ..scratch import scratch_folder
    from . import show

    with scratch_folder("inspect") as folder, arguments.naming(args.wheel, folder):
        subject = open_subject(args.wheel, folder, args.package)
        summaries = [summarize(path, args.kernel) for path in subject.packs]
        written = list(map(str, extract(subject.packs, args.kernel, args.extract))) if args.extract else []
    if args.kernel and not any(summary.manifest.kernels for summary in summaries):
        raise InputError(f"no kernel is called {args.kernel}")
    return Result(
        {"packs": [summary.to_json() for summary in summaries], "extracted": written},
        lambda: show.packs(summaries, written),
    )
