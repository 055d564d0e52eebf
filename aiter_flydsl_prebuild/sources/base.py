"""What a source of kernels is: the one interface between this project and whoever writes the kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..builder.reach import Range, Reach, Shape


@dataclass(frozen=True)
class Job:
    """One compile: a kernel name and the arguments that enter its cache key.

    ``shape.cu_num`` is 0: a kernel is the same on every partition of a GPU. ``tokens`` are the token ranges that it
    serves, for the manifest; they enter no key.
    """

    source: str
    arch: str
    name: str
    shape: Shape
    tokens: tuple[Range, ...]

    @property
    def label(self) -> str:
        """How the job is called in messages."""
        scale = f", scales {self.shape.w_scale_block}" if self.shape.w_scale_block else ""
        return f"{self.name} (N={self.shape.n}, K={self.shape.k}{scale})"


class Source(ABC):
    """Kernels of one origin, and the run-time dispatch that a server uses for them.

    Everything below that touches FlyDSL is called in processes whose environment is scrubbed and whose cache folder is
    set; a source sets nothing of that itself.
    """

    name: str
    """What the manifest and the command line call it; set by :func:`sources.load_source`."""

    @abstractmethod
    def tables(self) -> list[Path]:
        """The tuned tables that the run-time dispatch reads."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """What tells this source's kernels from another version's: ``version``, ``digest`` (of its code), ``license``."""

    @abstractmethod
    def compile(self, job: Job) -> None:
        """Make the call that the server makes for ``job``, on arguments without content.

        FlyDSL compiles it into its cache folder and does not launch (COMPILE_ONLY). Raises what FlyDSL raises.
        """

    @abstractmethod
    def resolve(self, shape: Shape, tokens: int) -> str | None:
        """The kernel that the run-time dispatch picks for a token count, None where it picks none of this source's."""

    @abstractmethod
    def call(self, shape: Shape, tokens: int) -> None:
        """Call the op for a token count, from its dispatch down to FlyDSL. Raises what FlyDSL raises."""

    def jobs(self, reach: Reach, arch: str) -> list[Job]:
        """The compiles that a plan needs: each distinct kernel once."""
        return jobs_of(self.name, reach, arch)


def jobs_of(source: str, reach: Reach, arch: str) -> list[Job]:
    """One job for each distinct kernel of a plan: name, op, N, K and scale blocks, whichever cu_num reaches it."""
    found: dict[tuple[str, Shape], list[Range]] = {}
    for entry in reach.shapes:
        for kernel in entry.kernels:
            if kernel.name not in reach.undecodable:
                anywhere = replace(entry.shape, cu_num=0)
                found.setdefault((kernel.name, anywhere), []).extend(kernel.tokens)
    return [Job(source, arch, name, shape, merge_ranges(tokens)) for (name, shape), tokens in found.items()]


def merge_ranges(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Inclusive ranges, sorted and joined where they touch."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)
