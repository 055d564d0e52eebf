"""What builds keep for each other: kernels, packs and proofs, in a store, behind one interface."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..digests import digest, own_code
from ..flydsl.install import read_install
from ..flydsl.toolchain import Toolchain
from ..model.job import Job
from ..packs.format import Pack, PackError, read_header, zstd
from ..packs.manifest import About, FlyDSL, Manifest, to_json
from ..sources.base import Source
from .compiling import Compiled
from .packing import LEVEL, encode_kernel, encode_pack, unpacked
from .proof.proof import Proof, Subject, prove
from .store.keys import KernelKeys
from .store.store import Store


class Memo:
    """A store as one build uses it: for one source, one FlyDSL and one toolchain."""

    def __init__(self, store: Store, source: Source, flydsl: FlyDSL, toolchain: Toolchain) -> None:
        self._store = store
        self._source = source
        self._flydsl = flydsl
        self._keys = KernelKeys(source, flydsl, toolchain)

    def recall(self, jobs: Iterable[Job]) -> dict[Job, Compiled]:
        """The kernels that the store has, by their jobs."""
        names = {job: self._keys.names(job) for job in jobs} if self._store.where else {}
        packs = self._store.packs([name for some in names.values() for name in some])
        recalled = {}
        for job, some in names.items():
            for name in some:
                if name in packs and (kernel := self._recalled(name, packs[name], job)) is not None:
                    recalled[job] = kernel
                    break
        return recalled

    def _recalled(self, name: str, pack: Pack, job: Job) -> Compiled | None:
        try:
            kernels = list(unpacked(pack))
        except PackError as error:
            self._store.discard(name, str(error))
            return None
        if [(kernel.job.name, kernel.job.shape) for kernel in kernels] != [(job.name, job.shape)]:
            self._store.discard(name, f"{pack.path}: not the kernel that its name says")
            return None
        # The same kernel may serve other token counts than when it was made.
        return replace(kernels[0], job=job)

    def keep(self, compiled: Compiled, about: About) -> None:
        """Put a kernel into the store, as a pack of one; what describes the build is not part of it."""
        data = encode_kernel(compiled, self._flydsl, about.source, about.toolchain)
        self._store.keep_pack(self._keys.name(compiled.job, compiled.bitcode), data)

    def encoded(self, manifest: Manifest, payloads: list[bytes]) -> bytes:
        """The pack's bytes, which take seconds to compress: out of the store, where this pack was made before."""
        about = {"manifest": to_json(manifest), "level": LEVEL, "code": own_code(), "zstd": zstd().zstd_version}
        name = f"packs/{digest(about)}"
        if (kept := self._store.packs([name]).get(name)) is not None:
            # The manifest holds the sha256 of every payload.
            if kept.manifest == manifest:
                return kept.content
            self._store.discard(name, f"{kept.path}: not the pack that its name says")
        data = encode_pack(manifest, payloads)
        self._store.keep_pack(name, data)
        return data

    def proven(self, path: Path, trusted: str) -> Proof:
        """The proof of a pack. It follows from the pack and the code that runs in it: one that held is recalled."""
        install = read_install()
        about = {
            "pack": read_header(str(path)).pack_id,
            "source": self._source.identity(),
            "watched": self._source.watched(),
            "flydsl": None if install is None else install.identity,
            "torch": importlib.metadata.version("torch"),
            "code": own_code(),
            "python": sys.version,
        }
        fresh: list[Proof] = []

        def ask() -> Any:
            fresh.append(prove(Subject((path,)), trusted=trusted))
            if not fresh[0].ok:
                raise _NotProven
            return fresh[0].to_json()

        try:
            answer = self._store.remember(digest(about), ask)
        except _NotProven:
            return fresh[0]
        return fresh[0] if fresh else Proof.from_json(answer)


class _NotProven(Exception):
    """Nothing to remember."""
