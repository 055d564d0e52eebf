"""The keys of the store: digests over all that can change what a compile, a proof or a question gives.

A kernel's key holds the job as its source sees it (:meth:`sources.base.Source.inputs`, the digest of the source's code
included), FlyDSL by version and by the hashes of its RECORD, the linker, the interpreter's ABI, and this project's own
code, and the variables that a worker's environment always has; of the caller's it sees only where to find things
(:func:`flydsl.toolchain.worker_environment`).
The device bitcode is not in it: a kernel that linked none is the same under
any.

Should a key miss something that matters, a wrong kernel still cannot get into a wheel unnoticed: the proof looks every
kernel up under the key that FlyDSL computes from the sources as they are.
"""

from __future__ import annotations

from pathlib import Path

from ...digests import compiling_code, digest
from ...flydsl.install import interpreter_abi
from ...flydsl.toolchain import Toolchain, worker_environment
from ...model.job import Job
from ...packs.manifest import FORMAT, FlyDSL, to_json
from ...sources.base import Source


class KernelKeys:
    """The names of kernels in the store, for one FlyDSL and one toolchain."""

    def __init__(self, source: Source, flydsl: FlyDSL, toolchain: Toolchain) -> None:
        self._source = source
        self.bitcode = toolchain.fingerprint.bitcode
        folder = Path("folder")
        common = {
            "pack": FORMAT,
            "code": compiling_code(type(source)),
            "flydsl": to_json(flydsl),
            "abi": interpreter_abi(),
            "linker": toolchain.fingerprint.linker,
            "environment": worker_environment({}, rocm_root=folder, arch="arch", folder=folder),
        }
        self._common = digest(common)

    def names(self, job: Job) -> list[str]:
        """Where a kernel of this job may be: without device bitcode, and with that of this machine."""
        key = self._key(job)
        return [self._name(key, bitcode) for bitcode in (None, *filter(None, [self.bitcode]))]

    def name(self, job: Job, bitcode: str | None) -> str:
        """Where a kernel goes that linked this bitcode, or none."""
        return self._name(self._key(job), bitcode)

    def _key(self, job: Job) -> str:
        what = {"source": job.source, "arch": job.arch, "name": job.name, **job.shape.layer()}
        return digest([self._common, what, self._source.inputs(job)])

    def _name(self, key: str, bitcode: str | None) -> str:
        return f"kernels/{key[:2]}/{key}" + (f"-{bitcode[:16]}" if bitcode else "")
