"""What a pipeline requires of a wheel before it is published: size, spills, coverage, and the compiler that made it.

Every gate is checked, and all failures are listed at once. A gate looks at a finished pack, so that ``build``, the
hook, and ``check`` on a wheel that came back from elsewhere require the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..model.tokens import Range, spelled, within, without
from ..packs.format import Pack
from .execution.facts import unexecuted, was_executed
from .settings import BuildSettings


@dataclass(frozen=True)
class Gates:
    """Limits, each None where there is none.

    ``max_size`` is in bytes, of the file that is let go; ``max_spills`` counts registers that a kernel spills, VGPRs
    and SGPRs together; ``coverage`` are token counts that every shape must have a kernel or another library's winner
    for; ``known_bad`` are compilers that no kernel may come from, each ``flydsl==VERSION`` or ``linker==TEXT``. With
    ``executed``, every kernel must have been executed when the pack was built, and have computed what it should.
    """

    max_size: int | None = None
    max_spills: int | None = None
    coverage: Range | None = None
    known_bad: tuple[str, ...] = ()
    executed: bool = False

    def check(self, packs: Sequence[Pack], size: int) -> list[str]:
        """All that is wrong with packs that lie in a file of ``size`` bytes; a line each."""
        problems = []
        if self.max_size is not None and size > self.max_size:
            problems.append(f"size: {size} bytes, {size - self.max_size} more than --max-size allows")
        for pack in packs:
            problems += _compiled_badly(pack, self.known_bad)
            if self.max_spills is not None:
                problems += _spilling(pack, self.max_spills)
            if self.coverage is not None:
                problems += _uncovered(pack, self.coverage)
            if self.executed:
                problems += _unexecuted(pack)
        return problems


def gates_of(settings: BuildSettings) -> Gates:
    """The gates that were asked for."""
    return Gates(
        settings.max_size,
        settings.max_spills,
        settings.require_coverage,
        settings.known_bad,
        settings.require_executed,
    )


def refusal(problems: Sequence[str]) -> str:
    """What a pipeline is told: everything that is wrong."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    return f"the gates are not passed ({len(problems)}):\n{lines}"


def parse_size(text: str) -> int:
    """``500kB``, ``20 MB`` or ``2GiB`` in bytes.

    :raises InputError: it is of another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|kB|KiB|[MGT]i?B)", text)
    if not match:
        raise InputError(f"{text!r} is not a size such as 500kB, 20MB or 2GiB")
    unit = match[2]
    return int(float(match[1]) * (1024 if "i" in unit else 1000) ** "BKMGT".index(unit[0].upper()))


def parse_known_bad(text: str) -> str:
    """``flydsl==0.4.1`` or ``linker==LLD 22.1.7``, as it is.

    :raises InputError: it is of another form.
    """
    if not re.fullmatch(r"(flydsl|linker)==\S.*", text):
        raise InputError(f"{text!r} is not of the form flydsl==VERSION or linker==TEXT")
    return text


def _compiled_badly(pack: Pack, known_bad: Sequence[str]) -> Iterator[str]:
    made_by = {"flydsl": pack.version, "linker": pack.manifest.toolchain.linker}
    for one in known_bad:
        what, _, version = one.partition("==")
        if made_by[what] == version:
            yield f"compiler: {what} {version} is known to be bad (--known-bad)"


def _spilling(pack: Pack, limit: int) -> Iterator[str]:
    for kernel in pack.kernels:
        vgprs, sgprs = (sum(getattr(code, name) for code in kernel.code) for name in ("vgpr_spills", "sgpr_spills"))
        if vgprs + sgprs > limit:
            yield f"spills: {kernel.label} spills {vgprs} VGPRs and {sgprs} SGPRs, --max-spills is {limit}"


def _uncovered(pack: Pack, wanted: Range) -> Iterator[str]:
    """Token counts without a kernel here: outside the plan, of no row, or of a kernel that is not in the pack.

    A name that AITER cannot decode leaves none: AITER runs another library's kernel there.
    """
    plan = pack.manifest.plan
    for one in plan.left_out:
        yield f"coverage: {one}"
    for lost in pack.missing:
        if lack := within(lost.tokens, wanted):
            yield f"coverage: {lost.label} is not in the pack: tokens {spelled(lack)}"
    if outside := without([wanted], [plan.tokens]):
        first, last = plan.tokens
        yield f"coverage: the kernels were built for tokens {first}..{last}, not for {spelled(outside)}"
    for shape in plan.shapes:
        if lack := within(shape.uncovered, wanted):
            yield f"coverage: {shape.shape.label}: no row serves tokens {spelled(lack)}"


def _unexecuted(pack: Pack) -> Iterator[str]:
    if not was_executed(pack.manifest):
        yield "executed: the pack was built without --execute"
        return
    for kernel, reason in unexecuted(pack.manifest):
        yield f"executed: {kernel.label}: {reason}"
