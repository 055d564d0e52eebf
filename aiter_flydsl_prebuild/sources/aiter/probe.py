"""What a plan needs to know of an imported AITER: ``python -m ….sources.aiter.probe ANSWER.json < request.json``.

A process of its own, so that whoever plans (a command line, a build backend) need not import AITER with its stand-ins.
The request names ``arch``, ``ops``, ``names`` (of kernels, per op), ``shapes`` (a shape and its uncovered ranges),
``kinds``, ``search`` (the import path) and ``absent`` (modules that are not installed). The answer holds ``reasons``
(why an op or kind cannot be used, or null), ``decoded`` (per op and name: whether AITER runs a FlyDSL kernel for it, or
why that cannot be told), ``picks`` (per shape: runs of [kernel or null, first token, last token]) and ``jobs`` (per
kind: AITER's own); or ``absent``: what AITER imports and is not installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ...errors import PrebuildError
from ...model.shape import Shape
from ...model.tokens import Range
from . import ahead, needs
from .ops import OPS, Op


def main() -> int:
    """Read the request, ask AITER, write the answer."""
    request = json.load(sys.stdin)
    # At the end: a wheel's own folder must not stand in for what is installed.
    sys.path += [folder for folder in request["search"] if folder not in sys.path]
    stand_ins = needs.stand_in(request["absent"])
    try:
        answer = ask(request)
    except PrebuildError as error:
        name = needs.not_installed(error)
        answer = {"problem": str(error)} if name is None else {"absent": [name]}
    if "absent" in answer:
        answer["absent"] = list(dict.fromkeys([*stand_ins.imported, *answer["absent"]]))
    Path(sys.argv[1]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request in this process."""
    reasons: dict[str, str | None] = {}
    absent: list[str] = []
    ops: dict[str, Op] = {}
    for name in request["ops"]:
        op = OPS[name](request["arch"])
        try:
            op.prepare()
        except Exception as error:
            absent += filter(None, [needs.not_installed(error)])
            reasons[name] = needs.why(error)
        else:
            reasons[name], ops[name] = None, op
    picks = []
    for fields, ranges in () if request["absent"] else request["shapes"]:
        shape = Shape(**fields)
        picks.append(runs(ops[shape.op], shape, ranges) if shape.op in ops else [])
    decoded: dict[str, dict[str, bool | str]] = {}
    for name, op in ops.items():
        for kernel in request["names"].get(name, ()):
            runs_it = op.runs(kernel)
            if isinstance(runs_it, Exception):
                absent += filter(None, [needs.not_installed(runs_it)])
                decoded.setdefault(name, {})[kernel] = needs.why(runs_it)
            else:
                decoded.setdefault(name, {})[kernel] = runs_it
    jobs = {}
    for kind in request["kinds"]:
        try:
            jobs[kind] = ahead.collect(kind, request["arch"])
        except Exception as error:
            absent += filter(None, [needs.not_installed(error)])
            reasons[kind] = f"AITER cannot collect its jobs ({type(error).__name__}: {error})"
    if absent or request["absent"]:
        return {"absent": list(dict.fromkeys(absent))}
    return {"reasons": reasons, "decoded": decoded, "picks": picks, "jobs": jobs}


def runs(op: Op, shape: Shape, ranges: list[Range]) -> list[list[Any]]:
    """The heuristic's kernel for every token count of the ranges, as runs of equal answers."""
    op.on(shape)
    found: list[list[Any]] = []
    for first, last in ranges:
        for tokens in range(first, last + 1):
            name = op.pick(shape, tokens)
            if found and found[-1][0] == name and found[-1][2] == tokens - 1:
                found[-1][2] = tokens
            else:
                found.append([name, tokens, tokens])
    return found


if __name__ == "__main__":
    sys.exit(main())
