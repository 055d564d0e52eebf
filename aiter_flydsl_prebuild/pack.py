"""The pack: one file with the kernels of one arch, a manifest in front, all payloads in one zstd stream behind.

Layout (docs/pack-format.md), integers little-endian::

    8 bytes    magic "FKPACK01"
    32 bytes   sha256 of all that follows: the pack's id
    4 x u64    manifest: compressed size, size; payloads: compressed size, size
    …          the manifest, JSON in UTF-8, one zstd frame
    …          the payloads end to end, one zstd frame

A payload is the text of a compiled MLIR module with its code object embedded. Nothing in a pack is a pickle, and
reading one never runs code of it. The reader refuses, whole and with one line, whatever is damaged, oversize, or names
a file that could land outside a cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from .errors import PrebuildError
from .flydsl_cache import ARTIFACT_KEY, CALL_KEY, Entry

MAGIC = b"FKPACK01"
FORMAT = 1

_HEADER = struct.Struct("<8s32s4Q")
# A thousand kernels have some 2 MB of manifest and 40 MB of payloads. What JSON unpacks to may need twenty times the
# memory of its text, hence the lower limit there.
_MANIFEST_LIMIT = 32 << 20
_PAYLOAD_LIMIT = 1 << 30
_FIELDS_DEPTH = 8
_PATH_LIMIT = 400

_LAUNCHER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_CALL_PATH = re.compile(r"[A-Za-z0-9_]{1,240}/[A-Za-z0-9_.-]{1,200}\.pkl")
_HEX = re.compile(r"[0-9a-f]{64}")
# What is printed from a manifest: a line break or a control character in it would forge lines of a log.
_WORD = re.compile(r"[A-Za-z0-9_.:+!-]{1,80}")


class PackError(PrebuildError):
    """A pack cannot be used; the message names the file and says why."""


class Header(NamedTuple):
    """The first bytes of a pack: enough to know which pack it is."""

    pack_id: str
    manifest_packed: int
    manifest_size: int
    payload_packed: int
    payload_size: int


class PackedEntry(NamedTuple):
    """One cache entry of a kernel.

    ``artifact_key`` names it under FlyDSL 0.5; ``paths`` maps an ABI to its path below the cache root for 0.3.1 to
    0.4.2. ``payload`` indexes the manifest's payloads; ``fields`` is the rest of the artifact's state.
    """

    launcher: str
    artifact_key: str | None
    paths: dict[str, str]
    payload: int
    fields: dict[str, Any]


class PackedKernel(NamedTuple):
    """One kernel: ``facts`` are its part of the manifest, ``bitcode`` is what it linked or None.

    ``files`` are the source files that it was made from, as indices into :attr:`Pack.files`; None in a pack that does
    not say.
    """

    name: str
    facts: dict[str, Any]
    bitcode: str | None
    entries: tuple[PackedEntry, ...]
    files: tuple[int, ...] | None


def zstd() -> Any:
    """The standard library's zstd, or its backport before Python 3.14."""
    if sys.version_info >= (3, 14):
        from compression import zstd as module
    else:
        from backports import zstd as module
    return module


def read_header(path: str) -> Header:
    """Read and check a pack's first bytes; costs one small read.

    :raises PackError: not a pack, of another format, or cut short.
    """
    try:
        with _open(path) as file:
            return _parse_header(path, file.read(_HEADER.size), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open(path: str) -> BinaryIO:
    """A regular file alone: reading a device never ends, and opening a pipe waits for its writer unless told not to."""
    file: BinaryIO = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise PackError(f"{path}: not a regular file")
    return file


def _parse_header(path: str, data: bytes, size: int) -> Header:
    if len(data) < _HEADER.size or not data.startswith(MAGIC[:6]):
        raise PackError(f"{path}: not a pack of FlyDSL kernels")
    magic, digest, *sizes = _HEADER.unpack(data[: _HEADER.size])
    if magic != MAGIC:
        raise PackError(f"{path}: pack format {magic[6:]!r} is not known to this version; update aiter-flydsl-prebuild")
    header = Header(digest.hex(), *sizes)
    manifest, payloads = header[1:3], header[3:]
    if max(manifest) > _MANIFEST_LIMIT or max(payloads) > _PAYLOAD_LIMIT:
        raise PackError(f"{path}: claims {header.manifest_size + header.payload_size} bytes of content; refused")
    if size != _HEADER.size + header.manifest_packed + header.payload_packed:
        raise PackError(f"{path}: cut short or damaged: {size} bytes, not those its header states")
    return header


def _read(path: str) -> tuple[Header, bytes]:
    try:
        with _open(path) as file:
            data = file.read(_HEADER.size)
            header = _parse_header(path, data, os.fstat(file.fileno()).st_size)
            # No further than its header says, whatever has become of the file meanwhile.
            return header, data + file.read(header.manifest_packed + header.payload_packed)
    except (OSError, MemoryError) as error:
        raise PackError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'no memory'}") from error


