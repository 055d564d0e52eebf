"""``check``: check a finished wheel against the gates of ``build``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import CheckError
from . import arguments
from .result import Result

HELP = "check a finished wheel against the gates of build"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("wheel", type=Path, help="a wheel or a pack")
    arguments.add_settings(parser, "gates")


def run(args: argparse.Namespace) -> Result:
    """Check it against every gate."""
    from ..builder.gates import gates_of, refusal

    packs = arguments.opened(args.wheel)
    wrong = gates_of(arguments.asked(args)).check(packs, args.wheel.stat().st_size)
    if wrong:
        raise CheckError(refusal(wrong))
    return Result({"ok": True}, lambda: print("all gates are passed"))
