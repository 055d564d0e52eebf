"""What the next wheel should hold: the compiles that a monitor logged, set against the tuned tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import rules
from .tables import Tables

# What of monitor.Compile is read here, and its types.
_EVENT = {"launcher": (str,), "constants": (dict,), "arguments": (list,), "seconds": (int, float)}
_TENSOR = re.compile(r"\w+\[(\d+), (\d+)\]")


@dataclass(frozen=True)
class Wanted:
    """Kernels that servers compiled: one launcher, one weight [n, k], all token counts together.

    ``n``, ``k`` and ``tokens`` are what could be told from the log, None or empty where nothing could. ``rows`` maps
    each token count to the kernel that the tables give it, None where they have no row: that is the row to add.
    """

    launcher: str
    n: int | None
    k: int | None
    tokens: tuple[int, ...]
    compiles: int
    seconds: float
    rows: dict[int, str | None]

    def to_json(self) -> dict[str, Any]:
        """As ``plan --from-log --json`` prints it."""
        rows = [{"tokens": m, "kernel": name} for m, name in self.rows.items()]
        return {**self.__dict__, "tokens": list(self.tokens), "rows": rows}


def read_log(path: Path) -> list[dict[str, Any]]:
    """The events of a monitor's file, one JSON object a line.

    :raises InputError: the file cannot be read, or a line is none; every such line is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    events, problems = [], []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or any(type(event.get(name)) not in kinds for name, kinds in _EVENT.items()):
            problems.append(f"{path}: line {number}: not an event of the monitor; write the log with watch(log=…)")
        else:
            events.append(event)
    if problems:
        raise InputError(problems)
    return events


def wanted(events: Sequence[dict[str, Any]], tables: Tables, rule: str) -> list[Wanted]:
    """The events by launcher and weight, each token count looked up in the tables of any op."""
    groups: dict[tuple[str, int | None, int | None], list[dict[str, Any]]] = {}
    for event in events:
        n, k, _ = sizes(event)
        groups.setdefault((event["launcher"], n, k), []).append(event)
    names: dict[tuple[int, int], dict[int, str]] = {}
    for row in tables.rows:
        if row.libtype == rules.FLYDSL:
            names.setdefault((row.n, row.k), {}).setdefault(row.m, row.name)
    found = []
    for (launcher, n, k), group in groups.items():
        tokens = sorted({m for event in group if (m := sizes(event)[2]) is not None})
        known = names.get((n, k), {}) if n and k else {}
        looked_up = {m: _first(known, rules.m_candidates(m, n, rule)) for m in tokens} if n and k else {}
        seconds = round(sum(event["seconds"] for event in group), 3)
        found.append(Wanted(launcher, n, k, tuple(tokens), len(group), seconds, looked_up))
    return sorted(found, key=lambda w: (w.launcher, w.n or 0, w.k or 0))


def sizes(event: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """``(N, K, M)`` of a GEMM's compile, as far as the log tells.

    From three matrices that fit as [M, N], [M, K] and [N, K]; else from constants called n and k, and the one number
    among the arguments.
    """
    shapes = [tuple(map(int, match.groups())) for a in event["arguments"] if (match := _TENSOR.fullmatch(str(a)))]
    for (m, n), (m2, k), (n2, k2) in permutations(shapes, 3):
        if (m, n, k) == (m2, n2, k2):
            return n, k, m
    constants = {name.lower(): value for name, value in event["constants"].items()}
    numbers = [a for a in event["arguments"] if type(a) is int and a > 0]
    columns, depth = (value if type(value := constants.get(name)) is int else None for name in ("n", "k"))
    return columns, depth, numbers[0] if len(numbers) == 1 else None


def _first(rows: dict[int, str], candidates: Sequence[int]) -> str | None:
    return next((rows[m] for m in candidates if m in rows), None)
