"""Writing a pack: compiled kernels of one arch and one FlyDSL become one file, the same bytes for the same kernels.

The layout is :mod:`packs.format`'s; what the manifest means is written down in docs/pack-format.md.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..discovery import SUFFIX
from ..errors import CheckError, InputError
from ..files import write_whole
from ..flydsl.cache import Entry, python_tag
from ..model.job import Job
from ..packs.format import MAGIC, Pack, zstd
from ..packs.manifest import (
    FORMAT,
    About,
    FlyDSL,
    Manifest,
    MissingKernel,
    PackageFacts,
    PackedEntry,
    PackedKernel,
    PayloadPlace,
    PlanFacts,
    SourceFacts,
    SourceFile,
    ToolchainFacts,
    to_json,
)
from ..packs.reader import ManifestError, read_source
from ..sources.base import Source, job_of
from .compiling import Compiled, CompiledEntry
from .sharding import Shard

# zstd: the strongest level below "ultra", and a window that spans the whole stream, since kernels of one family share
# most of their text (410 kernels: a sixth of what compressing them one by one gives).
LEVEL = 19
_QUICK = 3
_WINDOW_LOG = 27

NO_RULE = "none"
"""The dispatch rule of a pack of one kernel, which follows from no plan."""


def pack_name(arch: str, flydsl: FlyDSL, shard: Shard | None = None) -> str:
    """The file name of a pack: what it is for, readable; nothing depends on it."""
    tag = python_tag(flydsl.generation, flydsl.identities)
    part = f"-shard{shard}" if shard else ""
    return f"{arch}-flydsl{flydsl.version}{f'-{tag}' if tag else ''}{part}{SUFFIX}"


def make_manifest(
    arch: str,
    flydsl: FlyDSL,
    compiled: Iterable[Compiled],
    missing: Iterable[MissingKernel],
    about: About,
) -> tuple[Manifest, list[bytes]]:
    """The manifest of a pack and its payloads, both in an order that the kernels alone decide.

    :raises CheckError: two kernels claim one path in the cache with different contents.
    """
    ordered = sorted(compiled, key=lambda kernel: _order(kernel.job.name, kernel.job.shape.layer().values()))
    _check_names(ordered)
    payloads: dict[str, bytes] = {}
    places: list[PayloadPlace] = []
    index: dict[str, int] = {}
    files, file_sets = _file_sets(ordered)
    set_of = {tuple(files[place] for place in one): number for number, one in enumerate(file_sets)}
    kernels = []
    for kernel in ordered:
        entries = []
        for entry in sorted(kernel.entries, key=lambda entry: (entry.launcher, entry.names)):
            data = entry.entry.ir_text.encode("utf-8")
            digest = hashlib.sha256(data).hexdigest()
            if digest not in payloads:
                index[digest] = len(places)
                end = places[-1].offset + places[-1].size if places else 0
                places.append(PayloadPlace(end, len(data), digest))
                payloads[digest] = data
            entries.append(_packed_entry(entry, index[digest]))
        kernels.append(_packed_kernel(kernel, tuple(entries), set_of.get(tuple(sorted(kernel.files)))))
    manifest = Manifest(
        format=FORMAT,
        made_by=f"aiter-flydsl-prebuild {__version__}",
        arch=arch,
        flydsl=flydsl,
        **about._asdict(),
        missing=tuple(sorted(missing, key=lambda kernel: _order(kernel.name, kernel.layer))),
        kernels=tuple(kernels),
        payloads=tuple(places),
        files=files,
        file_sets=file_sets,
    )
    return manifest, list(payloads.values())


def _check_names(kernels: Sequence[Compiled]) -> None:
    """Refuse two entries of one name in FlyDSL's cache and different content.

    :raises CheckError: there are some; all are named.
    """
    claimed: dict[str, tuple[str, CompiledEntry]] = {}
    conflicts = []
    for kernel in kernels:
        for entry in kernel.entries:
            for name in entry.names:
                other, theirs = claimed.setdefault(name, (kernel.job.label, entry))
                if theirs.entry != entry.entry:
                    both = f"{other} and {kernel.job.label}"
                    conflicts.append(f"{both} have different code under one key of FlyDSL: {name}")
    if conflicts:
        raise CheckError("one of these would run in place of the other:\n" + "\n".join(conflicts))


def _file_sets(kernels: Sequence[Compiled]) -> tuple[tuple[SourceFile, ...], tuple[tuple[int, ...], ...]]:
    """The source files of all kernels, and the sets of them that there are: most kernels share theirs."""
    files = tuple(sorted({file for kernel in kernels for file in kernel.files}))
    place = {file: index for index, file in enumerate(files)}
    sets = {tuple(sorted(place[file] for file in kernel.files)) for kernel in kernels if kernel.files}
    return files, tuple(sorted(sets))


def write_pack(path: Path, data: bytes) -> None:
    """Write what :func:`encode_pack` gave; it appears under its name whole or not at all."""
    write_whole(str(path), data, mode=0o666)


def encode_pack(manifest: Manifest | dict[str, Any], payloads: Iterable[bytes], level: int = LEVEL) -> bytes:
    """A pack's bytes, the same for the same manifest, payloads and level."""
    raw = json.dumps(to_json(manifest), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    body = b"".join(payloads)
    packed_manifest, packed_body = compress(raw, level), compress(body, level)
    sizes = struct.pack("<4Q", len(packed_manifest), len(raw), len(packed_body), len(body))
    content = sizes + packed_manifest + packed_body
    return MAGIC + hashlib.sha256(content).digest() + content


def compress(data: bytes, level: int = LEVEL) -> bytes:
    """One zstd frame over ``data``."""
    module = zstd()
    parameter = module.CompressionParameter
    options = {parameter.compression_level: level, parameter.window_log: _WINDOW_LOG, parameter.checksum_flag: 1}
    if len(data) > 1 << 20:
        options[parameter.enable_long_distance_matching] = 1
    return bytes(module.compress(data, options=options))


def encode_kernel(compiled: Compiled, flydsl: FlyDSL, source: SourceFacts, toolchain: ToolchainFacts) -> bytes:
    """A pack of one kernel, quickly: for the store, and between machines."""
    tokens = [count for run in compiled.job.tokens for count in run] or [0]
    options = {name: tuple(values) for name, values in compiled.job.options.to_json().items()}
    plan = PlanFacts((min(tokens), max(tokens)), NO_RULE, (), (), (), (), (), options, ())
    about = About(source, toolchain, plan, seconds=compiled.seconds)
    return encode_pack(*make_manifest(compiled.job.arch, flydsl, [compiled], [], about), level=_QUICK)


def source_facts(source: Source, packages: Mapping[str, PackageFacts]) -> SourceFacts:
    """What the manifest says of a source, and of the packages that its kernels are bound to.

    :raises InputError: what the source says of itself cannot be written there.
    """
    try:
        return read_source({"name": source.name, **source.identity()})._replace(packages=packages)
    except ManifestError as error:
        raise InputError(f"the source {source.name} has no usable identity: {error}") from error


def missing_kernel(job: Job, reason: str) -> MissingKernel:
    """What the manifest says of a job that gave no kernel."""
    return MissingKernel(
        source=job.source, name=job.name, **job.shape.layer(), tokens=job.tokens, reason=reason, cu_num=job.cu_num
    )


def unpacked(pack: Pack) -> Iterator[Compiled]:
    """The kernels of a pack as their compiles gave them: what :func:`make_manifest` takes.

    :raises PackError: a payload is not what the manifest says.
    """
    texts = list(pack.payloads())
    for kernel in pack.kernels:
        entries = tuple(_entry(entry, texts) for entry in kernel.entries)
        # Packs of one kernel tell what it took to compile.
        seconds = pack.manifest.seconds or 0.0
        files = pack.manifest.files_of(kernel)
        yield Compiled(job_of(pack.manifest, kernel), entries, kernel.bitcode, seconds, files, kernel.extra)


def _entry(entry: PackedEntry, texts: list[str]) -> CompiledEntry:
    names = tuple(sorted(entry.paths.items()))
    return CompiledEntry(entry.artifact_key, names, Entry(texts[entry.payload], entry.fields), entry.code, entry.extra)


def _packed_entry(entry: CompiledEntry, payload: int) -> PackedEntry:
    paths = {} if entry.artifact_key else dict(entry.paths)
    return PackedEntry(entry.launcher, payload, entry.entry.fields, entry.code, entry.artifact_key, paths, entry.extra)


def _packed_kernel(kernel: Compiled, entries: tuple[PackedEntry, ...], files: int | None) -> PackedKernel:
    job = kernel.job
    return PackedKernel(
        source=job.source,
        name=job.name,
        **job.shape.layer(),
        tokens=job.tokens,
        bitcode=kernel.bitcode,
        entries=entries,
        cu_num=job.cu_num,
        files=files,
        extra=kernel.extra,
    )


def _order(name: str, layer: Iterable[Any]) -> tuple[Any, ...]:
    op, n, k, w_scale_block, q_dtype_w = layer
    return (op, n or 0, k or 0, w_scale_block or "", q_dtype_w or "", name)
