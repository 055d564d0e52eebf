"""The server-side check on real hardware: what does a process compile, with the installed kernels and without?

    python tools/check_on_mi355x.py [--tokens 512]

For a machine with an MI355X, ROCm, torch for ROCm, AITER and a wheel with kernels. Two processes, each with a fresh
cache folder, call AITER's op for every token count from 1 on and every shape of the installed packs; FlyDSL's compiles
are counted. With the kernels there must be none; without, some. Exit status 0 if so.

It has not yet been run on AMD hardware: treat its first run as a test of the script, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512, help="the largest token count (default: 512)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(serve(options.tokens)))
        return 0
    results = {}
    for mode in ("on", "off"):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "FLYDSL_RUNTIME_CACHE_DIR": cache, "AITER_FLYDSL_PREBUILD": mode}
            command = [sys.executable, __file__, "--worker", "--tokens", str(options.tokens)]
            run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        results[mode] = json.loads(run.stdout.splitlines()[-1])
        print(f"kernels {mode}: {results[mode]}")
    return 0 if results["on"]["compiled"] == 0 < results["off"]["compiled"] else 1


def serve(tokens: int) -> dict[str, Any]:
    """Call the op of every shape for every token count, as a server does; what FlyDSL found and compiled."""
    import aiter
    import torch

    import aiter_flydsl_prebuild

    aiter_flydsl_prebuild.seed()
    monitor = aiter_flydsl_prebuild.watch()
    shapes = shapes_of_packs()
    torch.set_default_device("cuda")
    started = time.perf_counter()
    for shape in shapes:
        weight = operands_of_weight(shape)
        for count in range(1, tokens + 1):
            call(aiter, shape, count, weight)
    torch.cuda.synchronize()
    seconds = round(time.perf_counter() - started, 1)
    calls = len(shapes) * tokens
    return {"calls": calls, "found": monitor.found, "compiled": monitor.compiled, "seconds": seconds}


def shapes_of_packs() -> list[dict[str, Any]]:
    """The shapes of the installed packs, each once."""
    from aiter_flydsl_prebuild.discovery import find_packs
    from aiter_flydsl_prebuild.packs.format import Pack

    keys = ("op", "n", "k", "w_scale_block")
    shapes = (shape.shape for path in find_packs() for shape in Pack(path).manifest.plan.shapes)
    found = {tuple(getattr(shape, key) for key in keys) for shape in shapes}
    if not found:
        sys.exit("no pack of kernels is installed here")
    return [dict(zip(keys, values, strict=True)) for values in sorted(found, key=str)]


def operands_of_weight(shape: dict[str, Any]) -> tuple[Any, Any]:
    """w [N, K] and its scales; the contents do not matter for what is compiled."""
    import torch

    n, k = shape["n"], shape["k"]
    w = torch.zeros(n, k, dtype=torch.uint8).view(torch.float8_e4m3fn)
    if shape["op"] == "a8w8_bpreshuffle":
        return w, torch.ones(1, n)
    if shape["op"] == "mxscale_bmm":
        rows, columns = map(int, shape["w_scale_block"].split("x"))
        return w, torch.full((-(-n // rows), k // columns), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    sys.exit(f"this script does not know how to call {shape['op']}")


def call(aiter: Any, shape: dict[str, Any], count: int, weight: tuple[Any, Any]) -> None:
    """One call of the op for ``count`` tokens."""
    import torch

    w, w_scale = weight
    x = torch.zeros(count, shape["k"], dtype=torch.uint8).view(torch.float8_e4m3fn)
    if shape["op"] == "a8w8_bpreshuffle":
        aiter.gemm_a8w8_bpreshuffle(x, w, torch.ones(count, 1), w_scale, dtype=torch.bfloat16)
    else:
        columns = int(shape["w_scale_block"].split("x")[1])
        x_scale = torch.full((count, shape["k"] // columns), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        aiter.gemm_a8w8_blockscale_bpreshuffle(x, w, x_scale, w_scale)


if __name__ == "__main__":
    sys.exit(main())
