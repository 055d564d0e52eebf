"""The processes of test_launchers.py: ``make FOLDER LINKER`` compiles and links, ``compare FOLDER`` launches twice."""

from __future__ import annotations

import ctypes
import hashlib
import json
import pickle
import re
import sys
import threading
from pathlib import Path
from typing import Any


def make(folder: Path, linker: Path) -> Any:
    import flydsl
    from launch_kernels import CALLS

    from aiter_flydsl_prebuild.builder.launcher_library import host_object, link, object_name
    from aiter_flydsl_prebuild.flydsl_cache import decode_entry

    for call in CALLS.values():
        call()
    objects, digests = [], []
    for path in sorted((folder / "cache").rglob("*.pkl")):
        entry = decode_entry(path.read_bytes())
        digest = hashlib.sha256(entry.ir_text.encode()).hexdigest()
        digests.append(digest)
        name = object_name(digest)
        objects.append((name, host_object(entry.ir_text, entry.fields, name)))
    runtime = Path(flydsl.__file__).parent / "_mlir" / "_mlir_libs" / "libfly_jit_runtime.so"
    library = link(objects, linker, runtime)
    (folder / "launchers.so").write_bytes(library.image)
    about = {
        "sha256": hashlib.sha256(library.image).hexdigest(),
        "anchor": library.anchor,
        "functions": dict(zip(digests, library.places, strict=True)),
    }
    (folder / "launchers.so.json").write_text(json.dumps(about))
    return {"version": flydsl.__version__, "functions": len(digests)}


def compare(folder: Path) -> Any:
    import fake_hip
    import flydsl.compiler.jit_executor as executor
    from launch_kernels import SIZES, arguments

    from aiter_flydsl_prebuild.flydsl import launchers

    library = launchers.Launchers(str(folder / "launchers.so"))
    paths = sorted((folder / "cache").rglob("*.pkl"))
    theirs = [pickle.loads(path.read_bytes()) for path in paths]
    engines = [artifact._get_func_exe() for artifact in theirs]
    problem = launchers.install(executor, [library])
    ours = [pickle.loads(path.read_bytes()) for path in paths]
    # Many threads call first: a module is loaded once.
    loaded = fake_hip.counts()["hipModuleLoadData"]
    threads = [threading.Thread(target=artifact._get_func_exe) for artifact in ours for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    loaded = fake_hip.counts()["hipModuleLoadData"] - loaded
    sizes = {f"{name}_{number}": size for name, size in SIZES.items() for number in range(3)}
    same, launches = [], 0
    for artifact, engine in zip(ours, engines, strict=True):
        image = launchers.embedded_binary(artifact._ir_text)
        assert image is not None
        for count in (0, 1, 77, 129, 2**31 - 1):
            storage = arguments(artifact._entry, count)
            packed = (ctypes.c_void_p * len(storage))(*map(ctypes.addressof, storage))
            with fake_hip.recorded(sizes, len(image[2])) as launched:
                engine(packed)
                half = len(launched)
                artifact._get_func_exe()(packed)
            launches += half
            same.append(half > 0 and launched[:half] == launched[half:] and launched[0].image == image[2])
    return {
        "problem": problem,
        "library": library.problem,
        "taken": library.taken,
        "engines": sum(artifact._engine is not None for artifact in ours),
        "artifacts": len(ours),
        "loaded": loaded,
        "launches": launches,
        "same": same,
    }


def use(folder: Path) -> Any:
    """Call one launcher with whatever lies at the library's place."""
    import fake_hip
    import flydsl.compiler.jit_executor as executor

    from aiter_flydsl_prebuild.flydsl import launchers

    library = launchers.Launchers(str(folder / "launchers.so"))
    launchers.install(executor, [library])
    path = next(path for path in sorted((folder / "cache").rglob("*.pkl")) if "launch_one" in str(path))
    artifact = pickle.loads(path.read_bytes())
    if len(sys.argv) > 3:
        artifact._ir_text = re.sub("gfx950", sys.argv[3], artifact._ir_text, count=1)
    artifact._get_func_exe()
    return {"problem": library.problem, "taken": library.taken, "loaded": fake_hip.counts()["hipModuleLoadData"]}


if __name__ == "__main__":
    command, folder = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(make(folder, Path(sys.argv[3])) if command == "make" else globals()[command](folder)))
