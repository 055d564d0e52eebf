"""``verify``: prove that serving compiles nothing, or execute kernels and compare what they compute."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..builder.settings import BuildSettings, setting, settings
from ..errors import InputError
from . import arguments
from .result import Result

if TYPE_CHECKING:
    from ..builder.execution.running import Wish

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
    arguments.add_settings(parser, "execution")
    parser.add_argument("--on", choices=("emulator", "gpu"), default="emulator", help="where (default: emulator)")
    arguments.add_setting(parser, setting("workers"))
    arguments.add_setting(parser, setting("store"))


def run(args: argparse.Namespace) -> Result:
    """Run the proof; or with ``--execute`` the kernels."""
    if args.execute:
        return _execute(args)
    _wish(args)
    from .. import needs

    needs.require("verify", *needs.PROVING, *(needs.CHECKING if args.wheel else ()))
    from ..builder.proof.proof import open_subject
    from ..builder.proof.verifying import verify
    from ..scratch import scratch_folder
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


def _wish(args: argparse.Namespace) -> Wish | None:
    from ..builder.executing import wish_of

    names = (*(one.name for one in settings(BuildSettings, "execution")), "workers", "store")
    return wish_of(BuildSettings(**{name: getattr(args, name) for name in names}))


def _execute(args: argparse.Namespace) -> Result:
    from dataclasses import replace

    from ..builder.execution.running import execute, shown
    from ..builder.proof.proof import open_subject
    from ..builder.proof.verifying import only_packs
    from ..builder.store.store import open_store
    from ..progress import Progress
    from ..scratch import scratch_folder
    from . import show

    if args.cold or args.exhaustive or args.tokens:
        raise InputError("--execute runs kernels in place of the proof: it takes no --cold, --exhaustive or --tokens")
    wish = _wish(args)
    assert wish is not None
    wish = replace(wish, on=args.on)
    with scratch_folder("verify") as folder, arguments.naming(args.wheel, folder):
        subject = only_packs(open_subject(args.wheel, folder, args.package), args.pack)
        with shown(lambda total: Progress(total, action="executing")) as advance:
            found = execute(subject, wish, open_store(args.store), trusted=args.source, advance=advance)
    return Result(found.to_json(), lambda: show.execution(found), ok=found.ok)
