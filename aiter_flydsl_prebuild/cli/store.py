"""``store``: what builds keep for each other."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..builder.settings import setting
from . import arguments
from .result import Result

HELP = "what builds keep for each other"
INTERRUPTED = "with gc, only some entries may have been removed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's tasks and their arguments."""
    parser.set_defaults(task=_stats, store=None)
    tasks = parser.add_subparsers(metavar="TASK")
    for name, task, text in (
        ("stats", _stats, "count the kernels and bytes of the store"),
        ("times", _times, "print what each kernel took to compile, for --shard-times"),
        ("gc", _gc, "remove what no build has used for long"),
    ):
        found = tasks.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        # Without a default of its own, so that `store --json stats` keeps what was said before the task.
        found.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
        found.set_defaults(task=task)
        arguments.add_setting(found, setting("store"))
        if task is _gc:
            _configure_gc(found)


def _configure_gc(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--days",
        type=arguments.days,
        default=30.0,
        metavar="N",
        help="keep what was used since (default: 30; 0 keeps nothing)",
    )
    parser.add_argument(
        "--max-size", type=arguments.size, default=float("inf"), metavar="SIZE", help="keep no more, as in 5GB"
    )


def run(args: argparse.Namespace) -> Result:
    """Run the task; without one, count."""
    result: Result = args.task(args)
    return result


def _stats(args: argparse.Namespace) -> Result:
    from ..builder.store.store import open_store, statistics
    from . import show

    found = statistics(open_store(args.store).shelf())
    return Result(asdict(found), lambda: show.store(found))


def _times(args: argparse.Namespace) -> Result:
    from ..builder.store.store import compile_times, open_store

    value = {"seconds_of": compile_times(open_store(args.store).shelf())}
    # What --shard-times reads, with and without --json.
    return Result(value, lambda: print(json.dumps(value, indent=2)))


def _gc(args: argparse.Namespace) -> Result:
    from ..builder.store.store import collect_garbage, open_store

    shelf = open_store(args.store).shelf()
    removed = collect_garbage(shelf, keep_seconds=args.days * 86400, keep_bytes=args.max_size)
    value = {"where": shelf.where, "removed": len(removed), "bytes": sum(item.size for item in removed)}
    text = f"{shelf.where}: {value['removed']} entries of {value['bytes']} bytes removed"
    return Result(value, lambda: print(text))
