"""What is in a pack, read without FlyDSL and without running anything of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..pack import Pack
from .codeobject import embedded_code_objects


def summarize(path: Path, kernel: str | None = None) -> dict[str, Any]:
    """A pack's manifest without its payload table, kernels filtered by name."""
    pack = Pack(str(path))
    manifest = {key: value for key, value in pack.manifest.items() if key != "payloads"}
    manifest["kernels"] = [k for k in manifest["kernels"] if kernel in (None, k["name"])]
    sizes = [place["size"] for place in pack.manifest["payloads"]]
    return {
        "file": path.name,
        "pack_id": pack.header.pack_id,
        "bytes": path.stat().st_size,
        "payloads": len(sizes),
        "payload_bytes": sum(sizes),
        **manifest,
    }


def extract(path: Path, kernel: str | None, folder: Path | None) -> list[Path]:
    """Write the MLIR (``.mlir``) and code objects (``.hsaco``) of a pack's kernels; nothing without a folder.

    :raises InputError: the folder cannot be written to.
    """
    if folder is None:
        return []
    pack = Pack(str(path))
    texts = list(pack.payloads())
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for packed in pack.kernels:
            if kernel not in (None, packed.name):
                continue
            for number, entry in enumerate(packed.entries):
                facts = packed.facts
                layer = [packed.name, f"n{facts['n']}", f"k{facts['k']}", facts["op"], facts["w_scale_block"]]
                stem = "-".join(str(part) for part in [*layer, number or None] if part is not None)
                # A kernel's name comes from the pack: it must not lead out of the folder.
                stem = re.sub(r"[^A-Za-z0-9_.-]", "_", stem)
                text = texts[entry.payload]
                written.append(folder / f"{stem}.mlir")
                written[-1].write_text(text, encoding="utf-8")
                for index, (_, image) in enumerate(embedded_code_objects(text)):
                    written.append(folder / (f"{stem}.hsaco" if index == 0 else f"{stem}.{index}.hsaco"))
                    written[-1].write_bytes(image)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
    return written
