"""``verify``: prove that serving compiles nothing."""

from __future__ import annotations

import argparse

from . import arguments
from .result import Result

HELP = "prove that serving compiles nothing"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    arguments.wheel(parser)
    parser.add_argument(
        "--tokens",
        type=arguments.tokens,
        metavar="FIRST..LAST",
        help="token counts (default: those it was built for)",
    )
    parser.add_argument(
        "--pack", action="append", default=[], metavar="NAME", help="only this pack of several (may be repeated)"
    )
    arguments.trusted(parser)
    parser.add_argument("--cold", action="store_true", help="without the kernels: count what would compile")
    parser.add_argument(
        "--exhaustive", action="store_true", help="call FlyDSL for every token count, not only at the ends"
    )
    arguments.packages(parser)


def run(args: argparse.Namespace) -> Result:
    """Run the proof."""
    from ..builder import needs

    needs.require("verify", *needs.PROVING, *(needs.CHECKING if args.wheel else ()))
    from ..builder.proof import open_subject
    from ..builder.scratch import scratch_folder
    from ..builder.verifying import verify
    from . import show

    with scratch_folder("verify") as folder, arguments.naming(args.wheel, folder):
        subject = open_subject(args.wheel, folder, args.package)
        found = verify(
            subject,
            only=args.pack,
            cold=args.cold,
            exhaustive=args.exhaustive,
            tokens=args.tokens,
            trusted=args.source,
        )
    return Result(found.to_json(), lambda: show.verification(found), ok=found.ok)
