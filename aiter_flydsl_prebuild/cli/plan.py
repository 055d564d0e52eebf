"""``plan``: which kernels the tuned tables reach, for every token count."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import arguments
from .result import Result

if TYPE_CHECKING:
    from ..model.job import Job
    from ..packs.manifest import LeftOut
    from ..sources.planning import LayerPlan

HELP = "which kernels the tuned tables reach, for every token count"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="tuned tables (default: the source's own)"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--from-log", type=Path, metavar="FILE", help="what servers compiled, from the monitor's log")
    other.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="N,K[,BLOCK]",
        help="what one layer gets, tuned or not, as in 7168,2048,32x32 (may be repeated)",
    )
    arguments.add_settings(parser, "plan")


def run(args: argparse.Namespace) -> Result:
    """Plan; or list what servers compiled (``--from-log``), or what layers get (``--shape``)."""
    from ..dispatch.fromlog import read_log, wanted
    from ..dispatch.reach import plan_reach, to_json
    from ..dispatch.rules import RULES
    from ..dispatch.tables import read_tables
    from ..model.job import Options
    from ..packs.manifest import to_json as facts
    from ..sources import load_source
    from ..sources.planning import parse_layer, plan_layers, plan_source, unknown_kernels
    from . import show

    asked = arguments.asked(args)
    selected: dict[str, Any] = {"cu_num": asked.cu_num, "tokens": asked.tokens}
    source = load_source(asked.source, Options(asked.kinds, asked.dtypes, asked.models))
    rule = args.rule or (RULES[0] if args.table else source.rule())
    if args.from_log is not None:
        found = wanted(read_log(args.from_log), read_tables(args.table or source.tables()), rule)
        return Result({"wanted": [one.to_json() for one in found]}, lambda: show.log(found))
    if args.shape:
        wanted_layers = [parse_layer(text) for text in args.shape]
        tables = read_tables(args.table or source.tables())
        layers = plan_layers(source, wanted_layers, tables, arch=args.arch, rule=rule, **selected)
        return Result(_layers_to_json(layers), lambda: show.layers(layers))
    left_out: tuple[LeftOut, ...] = ()
    beside: tuple[Job, ...] = ()
    if args.table:
        reach = plan_reach(read_tables(args.table), gfx=[args.arch], rule=rule, **selected)
        left_out = unknown_kernels(reach)
    else:
        plan = plan_source(source, arch=args.arch, rule=rule, **selected)
        reach, left_out, beside = plan.reach, plan.left_out, plan.beside
    more = {"left_out": [facts(one) for one in left_out], "beside_tables": [job.name for job in beside]}
    return Result({**to_json(reach), **more}, lambda: show.plan(reach, left_out, len(beside)))


def _layers_to_json(found: LayerPlan) -> dict[str, Any]:
    from ..dispatch.reach import to_json
    from ..packs.manifest import to_json as facts

    value = to_json(found.reach)
    for entry, shape in zip(found.reach.shapes, value["shapes"], strict=True):
        shape["heuristic"] = [[first, last] for first, last in found.heuristic[entry.shape]]
    return {**value, "left_out": [facts(one) for one in found.left_out]}
