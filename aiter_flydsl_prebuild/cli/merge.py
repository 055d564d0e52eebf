"""``merge``: join wheels or packs of one plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..builder.settings import setting
from . import arguments
from .result import Result

HELP = "join wheels or packs of one plan: several Pythons, or parts"
INTERRUPTED = "no wheel was written"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="wheels or packs")
    arguments.trusted(parser)
    parser.add_argument("--no-proof", action="store_true", help="do not prove what parts of a build make up")
    arguments.add_setting(parser, setting("number"))
    arguments.out(parser)


def run(args: argparse.Namespace) -> Result:
    """Join them, prove what was not proven, and make a wheel."""
    from .. import needs

    needs.require("merge", *needs.WHEEL)
    from ..builder.epoch import source_date_epoch
    from ..builder.merging import merge_packs
    from ..builder.proof.proof import open_subject
    from ..builder.wheels.wheel import build_wheel, unordered
    from ..scratch import scratch_folder

    source_date_epoch()  # a fault in it is known before anything is proven
    with arguments.output_folder(args.out) as out, scratch_folder("merge") as folder:
        packs: list[Path] = []
        for number, wheel in enumerate(args.wheels):
            packs += open_subject(wheel, folder / str(number)).packs
        merged, proof = merge_packs(packs, folder, prove=not args.no_proof, trusted=args.source)
        made = build_wheel(merged, out, number=args.number)

    if note := unordered(made, args.number):
        print(f"aiter-flydsl-prebuild: {note}", file=sys.stderr)

    def show() -> None:
        print(made)
        if proof is not None:
            print(f"proven: {proof.dispatches} dispatches, {proof.compiled} compiles")

    value = {"wheel": str(made), "bytes": made.stat().st_size, "proof": proof.to_json() if proof else None}
    return Result(value, show)
