"""``seed``: put the installed kernels into FlyDSL's cache."""

from __future__ import annotations

import argparse
import os

from . import arguments
from .result import Result

HELP = "put the installed kernels into FlyDSL's cache"
INTERRUPTED = "files that were already written stay; seed again to write the rest"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--cache-dir", metavar="FOLDER", help="FlyDSL's cache (default: the one FlyDSL would use)")
    parser.add_argument("--strict", action="store_true", help="fail where a kernel cannot be put in place")
    parser.add_argument("--prune", action="store_true", help="remove what packs seeded that are not installed any more")
    arguments.packages(parser)


def run(args: argparse.Namespace) -> Result:
    """Seed, and prune where asked."""
    from ..discovery import bundled_folder, find_packs
    from ..places import choose
    from ..seeding import seed
    from ..stamps import prune
    from . import show

    packages = args.package
    report = seed(packages, mode="strict" if args.strict else None, cache_dir=args.cache_dir)
    # Where no pack is left to seed, the folder is still known.
    folder = report.cache_dir or args.cache_dir or choose(os.environ, bundled_folder()).folder
    pruned = prune(folder, find_packs(packages)) if args.prune else []
    counts = {"kernels": report.kernels, "written": report.written, "pruned": pruned}
    # A caution beside kernels that are in place is no failure; kernels that are not, are one.
    failed = bool(report.problems or report.mode == "strict") and not report.kernels
    return Result({**report.to_json(), **counts}, lambda: show.seeded(report, pruned), ok=not failed)
