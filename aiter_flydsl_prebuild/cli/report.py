"""``report``: a page, a picture and a summary of a wheel or a pack."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import arguments
from .result import Result

HELP = "a page, a picture and a summary of a wheel or a pack"
INTERRUPTED = "the report may be incomplete"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("wheel", type=Path, help="a wheel or a pack")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where they go")


def run(args: argparse.Namespace) -> Result:
    """Write the report of each pack."""
    from ..builder.reports.reporting import require, subject_of, write

    require()
    packs = arguments.opened(args.wheel)
    written: list[str] = []
    for pack in packs:
        # A wheel may hold packs for several arches or FlyDSLs: each gets a folder.
        folder = args.out / Path(pack.path).stem if len(packs) > 1 else args.out
        written += [str(path) for path in write(subject_of(pack), folder)]
    return Result({"written": written}, lambda: print("\n".join(written)))
