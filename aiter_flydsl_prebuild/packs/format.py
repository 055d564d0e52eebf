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
import stat
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..errors import PrebuildError
from ..flydsl.cache import Entry

if TYPE_CHECKING:
    from .manifest import PackedEntry, PackedKernel

MAGIC = b"FKPACK01"

_HEADER = struct.Struct("<8s32s4Q")
# A thousand kernels have some 2 MB of manifest and 40 MB of payloads. What JSON unpacks to may need twenty times the
# memory of its text, hence the lower limit there.
_MANIFEST_LIMIT = 32 << 20
_PAYLOAD_LIMIT = 1 << 30


class PackError(PrebuildError):
    """A pack cannot be used; the message names the file and says why."""


class Header(NamedTuple):
    """The first bytes of a pack: enough to know which pack it is."""

    pack_id: str
    manifest_packed: int
    manifest_size: int
    payload_packed: int
    payload_size: int


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
        claimed = header.manifest_size + header.payload_size
        raise PackError(f"{path}: the header claims {claimed} bytes of content, more than the limit")
    if size != _HEADER.size + header.manifest_packed + header.payload_packed:
        raise PackError(f"{path}: truncated or damaged: {size} bytes, not those its header states")
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
    """A pack that was read and checked whole.

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
        # A second start reads headers alone, and needs none of this.
        from .reader import ManifestError, read_manifest

        try:
            self.manifest = read_manifest(json.loads(raw.decode("utf-8")))
            if sum(place.size for place in self.manifest.payloads) != header.payload_size:
                raise ManifestError("the payloads do not fill the stream")
        except ManifestError as error:
            raise PackError(f"{path}: broken manifest: {error}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise PackError(f"{path}: broken manifest: not JSON: {type(error).__name__}: {error}") from error
        self.arch = self.manifest.arch
        self.version, self.generation, self.identities, _ = self.manifest.flydsl
        self.kernels = self.manifest.kernels
        self.missing = self.manifest.missing
        self.files = self.manifest.files

    def payloads(self) -> Iterator[str]:
        """The text of every payload, in the manifest's order, each checked against its sha256 as it comes.

        :raises PackError: a payload's bytes are not those that its manifest states. The file as a whole was checked
            before, so this takes a pack that was made wrong.
        """
        for index, payload in enumerate(self.raw_payloads()):
            if hashlib.sha256(payload).hexdigest() != self.manifest.payloads[index].sha256:
                raise PackError(f"{self.path}: payload {index} does not match its sha256")
            yield payload.decode("utf-8")

    def raw_payloads(self) -> Iterator[bytes]:
        """:meth:`payloads` in UTF-8, which the sha256 of the whole file answers for: a third faster.

        Unpacked piece by piece: memory that is touched for the first time costs more than unpacking.

        :raises PackError: a payload is not text, or the stream is damaged; what came before is to be taken back.
        """
        sizes = [place.size for place in self.manifest.payloads]
        for index, payload in enumerate(_pieces(self.path, self._packed, sizes)):
            try:
                if not payload.isascii():
                    payload.decode("utf-8")
            except UnicodeDecodeError as error:
                raise PackError(f"{self.path}: payload {index} is not text") from error
            yield payload

    def payload_size(self, entry: PackedEntry) -> int:
        """How many bytes an entry's text has, without unpacking it."""
        return self.manifest.payloads[entry.payload].size

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
