"""Compile reference kernels in a process of their own: FlyDSL ends the process where it cannot compile.

``python compile_reference.py < jobs.json``: jobs are [name, N, K] each; prints for each job the entry that appeared in
FlyDSL's cache folder ("" if none did), the seconds that it took, and the number of compiled functions that were kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from aiter_flydsl_prebuild.sources.reference import dispatch


def operands(m: int, n: int, k: int) -> list[torch.Tensor]:
    """y, x, x_scale, w and w_scale, without content, on the CPU."""
    fp8, scale = torch.float8_e4m3fn, torch.uint8
    return [
        torch.empty(m, n, dtype=torch.bfloat16),
        *(torch.empty(m, k, dtype=fp8), torch.empty(m, k // 32, dtype=scale)),
        *(torch.empty(n, k, dtype=fp8), torch.empty(-(-n // 32), k // 32, dtype=scale)),
    ]


def main() -> None:
    cache = Path(os.environ["FLYDSL_RUNTIME_CACHE_DIR"])
    seen = set(cache.rglob("*.pkl"))
    results = []
    for name, n, k in json.load(sys.stdin):
        started = time.perf_counter()
        y, x, x_scale, w, w_scale = operands(1, n, k)
        dispatch.launch(name, y, x, x_scale, w, w_scale)
        seconds = time.perf_counter() - started
        new = set(cache.rglob("*.pkl")) - seen
        seen |= new
        results.append({"entry": str(next(iter(new), "")), "seconds": seconds, "kept": len(dispatch._compiled)})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
