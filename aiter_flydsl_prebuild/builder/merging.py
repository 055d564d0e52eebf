"""Joining packs: the parts of one build that was split, or one build under several CPython versions.

Kernels are joined by what they compute. Up to FlyDSL 0.4.2 a kernel's name in the cache holds for one CPython ABI;
packs of several ABIs become one with a set of names for each, over the same payloads. Conflicting packs are rejected.
Keys of a manifest that this version does not know are kept where all packs have the same. So is what became of executed
kernels; packs that differ in that alone are joined without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CheckError, InputError
from ..packs.format import Pack
from ..packs.manifest import Manifest, MissingKernel, to_json
from .compiling import Compiled, CompiledEntry
from .execution.facts import EXECUTED, EXECUTION
from .packing import encode_pack, make_manifest, pack_name, unpacked, write_pack
from .proof.proof import Proof, Subject, judge
from .proof.proof import prove as run_proof


def merge_packs(
    paths: Sequence[Path], folder: Path, *, prove: bool = True, trusted: str | None = None
) -> tuple[Path, Proof | None]:
    """Write the union of packs into ``folder``; returns its path, and the proof where there was one.

    A kernel that is missing in one and present in another is present. The result is, byte for byte, the pack that one
    build of all kernels would have made. Parts of a build, which were not proven, are proven here, as the build would.

    :param prove: False for a machine without the FlyDSL and the source of the parts.
    :param trusted: a source outside this project that may be imported for the proof.
    :raises PackError: a pack is damaged.
    :raises CheckError: the packs are of different things, or have different code for one kernel; all are named.
    """
    packs = [Pack(str(path)) for path in paths]
    if not packs:
        raise InputError("no pack was given to merge")
    first = packs[0]
    problems = [
        f"{_called(paths, 0)} and {_called(paths, number)} differ in their {what}: they are not parts of one build"
        for number, pack in enumerate(packs[1:], 1)
        for what in _differences(first.manifest, pack.manifest)
    ]
    problems += _incomplete(packs)
    if problems:
        raise CheckError("\n".join(problems))
    merged: dict[str, Compiled] = {}
    missing: dict[str, MissingKernel] = {}
    identities: dict[str, list[str]] = {}
    for pack in packs:
        for abi, known in pack.identities.items():
            identities[abi] = sorted({*identities.get(abi, ()), *known})
        for compiled in unpacked(pack):
            label = compiled.job.label
            merged[label] = _join(merged[label], compiled, problems) if label in merged else compiled
        missing |= {kernel.label: kernel for kernel in pack.missing}
    if problems:
        raise CheckError("\n".join(problems))
    flydsl = first.manifest.flydsl._replace(identities=identities)
    still = [kernel for label, kernel in missing.items() if label not in merged]
    about = first.manifest.about._replace(shard=None, seconds=None)
    if any(pack.manifest.extra.get(EXECUTION) != about.extra.get(EXECUTION) for pack in packs):
        about = about._replace(extra=_without(about.extra, EXECUTION))
        merged = {label: replace(one, extra=_without(one.extra, EXECUTED)) for label, one in merged.items()}
    path = folder / pack_name(first.arch, flydsl)
    write_pack(path, encode_pack(*make_manifest(first.arch, flydsl, merged.values(), still, about)))
    if not prove or first.manifest.shard is None:
        return path, None
    proof = run_proof(Subject((path,)), trusted=trusted)
    judge(proof, still)
    return path, proof


def _incomplete(packs: Sequence[Pack]) -> list[str]:
    """Why packs that are parts of a build do not make up all of it; packs that are none are no parts of any."""
    parts = [pack.manifest.shard for pack in packs if pack.manifest.shard is not None]
    if not parts:
        return []
    if len(parts) < len(packs):
        return ["some of these are parts of a build and some are whole; merge the parts alone"]
    if any(pack.identities != packs[0].identities for pack in packs):
        return ["these are parts for several Pythons or FlyDSLs; merge the parts for each, and then the wheels"]
    first = parts[0]
    if any(shard._replace(index=first.index) != first for shard in parts):
        return ["these are parts of builds that were split in different ways; give each part the same --shard-times"]
    absent = sorted(set(range(1, first.of + 1)) - {shard.index for shard in parts})
    return [f"part {index} of {first.of} is not among these" for index in absent]


def _called(paths: Sequence[Path], number: int) -> str:
    """A pack's file name, with its place where wheels have packs of one name."""
    name = paths[number].name
    return name if [path.name for path in paths].count(name) == 1 else f"{name} (number {number + 1})"


def _differences(one: Manifest, other: Manifest) -> list[str]:
    """In what two packs differ that must be the same in all that are joined, keys that are not known here included.

    The linker leaves no trace in a kernel, and each kernel says which bitcode it linked.
    """
    found = [what for what in ("arch", "source") if getattr(one, what) != getattr(other, what)]
    plans = to_json(one.plan), to_json(other.plan)
    found += [f"plan's {key}" for key in sorted({*plans[0], *plans[1]}) if plans[0].get(key) != plans[1].get(key)]
    ours, theirs = one.flydsl, other.flydsl
    found += [f"flydsl {key}" for key in ("version", "generation") if getattr(ours, key) != getattr(theirs, key)]
    for prefix, mine, yours in (
        ("", _without(one.extra, EXECUTION), _without(other.extra, EXECUTION)),
        ("flydsl ", ours.extra, theirs.extra),
        ("toolchain's ", one.toolchain.extra, other.toolchain.extra),
    ):
        found += [f"{prefix}{key}" for key in sorted({*mine, *yours}) if mine.get(key) != yours.get(key)]
    return found


def _join(one: Compiled, other: Compiled, problems: list[str]) -> Compiled:
    """One kernel out of two packs: the same code under further names."""
    ours = sorted(one.entries, key=_content)
    theirs = sorted(other.entries, key=_content)
    same = [_content(e) for e in ours] == [_content(e) for e in theirs]
    extras = [_without(some.extra, EXECUTED) for some in (one, other)]
    same = same and (one.bitcode, extras[0]) == (other.bitcode, extras[1])
    # A pack of an older release does not say from which files.
    same = same and (one.files == other.files or not one.files or not other.files)
    entries = []
    for mine, their in zip(ours, theirs, strict=False):
        paths = dict(mine.paths)
        for abi, path in their.paths:
            same = same and paths.setdefault(abi, path) == path
        same = same and mine.artifact_key == their.artifact_key
        entries.append(replace(mine, paths=tuple(sorted(paths.items()))))
    if not same:
        problems.append(f"{one.job.label} is not the same kernel in all packs")
    extra = one.extra if one.extra == other.extra else extras[0]
    return replace(one, entries=tuple(entries), files=one.files or other.files, extra=extra)


def _without(extra: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in extra.items() if name != key}


def _content(entry: CompiledEntry) -> tuple[str, ...]:
    fields, extra = (repr(sorted(some.items())) for some in (entry.entry.fields, entry.extra))
    return entry.launcher, entry.entry.ir_text, fields, repr(entry.code), extra
