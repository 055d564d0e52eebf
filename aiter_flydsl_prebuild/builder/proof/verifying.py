"""What ``verify`` does: a proof for all packs of a wheel or an environment, and whether pip installs the wheel right.

Packs that one dispatch serves (one source, arch, plan and FlyDSL) are proven together, since they are seeded together;
others one after the other, each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import needs
from ...errors import InputError, PrebuildError
from ...flydsl.install import read_install
from ...model.tokens import Range
from ...packs.format import Pack, PackError
from .proof import Proof, Subject, prove, request_of

_SUMS = ("dispatches", "calls", "kernels", "compiled", "payloads")
_LISTS = ("misses", "uncovered", "problems")


@dataclass(frozen=True)
class PackProof:
    """The proof of packs that are proven together, by their names."""

    packs: tuple[str, ...]
    proof: Proof


@dataclass(frozen=True)
class Verification:
    """All proofs, and what of the wheel itself is wrong."""

    proofs: tuple[PackProof, ...]
    wheel_problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every proof holds, and pip installs the wheel right."""
        return not self.wheel_problems and all(one.proof.ok for one in self.proofs)

    def to_json(self) -> dict[str, Any]:
        """As ``verify --json`` prints it: the totals of all proofs, then each of them."""
        proofs = [{"packs": list(one.packs), **one.proof.to_json()} for one in self.proofs]
        return {
            "ok": self.ok,
            "cold": self.proofs[0].proof.cold,
            **{name: sum(one[name] for one in proofs) for name in _SUMS},
            **{name: [item for one in proofs for item in one[name]] for name in _LISTS},
            "seconds": round(sum(one["seconds"] for one in proofs), 3),
            "wheel_problems": list(self.wheel_problems),
            "proofs": proofs,
        }


def verify(
    subject: Subject,
    *,
    only: Sequence[str] = (),
    cold: bool = False,
    exhaustive: bool = False,
    tokens: Range | None = None,
    trusted: str | None = None,
) -> Verification:
    """Prove all packs of a subject; see :func:`.proof.prove` for the options.

    :param only: names of packs, in place of all.
    :raises PackError: a pack is damaged.
    :raises CheckError: a proof's process ended without a result. Of several proofs, it is that one's problem.
    :raises InputError: no pack has a name that was given; or, for a single proof, its source is not to be trusted.
    """
    if subject.wheel is not None:
        needs.require("verifying a wheel", *needs.CHECKING)
    packs = [Pack(str(path)) for path in subject.packs]
    names = pack_names(subject.packs)
    only_packs(subject, only)
    chosen = [index for index, name in enumerate(names) if name in only or not only]
    groups = _groups(packs, chosen)
    proofs = []
    for group in groups:
        part = replace(subject, packs=tuple(subject.packs[index] for index in group))
        called = tuple(names[index] for index in group)
        try:
            if len(groups) > 1:
                _check_flydsl(packs[group[0]], called)
            found = prove(part, cold=cold, exhaustive=exhaustive, tokens=tokens, trusted=trusted)
        except PackError:
            raise
        except PrebuildError as error:
            if len(groups) == 1:
                raise
            found = Proof.failed(str(error), cold=cold)
        proofs.append(PackProof(called, found))
    return Verification(tuple(proofs), tuple(_wheel_problems(subject.wheel, packs)))


def only_packs(subject: Subject, only: Sequence[str]) -> Subject:
    """A subject with those of its packs that have one of these names; with all of them where none is given.

    :raises InputError: no pack has a name that was given.
    """
    names = pack_names(subject.packs)
    if unknown := [name for name in only if name not in names]:
        raise InputError(f"no pack is called {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = (path for path, name in zip(subject.packs, names, strict=True) if name in only or not only)
    return replace(subject, packs=tuple(chosen))


def pack_names(paths: Sequence[Path]) -> list[str]:
    """What packs are called: by their files, and by their whole paths where files share a name."""
    files = [path.name for path in paths]
    return [path.name if files.count(path.name) == 1 else str(path) for path in paths]


def _groups(packs: Sequence[Pack], chosen: Sequence[int]) -> list[list[int]]:
    """Packs that are proven together, by their numbers."""
    groups: dict[str, list[int]] = {}
    for index in chosen:
        pack = packs[index]
        request = repr((sorted(request_of(pack).items()), pack.version, pack.generation))
        groups.setdefault(request, []).append(index)
    return list(groups.values())


def _check_flydsl(pack: Pack, called: Sequence[str]) -> None:
    """Say at once, of one of several proofs, that it takes another environment.

    :raises InputError: the installed FlyDSL is not the one that the pack is for.
    """
    install = read_install()
    if install is not None and install.version != pack.version:
        asked = " ".join(f"--pack {name}" for name in called)
        raise InputError(
            f"not proven here: its kernels are for flydsl {pack.version}, installed is {install.version}; "
            f"where flydsl=={pack.version} is installed, run verify with {asked}"
        )


def _wheel_problems(wheel: Path | None, packs: Sequence[Pack]) -> list[str]:
    if wheel is None:
        return []
    from ..wheels.wheelcheck import wheel_problems

    return wheel_problems(wheel, packs)
