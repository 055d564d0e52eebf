"""``build``: compile the kernels, prove them, and make a wheel."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckError
from ..packs.manifest import to_json
from . import arguments
from .result import Result

if TYPE_CHECKING:
    from ..builder.pipeline import BuiltPack

HELP = "compile the kernels, prove them, and make a wheel"
INTERRUPTED = "no wheel was written; the kernel store keeps what was compiled for the next build"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    arguments.add_settings(parser, "plan", "build", "gates", "execution")
    arguments.out(parser)


def run(args: argparse.Namespace) -> Result:
    """Build a wheel, or with ``--shard`` a part."""
    from .. import needs

    # All that is missing at once: what the wheel takes, too.
    needs.require("build", *needs.COMPILING, *needs.WHEEL)
    from ..builder.building import build
    from ..builder.epoch import source_date_epoch
    from ..builder.gates import gates_of, refusal
    from ..builder.wheels.wheel import build_wheel, unordered
    from ..scratch import scratch_folder
    from . import show

    settings = arguments.asked(args)

    def accept(wheel: Path) -> None:
        if wrong := gates_of(settings).check([], wheel.stat().st_size):
            raise CheckError(refusal(wrong))

    source_date_epoch()  # a fault in it is known before anything is compiled
    with arguments.output_folder(args.out) as out, scratch_folder("pack") as folder:
        part = settings.shard is not None
        built = build(settings, out if part else folder)
        made = built.path if part else build_wheel(built.path, out, accept, settings.number)
        size = made.stat().st_size
    value = _to_json(built, made, size, part)
    if not part and (note := unordered(made, settings.number)):
        print(f"aiter-flydsl-prebuild: {note}", file=sys.stderr)
        value["warnings"].append(note)
    return Result(value, lambda: show.build(value), ok=not built.failed)


def _to_json(built: BuiltPack, made: Path, size: int, part: bool) -> dict[str, Any]:
    return {
        "wheel": None if part else str(made),
        "part": str(made) if part else None,
        "kernels": built.kernels,
        "compiled": built.compiled,
        "reused": built.kernels - built.compiled,
        "shapes": built.shapes,
        "seconds": round(built.seconds, 1),
        "compile_seconds": round(built.compile_seconds, 1),
        "bytes": size,
        "bytes_per_kernel": round(size / max(1, built.kernels)),
        "uncovered": built.uncovered,
        "failed": list(built.failed),
        "left_out": to_json(built.left_out),
        "undecodable": list(built.undecodable),
        "proof": built.proof.to_json() if built.proof else None,
        "seconds_of": built.seconds_of,
        "warnings": list(built.warnings),
    }
