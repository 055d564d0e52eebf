"""Writing a pack: compiled kernels of one arch and one FlyDSL become one file, the same bytes for the same kernels.

The layout is :mod:`aiter_flydsl_prebuild.pack`'s; what the manifest means is written down in docs/pack-format.md.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..discovery import SUFFIX
from ..errors import CheckError
from ..flydsl_cache import Entry, python_tag
from ..pack import FORMAT, MAGIC, Pack, PackError, zstd
from ..sources.base import Job, job_of
from .codeobject import CodeFacts
from .compiling import Compiled, CompiledEntry, FlyDSL
from .sharding import Shard

# zstd: the strongest level below "ultra", and a window that spans the whole stream, since kernels of one family share
# most of their text (410 kernels: a sixth of what compressing them one by one gives).
LEVEL = 19
_QUICK = 3
_WINDOW_LOG = 27


def pack_name(arch: str, flydsl: FlyDSL, shard: Shard | None = None) -> str:
    """The file name of a pack: what it is for, readable; nothing depends on it."""
    tag = python_tag(flydsl.generation, flydsl.identities)
    part = f"-shard{shard}" if shard else ""
    return f"{arch}-flydsl{flydsl.version}{f'-{tag}' if tag else ''}{part}{SUFFIX}"


def make_manifest(
    arch: str,
    flydsl: FlyDSL,
    compiled: Iterable[Compiled],
    missing: Sequence[tuple[Job, str]],
    about: dict[str, Any],
) -> tuple[dict[str, Any], list[bytes]]:
    """The manifest of a pack and its payloads, both in an order that the kernels alone decide.

    :param missing: jobs that gave no kernel, each with the reason.
    :param about: what describes the whole pack (source, toolchain, plan, …); see docs/pack-format.md.
    :raises CheckError: two kernels claim one path in the cache with different contents.
    """
    payloads: dict[str, bytes] = {}
    kernels: list[dict[str, Any]] = []
    claimed: dict[str, tuple[str, str]] = {}
    conflicts: list[str] = []
    bound: list[tuple[tuple[str, str], ...]] = []
    for kernel in sorted(compiled, key=lambda c: _order(c.job)):
        entries = []
        for entry in sorted(kernel.entries, key=lambda e: (e.launcher, e.names)):
            data = entry.entry.ir_text.encode("utf-8")
            digest = hashlib.sha256(data).hexdigest()
            payloads.setdefault(digest, data)
            content = digest + json.dumps(entry.entry.fields, sort_keys=True)
            for name in entry.names:
                other, theirs = claimed.setdefault(name, (kernel.job.label, content))
                if theirs != content:
                    conflicts.append(
                        f"{other} and {kernel.job.label} have different code under one key of FlyDSL: {name}"
                    )
            entries.append((entry, digest))
        kernels.append(_kernel_json(kernel, entries))
        bound.append(kernel.files)
    if conflicts:
        raise CheckError("one of these would run in place of the other:\n" + "\n".join(conflicts))

    places: list[dict[str, Any]] = []
    index: dict[str, int] = {}
    offset = 0
    for digest, data in payloads.items():
        index[digest] = len(places)
        places.append({"offset": offset, "size": len(data), "sha256": digest})
        offset += len(data)
    for described in kernels:
        for described_entry in described["entries"]:
            described_entry["payload"] = index[described_entry["payload"]]
    manifest = {
        "format": FORMAT,
        "made_by": f"aiter-flydsl-prebuild {__version__}",
        "arch": arch,
        "flydsl": flydsl.to_json(),
        **about,
        "missing": [
            {**_job_json(job), "reason": reason} for job, reason in sorted(missing, key=lambda pair: _order(pair[0]))
        ],
        **_bind(kernels, bound),
        "kernels": kernels,
        "payloads": places,
    }
    return manifest, list(payloads.values())


def _bind(kernels: list[dict[str, Any]], bound: list[tuple[tuple[str, str], ...]]) -> dict[str, Any]:
    """Have each kernel name its source files: a set of them, by its place in a list; most kernels share theirs."""
    files = sorted({file for some in bound for file in some})
    place = {file: index for index, file in enumerate(files)}
    sets = sorted({tuple(sorted({place[file] for file in some})) for some in bound if some})
    for kernel, some in zip(kernels, bound, strict=True):
        if some:
            kernel["files"] = sets.index(tuple(sorted({place[file] for file in some})))
    return {"files": [list(file) for file in files], "file_sets": [list(one) for one in sets]}


def write_pack(path: Path, data: bytes) -> None:
    """Write what :func:`encode_pack` gave; it appears under its name whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def encode_pack(manifest: dict[str, Any], payloads: Iterable[bytes], level: int = LEVEL) -> bytes:
    """A pack's bytes, the same for the same manifest, payloads and level."""
    raw = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
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


def encode_kernel(compiled: Compiled, flydsl: FlyDSL, about: dict[str, Any]) -> bytes:
    """A pack of one kernel, quickly: for the store, and between machines. ``about`` is as for :func:`make_manifest`."""
    options = compiled.job.options.to_json()
    described = {"source": {"name": compiled.job.source}, "plan": {"options": options}, "seconds": compiled.seconds}
    return encode_pack(*make_manifest(compiled.job.arch, flydsl, [compiled], [], {**described, **about}), level=_QUICK)


def unpacked(pack: Pack) -> Iterator[Compiled]:
    """The kernels of a pack as their compiles gave them: what :func:`make_manifest` takes.

    :raises PackError: a payload is not what the manifest says, or the manifest is not of its form.
    """
    texts = list(pack.payloads())
    try:
        # Packs of one kernel tell what it took to compile.
        seconds = float(pack.manifest.get("seconds", 0.0))
        for kernel in pack.kernels:
            entries = tuple(_entry(facts, texts) for facts in kernel.facts["entries"])
            files = tuple(pack.files[index] for index in kernel.files or ())
            yield Compiled(job_of(pack, kernel.facts), entries, kernel.bitcode, seconds, files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackError(f"{pack.path}: broken manifest: {type(error).__name__}: {error}") from error


def _entry(facts: dict[str, Any], texts: list[str]) -> CompiledEntry:
    return CompiledEntry(
        facts.get("artifact_key"),
        tuple(sorted(facts.get("paths", {}).items())),
        Entry(texts[facts["payload"]], facts["fields"]),
        tuple(CodeFacts(**code) for code in facts["code"]),
    )


def _order(job: Job) -> tuple[Any, ...]:
    shape = job.shape
    return (shape.op, shape.n, shape.k, shape.w_scale_block or "", shape.q_dtype_w or "", job.name)


def _job_json(job: Job) -> dict[str, Any]:
    tokens = [list(run) for run in job.tokens]
    units = {} if job.cu_num is None else {"cu_num": list(job.cu_num)}
    return {"source": job.source, "name": job.name, **job.shape.layer(), "tokens": tokens, **units}


def _kernel_json(kernel: Compiled, entries: list[tuple[CompiledEntry, str]]) -> dict[str, Any]:
    described = []
    for entry, payload in entries:
        key: dict[str, Any]
        key = {"artifact_key": entry.artifact_key} if entry.artifact_key else {"paths": dict(entry.paths)}
        described.append(
            {
                "launcher": entry.launcher,
                **key,
                "payload": payload,
                "fields": entry.entry.fields,
                "code": [facts.to_json() for facts in entry.code],
            }
        )
    return {**_job_json(kernel.job), "bitcode": kernel.bitcode, "entries": described}
