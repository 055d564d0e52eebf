"""``diff``: what is different between two wheels or packs."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import arguments
from .result import Result

HELP = "what is different between two wheels or packs, kernel by kernel"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("old", type=Path, help="a wheel or a pack")
    parser.add_argument("new", type=Path, help="a wheel or a pack")
    parser.add_argument("--exit-code", action="store_true", help="end with status 1 where kernels differ")


def run(args: argparse.Namespace) -> Result:
    """Compare them."""
    from ..builder.reports.diffing import diff
    from . import show

    found = diff(arguments.opened(args.old), arguments.opened(args.new))
    return Result(found.to_json(), lambda: show.difference(found), ok=found.same_kernels or not args.exit_code)
