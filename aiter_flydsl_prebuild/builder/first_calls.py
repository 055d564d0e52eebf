"""What a pack carries so that first calls neither trace nor build an engine: a look-up table and a library.

Packs of one kernel (the store's, and those between machines) and parts of a build carry what these are made of: the
recorded calls, and the objects of host functions. A whole pack carries the table and the library.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import PrebuildError
from ..flydsl.launchers import MACHINE, RUNTIME_LIBRARY
from ..manifest import LaunchersFacts, LookupFacts, MaterialsFacts
from ..pack import Pack
from .call_keys import RecordedCall, make_table
from .compiling import Compiled
from .launcher_library import Library, link, object_name


@dataclass(frozen=True)
class Addition:
    """A payload of a pack that is no kernel. ``describe`` gives what the manifest says of it under ``name``, from its
    own number and from those of the kernels' payloads by their sha256."""

    name: str
    payload: bytes
    describe: Callable[[int, Mapping[str, int]], Any]


def materials(compiled: Iterable[Compiled]) -> list[Addition]:
    """What the table and library of these kernels are made of, as one payload; nothing where there is nothing."""
    kernels = list(compiled)
    objects = {
        text_digest(entry.entry.ir_text): base64.b85encode(entry.host).decode()
        for kernel in kernels
        for entry in kernel.entries
        if entry.host is not None
    }
    calls = {kernel.job.label: [asdict(call) for call in kernel.calls] for kernel in kernels if kernel.calls}
    if not objects and not calls:
        return []
    text = json.dumps({"objects": objects, "calls": calls, "abi": sys.implementation.cache_tag}, sort_keys=True)
    return [Addition("materials", text.encode(), lambda own, _: MaterialsFacts(own))]


def with_materials(pack: Pack, compiled: Iterable[Compiled], texts: Sequence[str]) -> list[Compiled]:
    """Kernels out of a pack with what it carries for them.

    :raises ValueError, KeyError, TypeError: the pack's payload is not of its form.
    """
    described = pack.manifest.materials
    if described is None:
        return list(compiled)
    found = json.loads(texts[described.payload])
    objects = {digest: base64.b85decode(text) for digest, text in found["objects"].items()}
    # Code is compared as one interpreter compiles it.
    calls = found["calls"] if found["abi"] == sys.implementation.cache_tag else {}
    return [
        replace(
            kernel,
            calls=tuple(RecordedCall(**call) for call in calls.get(kernel.job.label, ())),
            entries=tuple(
                replace(entry, host=objects.get(text_digest(entry.entry.ir_text))) for entry in kernel.entries
            ),
        )
        for kernel in compiled
    ]


def finished(
    compiled: Sequence[Compiled], linker: Path | None, flydsl_root: Path | None, warnings: list[str]
) -> list[Addition]:
    """The table and the library of these kernels. What cannot be made is one line in ``warnings``.

    :param linker: an LLD behind the name ``ld.lld``; None for no library.
    :param flydsl_root: the folder that holds the package ``flydsl``.
    :raises PrebuildError: one call led to two artifacts: the pack would be wrong.
    """
    additions = []
    calls = [call for kernel in compiled for call in kernel.calls]
    if any(call.problem is None for call in calls):
        abi = str(sys.implementation.cache_tag)
        text = json.dumps(make_table(calls, abi), sort_keys=True, separators=(",", ":"))
        known = sum(call.problem is None for call in calls)
        additions.append(Addition("lookup", text.encode(), lambda own, _: LookupFacts(own, abi, known)))
    objects = {
        text_digest(entry.entry.ir_text): entry.host
        for kernel in compiled
        for entry in kernel.entries
        if entry.host is not None
    }
    if objects and linker is not None and flydsl_root is not None:
        runtime = flydsl_root / "flydsl" / "_mlir" / "_mlir_libs" / RUNTIME_LIBRARY
        digests = sorted(objects)
        try:
            library = link([(object_name(digest), objects[digest]) for digest in digests], linker, runtime)
        except PrebuildError as error:
            warnings.append(f"{error}; first calls will build FlyDSL's engine")
        else:
            additions.append(_library(library, digests))
    return additions


def carried(pack: Pack) -> list[Addition]:
    """The table and the library of a whole pack, for another that holds all its kernels."""
    table, library = pack.lookup, pack.launchers
    texts = list(pack.payloads()) if table or library else []
    additions = []
    if table is not None:
        text = texts[table.payload].encode("utf-8")
        additions.append(Addition("lookup", text, lambda own, _: table._replace(payload=own)))
    if library is not None:
        digests = [place.sha256 for place in pack.manifest.payloads]

        def describe(own: int, index: Mapping[str, int]) -> LaunchersFacts:
            functions = tuple((index[digests[artifact]], *places) for artifact, *places in library.functions)
            return library._replace(payload=own, functions=functions)  # type: ignore[arg-type]

        additions.append(Addition("launchers", texts[library.payload].encode("utf-8"), describe))
    return additions


def _library(library: Library, digests: list[str]) -> Addition:
    def describe(own: int, index: Mapping[str, int]) -> LaunchersFacts:
        functions = tuple(
            (index[digest], entry, module) for digest, (entry, module) in zip(digests, library.places, strict=True)
        )
        sha256 = hashlib.sha256(library.image).hexdigest()
        return LaunchersFacts(own, MACHINE, sha256, library.anchor, functions)

    # A payload is text: a byte is the character of its number.
    return Addition("launchers", library.image.decode("latin-1").encode("utf-8"), describe)


def text_digest(ir_text: str) -> str:
    """What names an artifact's text."""
    return hashlib.sha256(ir_text.encode("utf-8")).hexdigest()
