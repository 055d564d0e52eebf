"""AITER's own ahead-of-time jobs (``aiter/aot/flydsl``): how every other kind of its FlyDSL kernels is built.

A kind is a value of ``common.OpKind``, a job the keyword arguments of that kind's ``compile_one_config``. AITER drives
the same wrappers with it as a server does, so the keys are a server's; which token counts lead to a kernel, it does not
say. The functions that import AITER do so for the process that calls them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from typing import Any

from ...errors import PrebuildError
from . import standins
from .installed import PACKAGE, Installed

COMMON = "aot/flydsl/common.py"


def kinds(aiter: Installed) -> list[str]:
    """The kinds of an AITER, read from its source; none where it has no such jobs."""
    try:
        text = (aiter.package / COMMON).read_text(encoding="utf-8")
    except OSError:
        return []
    body = re.search(r"^class OpKind\(.*?\):\n(.*?)^\S", text, re.MULTILINE | re.DOTALL)
    return [] if body is None else re.findall(r"^    [A-Z0-9_]+ = [\"'](\w+)[\"']", body[1], re.MULTILINE)


def collect(kind: str, arch: str) -> list[dict[str, Any]]:
    """AITER's jobs of a kind for an arch. Raises what AITER raises."""
    common = _common(arch)
    with contextlib.redirect_stdout(io.StringIO()):
        jobs = common._collect_aot_jobs_for(common.OpKind(kind))
    return [job for job in jobs if (job.get("gfx") or common.cu_num_to_arch(job.get("cu_num", 0))) == arch]


def compile_job(kind: str, arch: str, job: dict[str, Any]) -> None:
    """Compile a job as AITER does.

    :raises PrebuildError: it gave no kernel, with what AITER printed: its function does not raise.
    """
    common = _common(arch)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        result = common._compile_one_config_for(common.OpKind(kind))(**job)
    if result.get("compile_time") is None:
        raise PrebuildError(" ".join(said.getvalue().split()) or "AITER compiled nothing and printed nothing")


def _common(arch: str) -> Any:
    standins.import_light(arch)
    return importlib.import_module(f"{PACKAGE}.aot.flydsl.common")
