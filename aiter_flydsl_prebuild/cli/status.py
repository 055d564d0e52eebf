"""``status``: what is installed, what fits, what is seeded."""

from __future__ import annotations

import argparse

from . import arguments
from .result import Result

HELP = "what is installed, what fits, what is seeded"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    arguments.packages(parser)


def run(args: argparse.Namespace) -> Result:
    """Look, and change nothing."""
    from ..state import status
    from . import show

    found = status(args.package)
    return Result(found, lambda: show.state(found))
