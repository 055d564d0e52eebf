"""The bill of materials of a pack: CycloneDX 1.6, for the folder ``sboms`` of a wheel's metadata (PEP 770).

Says what the kernels were made from, by version, digest and licence: their source, the tuned tables, FlyDSL, the
linker, and the device bitcode where one was linked. No serial number, and no time but SOURCE_DATE_EPOCH's: the same
pack has the same bill.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
from typing import Any

from ... import __version__
from ...packs.format import Pack
from ...packs.manifest import SourceFacts, TableFacts
from ..epoch import source_date_epoch

SUFFIX = ".cdx.json"


def bill_of_materials(pack: Pack, file_name: str) -> dict[str, Any]:
    """The bill of a pack that lies in a wheel under ``file_name``, as JSON holds it."""
    manifest = pack.manifest
    digest = hashlib.sha256(pack.content).hexdigest()
    components = [_source(manifest.source), _flydsl(pack), _linker(manifest.toolchain.linker)]
    components += [_bitcode(digest) for digest in sorted({k.bitcode for k in pack.kernels if k.bitcode})]
    components += [_table(table) for table in manifest.plan.tables]
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "aiter-flydsl-prebuild", "version": __version__}]},
        "component": {
            "type": "file",
            "bom-ref": "pack",
            "name": file_name,
            "description": f"{len(pack.kernels)} FlyDSL kernels for {pack.arch}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        },
    }
    if (epoch := source_date_epoch()) is not None:
        when = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
        metadata["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": [{"ref": "pack", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _source(source: SourceFacts) -> dict[str, Any]:
    properties = [{"name": "aiter-flydsl-prebuild:source-digest", "value": source.digest}]
    if source.commit:
        properties.append({"name": "aiter-flydsl-prebuild:commit", "value": source.commit})
    return {
        "type": "library",
        "bom-ref": "source",
        "name": source.name,
        "version": source.version or "",
        "description": "the source of the kernels",
        **_licensed(source.license),
        "properties": properties,
    }


def _flydsl(pack: Pack) -> dict[str, Any]:
    try:
        about = importlib.metadata.metadata("flydsl")
        licence = next((about[name] for name in ("License-Expression", "License") if name in about), None)
    except importlib.metadata.PackageNotFoundError:
        licence = None
    identities = [
        {"name": f"aiter-flydsl-prebuild:record-{abi}", "value": identity}
        for abi, known in sorted(pack.identities.items())
        for identity in known
    ]
    return {
        "type": "application",
        "bom-ref": "flydsl",
        "name": "flydsl",
        "version": pack.version,
        "description": "the compiler",
        "purl": f"pkg:pypi/flydsl@{pack.version}",
        **_licensed(licence),
        "properties": identities,
    }


def _linker(version: str) -> dict[str, Any]:
    return {"type": "application", "bom-ref": "linker", "name": "lld", "version": version, "description": "the linker"}


def _bitcode(digest: str) -> dict[str, Any]:
    name = {"type": "library", "bom-ref": f"bitcode-{digest[:16]}", "name": "ROCm device bitcode"}
    # FlyDSL's digest over all files, which is no file's own hash.
    return {**name, "properties": [{"name": "aiter-flydsl-prebuild:bitcode-digest", "value": digest}]}


def _table(table: TableFacts) -> dict[str, Any]:
    return {
        "type": "data",
        "bom-ref": f"table-{table.file}-{table.sha256[:16]}",
        "name": table.file,
        "description": "a tuned table",
        "hashes": [{"alg": "SHA-256", "content": table.sha256}],
    }


def _licensed(licence: str | None) -> dict[str, Any]:
    return {"licenses": [{"license": {"name": licence}}]} if licence else {}
