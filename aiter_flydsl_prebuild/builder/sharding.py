"""One build over several machines: which part compiles what, without any of them talking to another.

Every part makes the same plan, spreads its jobs in the same way, and compiles its own; ``merge`` joins what they made.
Jobs go longest first to the part that has least to do. How long one takes, its source estimates from the kernel's name,
the same everywhere; measured seconds are better, and have to be the same file for every part.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..digests import digest
from ..errors import InputError
from ..model.job import Job
from ..sources.base import Source


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 1) of ``of``; ``times`` is a file with measured seconds, None for estimates."""

    index: int
    of: int
    times: Path | None = None

    def __str__(self) -> str:
        return f"{self.index}of{self.of}"


def parse_shard(text: str, times: Path | None = None) -> Shard:
    """``3/8`` as a shard.

    :raises InputError: it is not of that form.
    """
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not match or int(match[1]) > int(match[2]):
        raise InputError(f"--shard {text}: write I/N, as in 3/8, with I from 1 to N")
    return Shard(int(match[1]), int(match[2]), times)


@dataclass(frozen=True)
class Assignment:
    """The jobs of each part, and a digest that is the same for parts that agree on all of them."""

    parts: tuple[tuple[Job, ...], ...]
    digest: str


def assign(jobs: Sequence[Job], of: int, costs: Sequence[float]) -> Assignment:
    """Spread jobs over ``of`` parts, the longest first, each to the part with the least to do.

    :param costs: of each job, in their order.
    """
    parts: list[list[Job]] = [[] for _ in range(of)]
    loads = [(0.0, part) for part in range(of)]
    for job, cost in longest_first(jobs, costs):
        load, part = loads[0]
        parts[part].append(job)
        heapq.heapreplace(loads, (load + cost, part))
    return Assignment(tuple(map(tuple, parts)), digest([[job.label for job in part] for part in parts]))


def longest_first(jobs: Sequence[Job], costs: Sequence[float]) -> list[tuple[Job, float]]:
    """Jobs with their costs; where these are equal the labels decide, and never the order that the jobs came in."""
    return sorted(zip(jobs, costs, strict=True), key=lambda pair: (-pair[1], pair[0].label))


def costs_of(jobs: Sequence[Job], source: Source, times: Path | None = None) -> list[float]:
    """What each job takes: seconds as measured, the source's estimate brought to their scale where there are none.

    :raises InputError: the file with the seconds is not one.
    """
    estimates = [source.cost(job) for job in jobs]
    if times is None:
        return estimates
    known = read_times(times)
    labels = [job.label for job in jobs]
    measured = [(known[label], guess) for label, guess in zip(labels, estimates, strict=True) if label in known]
    scale = sum(seconds for seconds, _ in measured) / sum(guess for _, guess in measured) if measured else 1.0
    return [known.get(label, scale * guess) for label, guess in zip(labels, estimates, strict=True)]


def read_times(path: Path) -> dict[str, float]:
    """Seconds by label, from what ``build --json`` or ``store times`` wrote.

    :raises InputError: it is not of that form.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))["seconds_of"]
        return {str(label): float(seconds) for label, seconds in found.items()}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: holds no seconds; take what build --json or store times wrote") from error
