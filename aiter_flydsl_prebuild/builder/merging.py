"""Joining packs: the parts of one build that was split, or one build under several CPython versions.

Kernels are joined by what they compute. Up to FlyDSL 0.4.2 a kernel's name in the cache holds for one CPython ABI;
packs of several ABIs become one with a set of names for each, over the same payloads. What contradicts is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CheckError, InputError
from ..pack import Pack
from ..sources.base import Job, job_of
from .compiling import Compiled, CompiledEntry, FlyDSL
from .packing import encode_pack, make_manifest, pack_name, unpacked, write_pack
from .proof import Proof, Subject, judge
from .proof import prove as run_proof
from .tables import Shape

# What describes a pack as a whole, and must be the same in all that are joined; toolchain's linker leaves no trace.
_COMMON = ("arch", "source", "plan")


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
    merged: dict[tuple[str, Shape], Compiled] = {}
    missing: dict[tuple[str, Shape], tuple[Job, str]] = {}
    identities: dict[str, list[str]] = {}
    for pack in packs:
        for abi, known in pack.identities.items():
            identities[abi] = sorted({*identities.get(abi, ()), *known})
        for compiled in unpacked(pack):
            key = (compiled.job.name, compiled.job.shape)
            merged[key] = _join(merged[key], compiled, problems) if key in merged else compiled
        for lost in pack.manifest["missing"]:
            job = job_of(pack, lost)
            missing[job.name, job.shape] = (job, lost["reason"])
    if problems:
        raise CheckError("\n".join(problems))
    flydsl = FlyDSL(first.version, first.generation, identities)
    still = [lost for key, lost in missing.items() if key not in merged]
    about = {key: first.manifest[key] for key in ("source", "toolchain", "plan")}
    path = folder / pack_name(first.arch, flydsl)
    write_pack(path, encode_pack(*make_manifest(first.arch, flydsl, merged.values(), still, about)))
    if not prove or "shard" not in first.manifest:
        return path, None
    proof = run_proof(Subject((path,)), trusted=trusted)
    judge(proof, [job for job, _ in still])
    return path, proof


def _incomplete(packs: Sequence[Pack]) -> list[str]:
    """Why packs that are parts of a build do not make up all of it; packs that are none are no parts of any."""
    shards = [pack.manifest.get("shard") for pack in packs]
    parts = [shard for shard in shards if shard is not None]
    if not parts:
        return []
    if len(parts) < len(shards):
        return ["some of these are parts of a build and some are whole; merge the parts alone"]
    if any(pack.identities != packs[0].identities for pack in packs):
        return ["these are parts for several Pythons or FlyDSLs; merge the parts for each, and then the wheels"]
    of = parts[0]["of"]
    if any(shard["of"] != of or shard["assignment"] != parts[0]["assignment"] for shard in parts):
        return ["these are parts of builds that were split in different ways; give each part the same --shard-times"]
    absent = sorted(set(range(1, of + 1)) - {shard["index"] for shard in parts})
    return [f"part {index} of {of} is not among these" for index in absent]


def _called(paths: Sequence[Path], number: int) -> str:
    """A pack's file name, with its place where wheels have packs of one name."""
    name = paths[number].name
    return name if [path.name for path in paths].count(name) == 1 else f"{name} (number {number + 1})"


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    found = [key for key in _COMMON if key != "plan" and one[key] != other[key]]
    plans = one["plan"], other["plan"]
    found += [f"plan's {key}" for key in sorted({*plans[0], *plans[1]}) if plans[0].get(key) != plans[1].get(key)]
    return found + [f"flydsl {key}" for key in ("version", "generation") if one["flydsl"][key] != other["flydsl"][key]]


def _join(one: Compiled, other: Compiled, problems: list[str]) -> Compiled:
    """One kernel out of two packs: the same code under further names."""
    ours = sorted(one.entries, key=_content)
    theirs = sorted(other.entries, key=_content)
    same = [_content(e) for e in ours] == [_content(e) for e in theirs] and one.bitcode == other.bitcode
    entries = []
    for mine, their in zip(ours, theirs, strict=False):
        paths = dict(mine.paths)
        for abi, path in their.paths:
            same = same and paths.setdefault(abi, path) == path
        same = same and mine.artifact_key == their.artifact_key
        entries.append(replace(mine, paths=tuple(sorted(paths.items()))))
    if not same:
        problems.append(f"{one.job.label} is not the same kernel in all packs")
    return replace(one, entries=tuple(entries))


def _content(entry: CompiledEntry) -> tuple[str, str, str]:
    return entry.launcher, entry.entry.ir_text, repr(sorted(entry.entry.fields.items()))
