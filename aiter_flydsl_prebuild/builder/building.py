"""One build from its settings, for the command line and the hook: where it compiles, and its report."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from .. import needs
from ..packs.format import Pack
from ..progress import Progress
from .backends.remote import dask_executor
from .pipeline import BuiltPack, KernelsFailedError, build_pack, request_of
from .reports import reporting
from .settings import BuildSettings


def build(settings: BuildSettings, folder: Path) -> BuiltPack:
    """Build and prove a pack, or a part, in ``folder``, and write the report where one was asked for.

    :raises InputError: a setting is wrong.
    :raises CheckError: kernels failed, which the report lists, the proof did, or a gate is not passed.
    :raises MissingError: a library is not installed.
    """
    needs.require("build", *needs.COMPILING)
    if settings.report:
        reporting.require()
    request = request_of(settings)
    elsewhere = dask_executor(settings.scheduler) if settings.scheduler else contextlib.nullcontext((None, None))
    with elsewhere as (executor, slots):
        request = replace(request, workers=settings.workers or slots)
        try:
            built = build_pack(request, folder, Progress, executor)
        except KernelsFailedError as error:
            _report(settings, reporting.Subject(error.manifest, None, error.seconds_of, None, error.failed))
            raise
    if settings.report:
        pack = Pack(str(built.path))
        proof = built.proof.to_json() if built.proof else None
        subject = reporting.Subject(pack.manifest, len(pack.content), built.seconds_of, proof, built.failed)
        _report(settings, subject)
    return built


def _report(settings: BuildSettings, subject: reporting.Subject) -> None:
    if settings.report:
        reporting.write(subject, settings.report)
