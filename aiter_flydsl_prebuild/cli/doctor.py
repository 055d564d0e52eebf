"""``doctor``: what a build needs, what is there, and how to get the rest."""

from __future__ import annotations

import argparse

from .result import Result

HELP = "what a build needs, what is there, and how to get the rest"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--source", metavar="NAME", help="examine this source of kernels, too, such as aiter")
    parser.add_argument("--arch", default="gfx950", help="GPU architecture (default: gfx950)")
    parser.add_argument(
        "--requirements", action="store_true", help="only print what pip is to install for the source, a line each"
    )


def run(args: argparse.Namespace) -> Result:
    """Examine this machine, and the source where one is named."""
    from ..builder import doctor
    from ..sources import load_source

    source = load_source(args.source or "reference") if args.source or args.requirements else None
    if args.requirements and source is not None:
        wanted = source.requirements()
        return Result({"requirements": wanted}, lambda: print("\n".join(wanted)))
    findings = [*doctor.examine(), *(source.examine(args.arch) if source is not None else ())]
    ok = doctor.ok(findings)
    return Result({"ok": ok, "findings": doctor.to_json(findings)}, lambda: doctor.render(findings), ok=ok)
