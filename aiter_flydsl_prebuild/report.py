"""What a seeding reports. Plain classes: a named tuple needs modules that a start with all in place does not load."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PackReport:
    """What became of one pack. ``kernels`` fit and are in place; ``written`` files are new."""

    def __init__(self, path: str, arch: str, version: str, kernels: int, written: int, reasons: list[str]) -> None:
        self.path = path
        self.arch = arch
        self.version = version
        self.kernels = kernels
        self.written = written
        self.reasons = reasons

    def to_json(self) -> dict[str, Any]:
        """As ``seed --json`` prints it."""
        return dict(vars(self))


class SeedReport:
    """What :func:`seed` did. ``problems`` were logged; ``cache_dir`` is None where nothing was to do.

    ``bundled`` files were copied from the cache folder that AITER's own package ships.
    """

    def __init__(
        self,
        mode: str,
        arches: list[str],
        cache_dir: str | None = None,
        packs: list[PackReport] | None = None,
        bundled: int = 0,
        problems: list[str] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.mode = mode
        self.arches = arches
        self.cache_dir = cache_dir
        self.packs = packs or []
        self.bundled = bundled
        self.problems = problems or []
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"SeedReport({', '.join(f'{name}={value!r}' for name, value in self.to_json().items())})"

    @property
    def kernels(self) -> int:
        """Kernels in place, over all packs."""
        return sum(pack.kernels for pack in self.packs)

    @property
    def written(self) -> int:
        """Files written by this call."""
        return sum(pack.written for pack in self.packs) + self.bundled

    def to_json(self) -> dict[str, Any]:
        """As ``seed --json`` prints it."""
        return {**vars(self), "packs": [pack.to_json() for pack in self.packs]}


def recalled(started: float, mode: str, arches: list[str], folder: str | None, packs: list[list[str]]) -> SeedReport:
    """The report of a start at ``started`` (perf_counter) that found all in place; see :func:`marker.recall`."""
    reports = [PackReport(path, arch, version, int(kernels), 0, why) for path, arch, version, kernels, *why in packs]
    return SeedReport(mode, arches, folder, reports, seconds=time.perf_counter() - started)
