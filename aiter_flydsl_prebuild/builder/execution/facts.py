"""What a manifest says of the execution of its kernels, and how gates and reports read it.

Each kernel that was executed has ``executed``: the ``problems`` by their labels, the ``tiles`` that were compared, the
``worst`` error in units of the tolerance, and ``races``. The manifest has ``execution``: where, with which seed, and
the version of the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...errors import InputError
from ...packs.manifest import Manifest, PackedKernel

if TYPE_CHECKING:
    from .running import Execution

EXECUTED: Final = "executed"
EXECUTION: Final = "execution"
"""The keys of a kernel and of the manifest. No seeding needs them, so the typed manifest has them as extra keys."""

ALL: Final = "all"
NOT_CHOSEN: Final = "not among the kernels that were executed"


@dataclass(frozen=True)
class ExecutedFacts:
    """What a manifest says of one kernel; ``reason`` is why it was not executed."""

    problems: tuple[str, ...] = ()
    tiles: int = 0
    worst: float = 0.0
    races: int = 0
    reason: str | None = None

    @property
    def text(self) -> str:
        """For a column of a table."""
        if self.reason is not None:
            return f"no: {self.reason}"
        races = f", {self.races} races" if self.races else ""
        return f"{'; '.join(self.problems)}: {self.worst:.2f}{races}"


def parse_kernels(text: str | None) -> int | str | None:
    """``--kernels``: ``all``, a number, or None for a sample.

    :raises InputError: it is of another form.
    """
    if text is None or text == ALL:
        return text
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InputError(f"--kernels {text}: write {ALL}, or a number from 1 on")
    return int(text)


def describe(manifest: Manifest, execution: Execution, seed: int) -> Manifest:
    """A manifest with what became of its kernels, all of which the execution knows."""
    found = {(one.candidate.pack, one.candidate.index): one for one in execution.kernels}
    kernels = []
    for index, kernel in enumerate(manifest.kernels):
        one = found[0, index]
        facts: dict[str, Any] = {"reason": one.reason or NOT_CHOSEN}
        if one.outcomes:
            facts = {
                "problems": [outcome.label for outcome in one.outcomes],
                "tiles": sum(outcome.tiles for outcome in one.outcomes),
                "worst": round(one.worst, 4),
                "races": list(dict.fromkeys(race for outcome in one.outcomes for race in outcome.races)),
            }
        kernels.append(kernel._replace(extra={**kernel.extra, EXECUTED: facts}))
    about = {"on": execution.on, "seed": seed, "version": execution.version}
    return manifest._replace(kernels=tuple(kernels), extra={**manifest.extra, EXECUTION: about})


def was_executed(manifest: Manifest) -> bool:
    """Whether kernels were executed when it was built."""
    return EXECUTION in manifest.extra


def executed(kernel: PackedKernel) -> ExecutedFacts | None:
    """What a kernel's part of the manifest says; None where it was built without executing anything."""
    facts = kernel.extra.get(EXECUTED)
    if not isinstance(facts, dict):
        return None
    if "worst" not in facts:
        return ExecutedFacts(reason=str(facts.get("reason")))
    return ExecutedFacts(
        tuple(map(str, facts["problems"])), int(facts["tiles"]), float(facts["worst"]), len(facts.get("races", ()))
    )


def unexecuted(manifest: Manifest) -> Iterator[tuple[PackedKernel, str]]:
    """The kernels of a manifest that were not executed, or that race, and why."""
    for kernel in manifest.kernels:
        facts = executed(kernel)
        if facts is None:
            yield kernel, "not executed: it was built without --execute"
        elif facts.reason is not None:
            yield kernel, f"not executed: {facts.reason}"
        elif facts.races:
            yield kernel, f"executed, and {facts.races} of its instructions race with loads to LDS"
