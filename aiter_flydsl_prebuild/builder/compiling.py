"""Compiling one job in a worker process, and many of them with a pool.

A job gets a private, empty cache folder. What FlyDSL leaves there is the job's output: nothing is guessed, and no key
is computed by hand. A job is first compiled without device bitcode; only one that fails so is tried again with it.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckError, PrebuildError
from ..flydsl import cache
from ..flydsl.install import (
    Install,
    ambiguity,
    checked,
    imported_install,
    interpreter_abi,
    known_identities,
    read_install,
)
from ..flydsl.listen import follow_cache_folder, recorded_artifact_keys
from ..flydsl.toolchain import Toolchain
from ..model.job import Job
from ..packs.codeobject import code_facts
from ..packs.manifest import CodeFacts, FlyDSL
from ..processes import environment
from ..sources import load_source


@dataclass(frozen=True)
class Task:
    """What a worker gets: a job, where to find a linker, and where to find one with device bitcode (None: nowhere)."""

    job: Job
    rocm_root: str
    bitcode_root: str | None


@dataclass(frozen=True)
class CompiledEntry:
    """One file that FlyDSL left in its cache. Its names are an artifact key (0.5), or a path for each ABI.

    ``extra`` is what a pack says of it that this version does not know.
    """

    artifact_key: str | None
    paths: tuple[tuple[str, str], ...]
    entry: cache.Entry
    code: tuple[CodeFacts, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def launcher(self) -> str:
        """The name of the host function that launches the kernel, as FlyDSL calls it."""
        return str(self.entry.fields["entry"])

    @property
    def names(self) -> tuple[str, ...]:
        """What no other entry may be called."""
        if self.artifact_key is not None:
            return (f"{self.launcher}/{self.artifact_key}",)
        return tuple(f"{path} ({abi})" for abi, path in self.paths)


@dataclass(frozen=True)
class Compiled:
    """What a job gave. ``bitcode`` is the digest of the device bitcode that was linked, None where none was needed.

    ``seconds`` is what compiling it took, wherever that was. ``files`` are the source files that it was made from
    (:func:`.bound.files_of`); the build adds them, and packs of older releases have none. ``extra`` is what a pack
    says of it that this version does not know.
    """

    job: Job
    entries: tuple[CompiledEntry, ...]
    bitcode: str | None
    seconds: float = field(default=0.0, compare=False)
    files: tuple[tuple[str, str], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def building_flydsl() -> FlyDSL:
    """The installed FlyDSL, if kernels can be built with it.

    :raises CheckError: none, one whose cache is not known here, or one whose sources are not as its RECORD says: the
        kernels would carry the release's name.
    """
    install = read_install()
    if install is None:
        raise CheckError("FlyDSL is not installed: pip install flydsl")
    if twice := ambiguity(install):
        raise CheckError(twice)
    if install.identity is None:
        install = imported_install(install)
    elif damage := checked(install).damage:
        raise CheckError(f"kernels built here would not be those of the release: {damage}")
    generation = cache.generation(install.version)
    if generation is None:
        raise CheckError(
            f"flydsl {install.version or 'without a version'} is not known here: kernels can be built with 0.3.1 to 0.5"
        )
    return FlyDSL(install.version, generation, _identities(install, generation))


def _identities(install: Install, generation: str) -> dict[str, list[str]]:
    """The installations on which these kernels are right.

    Up to 0.4.2 the keys hold for one ABI. From 0.5 every released wheel of the version makes the same artifact; a
    FlyDSL that is none of them answers for itself alone.
    """
    assert install.identity is not None
    released = known_identities().get(install.version, {})
    if generation == cache.ARTIFACT_KEY and install.identity in released.get(install.abi, ()):
        return released
    return {install.abi: [install.identity]}


def make_task(job: Job, toolchain: Toolchain, bitcode_root: Path | None) -> Task:
    """The task of a job on this machine."""
    return Task(job, str(toolchain.rocm_root), None if bitcode_root is None else str(bitcode_root))


def compile_task(task: Task) -> Compiled:
    """Compile one job in this process, whose environment is a build worker's.

    :raises PrebuildError: with FlyDSL's own message.
    """
    try:
        return _compile(task.job, task.rocm_root, with_bitcode=False)
    except PrebuildError as error:
        if task.bitcode_root is None:
            raise
        without = error
    try:
        return _compile(task.job, task.bitcode_root, with_bitcode=True)
    except PrebuildError as error:
        if str(error) == str(without):
            raise error from None
        raise PrebuildError(f"{error}\n(without device bitcode: {without})") from None


def _compile(job: Job, rocm_root: str, *, with_bitcode: bool) -> Compiled:
    source = load_source(job.source, job.options)
    started = time.perf_counter()
    roots = {"ROCM_PATH": rocm_root, "ROCM_HOME": rocm_root}
    with (
        tempfile.TemporaryDirectory(prefix="afp-job-") as folder,
        environment(FLYDSL_RUNTIME_CACHE_DIR=folder, **roots),
    ):
        follow_cache_folder()
        with recorded_artifact_keys() as artifact_keys:
            try:
                source.compile(job)
            except PrebuildError:
                raise
            except Exception as error:
                raise PrebuildError(f"{type(error).__name__}: {error}".strip()) from error
        entries = tuple(_collect(Path(folder), artifact_keys, job.arch))
    if not entries:
        raise PrebuildError("FlyDSL compiled nothing: the call was served from this process's memory")
    bitcode = cache.bitcode_digest(rocm_root) if with_bitcode else None
    return Compiled(job, entries, bitcode, time.perf_counter() - started)


def _collect(folder: Path, artifact_keys: Mapping[str, str], arch: str) -> Iterator[CompiledEntry]:
    for file in sorted(folder.rglob("*.pkl")):
        path = file.relative_to(folder).as_posix()
        entry = cache.decode_entry(file.read_bytes())
        key = artifact_keys.get(file.stem)
        if len(file.stem) == len(hashlib.sha256().hexdigest()) and key is None:
            raise PrebuildError(f"FlyDSL wrote {path} under a key that it did not compute from an artifact key")
        paths = () if key else ((interpreter_abi(), path),)
        yield CompiledEntry(key, paths, entry, tuple(code_facts(entry.ir_text, arch)))
