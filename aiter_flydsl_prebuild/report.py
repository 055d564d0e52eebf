"""What a seeding reports. Plain classes: a named tuple needs modules that a start with all in place does not load."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PackReport:
    """What became of one pack. ``kernels`` fit and are in place; ``written`` files are new.

    ``tokens`` is the range of token counts that it was built for, as ``1..8192``; empty where it does not say.
    """

    def __init__(
        self, path: str, arch: str, version: str, kernels: int, written: int, reasons: list[str], tokens: str = ""
    ) -> None:
        self.path = path
        self.arch = arch
        self.version = version
        self.kernels = kernels
        self.written = written
        self.reasons = reasons
        self.tokens = tokens

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
    reports = [
        PackReport(path, arch, version, int(kernels), 0, why, tokens)
        for path, arch, version, kernels, tokens, *why in packs
    ]
    report = SeedReport(mode, arches, folder, reports, seconds=time.perf_counter() - started)
    announce(report)
    return report


def covered(packs: list[PackReport]) -> str:
    """Which token counts the packs were built for; empty where none says."""
    return ", ".join(f"{os.path.basename(pack.path)} is for tokens {pack.tokens}" for pack in packs if pack.tokens)


def announce(report: SeedReport) -> None:
    """In strict mode, log where it ends, as information: a call outside of what the packs were built for will raise."""
    # Where nobody has loaded it, nobody has asked for information, and loading it takes longer than all of a start.
    logging = sys.modules.get("logging")
    if logging is not None and report.mode == "strict" and report.kernels:
        built_for = covered([pack for pack in report.packs if pack.kernels]) or "the packs do not say for which tokens"
        logging.getLogger("aiter_flydsl_prebuild").info(
            "aiter-flydsl-prebuild: strict: %d kernels in place, any other call of FlyDSL will raise (%s)",
            report.kernels,
            built_for,
        )