class Pack:
    """A pack that was read and checked whole: ``manifest`` as written, ``kernels`` by position.

    Opening costs reading the file, one sha256 over it and unpacking the manifest; payloads are unpacked when asked for.
    ``data`` is the file's content where it is in memory already; ``path`` is then a name for messages.
    ``files`` are the source files of its kernels, path and sha256; ``packages`` maps each package they are in to the
    distribution's name (None where it was not known) and version.
    """

    def __init__(self, path: str, data: bytes | None = None) -> None:
        self.path = path
        if data is None:
            header, data = _read(path)
        else:
            header = _parse_header(path, data[: _HEADER.size], len(data))
        if hashlib.sha256(data[40:]).hexdigest() != header.pack_id:
            raise PackError(f"{path}: damaged: its bytes do not match its sha256")
        self.header = header
        self.content = data
        start = _HEADER.size + header.manifest_packed
        raw = b"".join(_pieces(path, data[_HEADER.size : start], [header.manifest_size]))
        self._packed = memoryview(data)[start:]
        try:
            manifest = json.loads(raw.decode("utf-8"))
            self.manifest: dict[str, Any] = manifest
            self._payloads = _check_payloads(manifest["payloads"], header.payload_size)
            flydsl = manifest["flydsl"]
            self.arch = _word(manifest["arch"])
            self.version = _word(flydsl["version"])
            self.generation = _word(flydsl["generation"])
            self.identities: dict[str, list[str]] = {
                _word(abi): [_word(i) for i in identities] for abi, identities in flydsl["identities"].items()
            }
            if manifest["format"] != FORMAT:
                raise ValueError(f"manifest format {manifest['format']!r:.80}")
            if self.generation not in (ARTIFACT_KEY, CALL_KEY):
                raise ValueError(f"cache generation {self.generation} is not known")
            if not isinstance(manifest["source"], dict):
                raise ValueError("no source")
            self.files = _check_files(manifest.get("files", []))
            sets = _check_file_sets(manifest.get("file_sets", []), len(self.files))
            self.packages = _check_packages(manifest["source"].get("packages", {}))
            self.kernels = tuple(_check_kernel(kernel, len(self._payloads), sets) for kernel in manifest["kernels"])
            _check_paths(self.kernels)
            if (shard := manifest.get("shard")) and not all(type(shard[key]) is int for key in ("index", "of")):
                raise ValueError("it says that it is a part, and not which")
            self.missing: list[dict[str, Any]] = [_check_missing(kernel) for kernel in manifest["missing"]]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
            raise PackError(f"{path}: broken manifest: {type(error).__name__}: {error}") from error

    def payloads(self) -> Iterator[str]:
        """The text of every payload, in the manifest's order, each checked against its sha256 as it comes.

        :raises PackError: a payload's bytes are not those that its manifest states. The file as a whole was checked
            before, so this takes a pack that was made wrong.
        """
        for index, payload in enumerate(self.raw_payloads()):
            if hashlib.sha256(payload).hexdigest() != self._payloads[index][2]:
                raise PackError(f"{self.path}: payload {index} does not match its sha256")
            yield payload.decode("utf-8")

    def raw_payloads(self) -> Iterator[bytes]:
        """:meth:`payloads` in UTF-8, which the sha256 of the whole file answers for: a third faster.

        Unpacked piece by piece: memory that is touched for the first time costs more than unpacking.

        :raises PackError: a payload is not text, or the stream is damaged; what came before is to be taken back.
        """
        sizes = [size for _, size, _ in self._payloads]
        for index, payload in enumerate(_pieces(self.path, self._packed, sizes)):
            try:
                if not payload.isascii():
                    payload.decode("utf-8")
            except UnicodeDecodeError as error:
                raise PackError(f"{self.path}: payload {index} is not text") from error
            yield payload

    def payload_size(self, entry: PackedEntry) -> int:
        """How many bytes an entry's text has, without unpacking it."""
        return self._payloads[entry.payload][1]

    def entries(self, kernel: PackedKernel, texts: list[str]) -> list[Entry]:
        """The cache entries of a kernel, given the texts of :meth:`payloads`."""
        return [Entry(texts[e.payload], e.fields) for e in kernel.entries]


