"""``warm``: call each installed kernel once, and measure what first calls cost."""

from __future__ import annotations

import argparse

from . import arguments
from .result import Result

HELP = "call each installed kernel once, and measure what first calls cost"
INTERRUPTED = "kernels that were seeded stay; nothing was measured"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    arguments.trusted(parser)
    arguments.packages(parser)


def run(args: argparse.Namespace) -> Result:
    """Seed and call."""
    from ..warming import warm
    from . import show

    report = warm(args.package, trusted=args.source)
    return Result(report.to_json(), lambda: show.warmed(report), ok=report.ok)
