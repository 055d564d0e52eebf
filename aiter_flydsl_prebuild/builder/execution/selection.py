"""Which kernels of a pack are executed, and under which key a result is kept."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...digests import digest, files_digest
from ...model.job import Job
from ...packs.format import Pack
from ...sources.base import Source, job_of
from .facts import ALL

_EMULATOR_FILES = (
    "test/mockgpu/amd/*.py",
    "test/amd/helpers.py",
    "tinygrad/renderer/amd/*.py",
    "tinygrad/runtime/autogen/amd/cdna/*.py",
)
"""What of a tinygrad checkout says what an instruction does. Its code generator is beside them."""


@dataclass(frozen=True)
class Candidate:
    """One kernel of a pack. ``code`` are the digests of its code objects."""

    pack: int
    index: int
    job: Job
    code: tuple[str, ...]


def candidates(packs: Sequence[Pack]) -> list[Candidate]:
    """Every kernel, in the packs' order."""
    return [
        Candidate(
            number,
            index,
            job_of(pack.manifest, kernel),
            tuple(code.code_object_sha256 for code in kernel.code),
        )
        for number, pack in enumerate(packs)
        for index, kernel in enumerate(pack.kernels)
    ]


def choose(found: Sequence[Candidate], source: Source, wanted: int | str | None, seed: int) -> list[Candidate]:
    """The kernels to execute: all, so many, or as few as have each trait once (:meth:`sources.base.Source.traits`).

    The cheaper of two that add as many traits is taken. A number beyond the sample adds others by chance.
    """
    if wanted == ALL or (isinstance(wanted, int) and wanted >= len(found)):
        return list(found)
    rest = {number: source.traits(one.job) for number, one in enumerate(found)}
    cost = {number: (source.cost(one.job) * one.job.shape.k, number) for number, one in enumerate(found)}
    missing = frozenset().union(*rest.values()) if rest else frozenset()
    sample: list[int] = []
    while missing and (wanted is None or len(sample) < int(wanted)):
        best = min(rest, key=lambda number: (-len(rest[number] & missing), cost[number]))
        missing -= rest.pop(best)
        sample.append(best)
    if wanted is not None and len(sample) < int(wanted):
        others = np.random.default_rng(seed).permutation(sorted(rest))
        sample += [int(number) for number in others[: int(wanted) - len(sample)]]
    return [found[number] for number in sorted(sample)]


def test_version(source: type) -> str:
    """A digest of the code that says what is tried and how: both packages of execution, and the source's problems."""
    own = Path(__file__).parents[2]
    packages = (own / "execution", own / "builder" / "execution")
    problems = [Path(inspect.getfile(base)).parent / "problems.py" for base in source.__mro__ if base is not object]
    files = {path for package in packages for path in package.glob("*.py")} | {
        path for path in problems if path.exists()
    }
    return files_digest(own, sorted(path for path in files if path.is_relative_to(own)))


def emulator_version(folder: Path) -> str:
    """A digest of what a tinygrad checkout knows of instructions."""
    return files_digest(folder, sorted(path for pattern in _EMULATOR_FILES for path in folder.glob(pattern)))


def key(candidate: Candidate, pack: Pack, conditions: dict[str, Any]) -> str:
    """Where a result is kept: by the code objects, the layer, FlyDSL's version, and the conditions of the test."""
    job = candidate.job
    what = {"name": job.name, **job.shape.layer(), "tokens": job.tokens, "options": job.options.to_json()}
    return digest(["executed", what, list(candidate.code), pack.version, conditions])
