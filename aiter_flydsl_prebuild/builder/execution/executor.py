"""The process that executes kernels: ``python -m aiter_flydsl_prebuild.builder.execution.executor FD < request.json``.

Started by :mod:`.running` with an empty cache folder and FlyDSL forbidden to compile. It seeds the packs, and makes the
call of each kernel's problems, so that FlyDSL's own host code loads the code object from the pack and launches it. Each
outcome goes as a line of JSON to the file descriptor FD.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import PrebuildError
from ...execution import hip
from ...execution.launchers import Launcher, OnEmulator, OnGpu
from ...execution.tinygrad import Emulator
from ...model.job import Options
from ...packs.format import Pack
from ...processes import die_with_parent
from ...seeding import seed as seed_packs
from ...sources import load_source
from ...sources.base import Source, job_of

GPU, EMULATOR = "gpu", "emulator"


def main() -> int:
    """Read the request, execute, send an outcome after the other."""
    request = json.load(sys.stdin)
    die_with_parent(request["parent"])
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as pipe:

        def send(**line: Any) -> None:
            pipe.write(json.dumps(line) + "\n")
            pipe.flush()

        try:
            sys.path += request["search"]
            with tempfile.TemporaryDirectory(prefix="afp-hip-") as folder:
                launcher = _launcher(request, Path(folder))
            execute(request, launcher, send)
            send(done=True)
        except PrebuildError as error:
            send(problem=str(error))
        except Exception as error:
            traceback.print_exc()
            said = str(error).splitlines()[0] if str(error) else ""
            send(problem=f"executing stopped with {type(error).__name__}: {said}")
    return 0


def _launcher(request: dict[str, Any], folder: Path) -> Launcher:
    if request["on"] == GPU:
        return OnGpu()
    # Before FlyDSL loads the real one.
    library = hip.build(folder)
    os.environ["CC"] = hip.find_compiler()  # for tinygrad
    emulator = Emulator(Path(request["emulator"]) if request["emulator"] else None)
    return OnEmulator(library, emulator, request["tiles"], request["seed"])


def execute(request: dict[str, Any], launcher: Launcher, send: Callable[..., None]) -> None:
    """Execute the kernels of a request.

    :raises PrebuildError: the packs cannot be seeded here, or their source is another one.
    """
    packs = [Pack(path) for path in request["packs"]]
    report = seed_packs(packs=request["packs"], mode="on")
    if report.problems:
        raise PrebuildError("; ".join(report.problems))
    source = load_source(request["source"], Options.from_json(request["options"]))
    if source.identity()["digest"] != request["digest"]:
        raise PrebuildError(f"the source {source.name} installed here is not the one that the kernels were built from")
    if request["on"] == GPU:
        source.go_live(request["arch"])
    for pack_index, kernel_index in request["kernels"]:
        send(kernel=[pack_index, kernel_index], **_one(packs[pack_index], kernel_index, source, launcher, request))


def _one(pack: Pack, index: int, source: Source, launcher: Launcher, request: dict[str, Any]) -> dict[str, Any]:
    """The outcomes of one kernel, or why there are none."""
    kernel = pack.kernels[index]
    code = [code.code_object_sha256 for code in kernel.code]
    try:
        problems = source.problems(job_of(pack.manifest, kernel), request["seed"])
        outcomes = [launcher.run(problem, code).to_json() for problem in problems]
    except Exception as error:
        traceback.print_exc()
        said = str(error).splitlines()[0] if str(error) else ""
        return {"outcomes": [], "reason": f"{type(error).__name__}: {said}"}
    return {"outcomes": outcomes, "reason": None if outcomes else "the source has no reference for it"}


if __name__ == "__main__":
    sys.exit(main())
