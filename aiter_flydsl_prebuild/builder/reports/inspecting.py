"""What is in a pack, read without FlyDSL and without running anything of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...packs.codeobject import embedded_code_objects
from ...packs.format import Pack
from ...packs.manifest import Manifest, to_json

_LONGEST_STEM = 180


@dataclass(frozen=True)
class Summary:
    """A pack: its manifest, with the kernels that were asked for, and its bytes.

    ``shared`` has, for each payload of several of the pack's kernels, their labels.
    """

    file: str
    pack_id: str
    bytes: int
    manifest: Manifest
    shared: tuple[tuple[str, ...], ...]

    @property
    def payload_bytes(self) -> int:
        """The size of all payloads, unpacked."""
        return sum(place.size for place in self.manifest.payloads)

    @cached_property
    def sharing(self) -> dict[str, int]:
        """By label, how many kernels have a payload of that one, itself included; those alone that share one."""
        found: dict[str, int] = {}
        for labels in self.shared:
            found.update({label: max(len(labels), found.get(label, 0)) for label in labels})
        return found

    def to_json(self) -> dict[str, Any]:
        """As ``inspect --json`` prints it: the manifest without its payload table, and what is counted."""
        described = to_json(self.manifest)
        payloads = described.pop("payloads")
        return {
            "file": self.file,
            "pack_id": self.pack_id,
            "bytes": self.bytes,
            "payloads": len(payloads),
            "payload_bytes": self.payload_bytes,
            "shared_payloads": to_json(self.shared),
            **described,
        }


def summarize(path: Path, kernel: str | None = None) -> Summary:
    """What is in a pack, kernels filtered by name."""
    pack = Pack(str(path))
    chosen = tuple(one for one in pack.kernels if kernel in (None, one.name))
    shared = tuple(tuple(one.label for one in kernels) for kernels in pack.manifest.users() if len(kernels) > 1)
    return Summary(path.name, pack.header.pack_id, len(pack.content), pack.manifest._replace(kernels=chosen), shared)


def extract(packs: Sequence[Path], kernel: str | None, folder: Path) -> list[Path]:
    """Write the MLIR (``.mlir``) and code objects (``.hsaco``) of the kernels of packs; returns the files.

    Of several packs, each gets a folder of its own. No two kernels get the same file, and no file of other content is
    overwritten.

    :raises InputError: the folder cannot be written to, or holds other files of these names.
    """
    written: list[Path] = []
    folders = _Names()
    try:
        for path in packs:
            pack = Pack(str(path))
            target = folder / folders.new([path.stem]) if len(packs) > 1 else folder
            target.mkdir(parents=True, exist_ok=True)
            for name, content in _contents(pack, kernel):
                _write(target / name, content)
                written.append(target / name)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot be written to: {error.strerror or error}") from error
    return written


def _contents(pack: Pack, kernel: str | None) -> Iterator[tuple[str, bytes]]:
    names = _Names()
    texts = list(pack.payloads())
    for packed in pack.kernels:
        if kernel not in (None, packed.name):
            continue
        _, n, k, scales, weights = packed.layer
        parts = [packed.name, f"n{n}", f"k{k}", scales, weights, packed.op]
        for entry in packed.entries:
            stem = names.new(part for part in parts if part is not None)
            text = texts[entry.payload]
            yield f"{stem}.mlir", text.encode()
            for index, (_, image) in enumerate(embedded_code_objects(text)):
                yield (f"{stem}~code{index + 1}.hsaco" if index else f"{stem}.hsaco"), image


class _Names:
    """Names of files, each given once: names that come from a pack lead nowhere else, and may be equal."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def new(self, parts: Iterable[str]) -> str:
        """A name that reads like these parts. ``~`` is in none of them: what follows it cannot make two names equal."""
        stem = re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(parts))[:_LONGEST_STEM].strip(".") or "_"
        # Some file systems take two names for one that differ in case alone.
        self._given[stem.lower()] = number = self._given.get(stem.lower(), 0) + 1
        return stem if number == 1 else f"{stem}~{number}"


def _write(path: Path, content: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        if path.read_bytes() != content:
            raise InputError(f"{path}: is there already, with other content; name an empty folder") from None
