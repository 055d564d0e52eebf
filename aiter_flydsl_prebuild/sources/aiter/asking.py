"""Questions to the installed AITER, which a process of its own imports and answers (probe.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from ...errors import CheckError
from ...flydsl.toolchain import scrubbed_environment
from ...scratch import scratch_folder
from . import installed, needs


def ask_aiter(aiter: installed.Installed, request: dict[str, Any]) -> dict[str, Any]:
    """Ask :mod:`.probe`, and again without what AITER could not import, until all of that is known.

    :raises needs.MissingError: something that AITER imports is not installed; all of it is named.
    :raises CheckError: the process ended without an answer, or AITER cannot be imported.
    """
    asked = {**request, "search": sys.path}
    found = _probe({**asked, "absent": []})
    if not (lacking := found.get("absent")):
        return found
    while not needs.ESSENTIAL.intersection(lacking):
        absent = list(dict.fromkeys([*lacking, *needs.known_absent()]))
        try:
            again = _probe({**asked, "absent": absent})["absent"]
        except CheckError:
            break  # what stands in for absent modules is no match for everything
        if set(again) <= set(absent):
            raise needs.missing(aiter, again)
        lacking = again
    raise needs.missing(aiter, list(dict.fromkeys([*lacking, *needs.known_absent()])))


def _probe(request: dict[str, Any]) -> dict[str, Any]:
    """Run :mod:`.probe`, a process that imports AITER.

    :raises CheckError: the process ended without an answer, or AITER cannot be imported.
    """
    with scratch_folder("probe") as folder:
        answer = folder / "answer.json"
        environment = scrubbed_environment(
            os.environ, rocm_root=folder / "no-rocm", arch=request["arch"], cache_dir=folder / "cache"
        )
        run = subprocess.run(
            [sys.executable, "-m", f"{__package__}.probe", str(answer)],
            input=json.dumps(request),
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            said = "\n".join((run.stdout + run.stderr).strip().splitlines()[-20:])
            raise CheckError(f"the process that asks AITER ended with status {run.returncode}:\n{said}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "problem" in found:
        raise CheckError(found["problem"])
    return found