def _pieces(path: str, data: bytes | memoryview, sizes: list[int]) -> Iterator[bytes]:
    """What a zstd frame unpacks to, in pieces of these sizes; never more is unpacked, whatever the frame would grow to.

    :raises PackError: it is damaged, or of another size.
    """
    try:
        module = zstd()
    except (ImportError, OSError) as error:
        raise PackError(f"{path}: zstd cannot be loaded: {error}; pip install backports.zstd") from error
    decompressor = module.ZstdDecompressor()
    try:
        # One byte more is enough to know that there is more.
        for position, size in enumerate([*sizes, 1]):
            piece = b""
            while len(piece) < size and not decompressor.eof:
                more = bytes(decompressor.decompress(data, size - len(piece)))
                data = b""
                piece = piece + more if piece else more
                if not more:
                    break
            if len(piece) != (size if position < len(sizes) else 0):
                raise PackError(f"{path}: damaged: its content is not of the size that its header states")
            if position < len(sizes):
                yield piece
    except (module.ZstdError, MemoryError) as error:
        raise PackError(f"{path}: damaged: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise PackError(f"{path}: damaged: its content is not of the size that its header states")


def _word(value: Any) -> str:
    if not (isinstance(value, str) and _WORD.fullmatch(value)):
        raise ValueError(f"{value!r:.80} is not a plain word")
    return value


def _shallow(value: Any, depth: int = _FIELDS_DEPTH) -> bool:
    """Whether a value is nested so little that every reader and writer of it can follow."""
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (depth > 0 and all(_shallow(item, depth - 1) for item in value))


def _check_payloads(payloads: list[dict[str, Any]], total: int) -> list[tuple[int, int, str]]:
    checked: list[tuple[int, int, str]] = []
    end = 0
    for payload in payloads:
        offset, size, digest = payload["offset"], payload["size"], payload["sha256"]
        if not (type(offset) is int and type(size) is int and size > 0 and offset == end):
            raise ValueError(f"payload {len(checked)} has a bad place")
        if not _HEX.fullmatch(digest):
            raise ValueError(f"payload {len(checked)} has a bad sha256")
        end = offset + size
        checked.append((offset, size, digest))
    if end != total:
        raise ValueError("the payloads do not fill the stream")
    return checked


def _check_files(files: list[Any]) -> tuple[tuple[str, str], ...]:
    for path, digest in files:
        # Below an installed package, or one of its files alone; what is printed must not forge lines of a log.
        plain = path.isprintable() and not {"", ".", ".."} & set(path.split("/"))
        if not plain or len(path) > _PATH_LIMIT or not _HEX.fullmatch(digest):
            raise ValueError(f"source file {path!r:.80} is not well-formed")
    return tuple((path, digest) for path, digest in files)


def _check_file_sets(sets: list[list[int]], files: int) -> list[tuple[int, ...]]:
    if not all(type(index) is int and 0 <= index < files for one in sets for index in one):
        raise ValueError("a set of source files is not well-formed")
    return [tuple(one) for one in sets]


def _check_packages(packages: dict[str, dict[str, Any]]) -> dict[str, tuple[str | None, str]]:
    checked = {}
    for name, facts in packages.items():
        distribution = facts.get("distribution")
        checked[_word(name)] = None if distribution is None else _word(distribution), _word(facts["version"])
    return checked


def _check_kernel(kernel: dict[str, Any], payloads: int, sets: list[tuple[int, ...]]) -> PackedKernel:
    name, bitcode = kernel["name"], kernel["bitcode"]
    if not isinstance(name, str) or not (bitcode is None or _HEX.fullmatch(bitcode)):
        raise ValueError(f"kernel {name!r:.80} is not well-formed")
    entries = []
    for entry in kernel["entries"]:
        packed = PackedEntry(
            entry["launcher"],
            entry.get("artifact_key"),
            dict(entry.get("paths", {})),
            entry["payload"],
            entry["fields"],
        )
        if (
            not _LAUNCHER.fullmatch(packed.launcher)
            or not (packed.artifact_key is None or _HEX.fullmatch(packed.artifact_key))
            or not all(_CALL_PATH.fullmatch(path) and ".." not in path for path in packed.paths.values())
            or (packed.artifact_key is None) == (not packed.paths)
            or type(packed.payload) is not int
            or not 0 <= packed.payload < payloads
            or not isinstance(packed.fields, dict)
            or not _shallow(packed.fields)
        ):
            raise ValueError(f"an entry of kernel {name!r:.80} is not well-formed")
        entries.append(packed)
    if not entries:
        raise ValueError(f"kernel {name!r:.80} has no entries")
    which = kernel.get("files")
    if which is not None and not (type(which) is int and 0 <= which < len(sets)):
        raise ValueError(f"kernel {name!r:.80} names source files that are not listed")
    return PackedKernel(name, kernel, bitcode, tuple(entries), None if which is None else sets[which])


def _check_missing(kernel: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(kernel["name"], str):
        raise ValueError("a missing kernel is not well-formed")
    return kernel


def _check_paths(kernels: tuple[PackedKernel, ...]) -> None:
    """Two entries may share a name in the cache only where they are the same entry."""
    seen: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
    for kernel in kernels:
        for entry in kernel.entries:
            places = [("", f"{entry.launcher}/{entry.artifact_key}")] if entry.artifact_key else entry.paths.items()
            for place in places:
                content = (entry.payload, entry.fields)
                if seen.setdefault(place, content) != content:
                    raise ValueError(f"kernel {kernel.name!r:.80} and another claim one name: {place[1]}")
