"""How long it takes to read tuned tables, to plan, and what else grows with the jobs: spreading them, and their keys.

    python benchmarks/bench_plan.py [ROWS ...]          (default: 100000 1000000)

Each table is generated, then read and planned for tokens 1..32768, its jobs spread over 8 parts, and their keys in the
store computed, in a process of its own, so that the peak of memory is its own. Seconds are of CPU time.
"""

from __future__ import annotations

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aiter_flydsl_prebuild.builder.compiling import building_flydsl
from aiter_flydsl_prebuild.builder.sharding import assign, costs_of
from aiter_flydsl_prebuild.builder.store.keys import KernelKeys
from aiter_flydsl_prebuild.dispatch.reach import plan_reach
from aiter_flydsl_prebuild.dispatch.tables import read_tables
from aiter_flydsl_prebuild.flydsl.toolchain import find_toolchain
from aiter_flydsl_prebuild.sources import load_source

TOKENS = (1, 32768)
PARTS = 8
HEADER = ["gfx", "cu_num", "M", "N", "K", "w_scale_block", "libtype", "kernelId", "splitK", "us", "kernelName"]
M_VALUES = [1, 2, 4, 8, *range(16, 257, 16), *range(288, 1025, 32), *range(1088, 2049, 64), 4096, 8192, 16384, 32768]


def write_table(path: Path, rows: int, shared: bool) -> None:
    """An mxscale table. Its shapes are all tuned at the same M values (``shared``), or each at others."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(HEADER)
        for index in range(rows):
            shape, at = divmod(index, len(M_VALUES))
            m = M_VALUES[at] if shared else M_VALUES[at] + (shape * 7 % 1009) * (at + 1)
            n, k = 512 + 32 * (shape % 499), 512 + 128 * (shape // 499)
            tile, stages, split = 16 * (1 + index % 16), 2 + index % 7, 1 + index % 4
            name = f"flydsl_bmm_mxfp8_mfma_t{tile}x64x256_w1x4_nb{stages}_sk{split}_bd{index % 3}"
            out.writerow(["gfx950", 256, m, n, k, "32x32", "flydsl", "bmm", split, f"{index % 977 / 7:.3f}", name])


def measure(path: Path) -> None:
    start = time.process_time()
    with path.open(newline="") as file:
        count = sum(1 for _ in csv.reader(file))
    plain = time.process_time() - start
    before = _peak()
    start = time.process_time()
    tables = read_tables([path])
    read = time.process_time() - start
    reach = plan_reach(tables, gfx=["gfx950"], cu_num=[256], tokens=TOKENS)
    source = load_source("reference")
    jobs = tuple(source.jobs(reach, "gfx950"))
    planned = time.process_time() - start
    peak = _peak()
    assign(jobs, PARTS, costs_of(jobs, source))
    spread = time.process_time() - start
    keys = KernelKeys(source, building_flydsl(), find_toolchain())
    begun = time.process_time()
    for job in jobs:
        keys.names(job)
    keyed = time.process_time() - begun
    print(
        f"{count - 1:>9,} rows {len(reach.shapes):>6,} shapes {len(jobs):>9,} jobs | csv.reader {plain:5.2f} s | "
        f"read {read:5.2f} s, planned {planned - read:5.2f} s: {planned:5.2f} s ({planned / plain:4.1f}x), "
        f"{peak:5.0f} MB (+{peak - before:.0f}) | "
        f"spread over {PARTS} parts {spread - planned:5.2f} s, keys {keyed:5.2f} s, {_peak():5.0f} MB"
    )


def _peak() -> float:
    """The most memory that this process had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        measure(arguments.table)
        return
    for rows in arguments.rows:
        for shared in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "table.csv"
                write_table(path, rows, shared)
                print("same M values " if shared else "own M values  ", end="", flush=True)
                subprocess.run([sys.executable, __file__, "--table", str(path)], check=True)


if __name__ == "__main__":
    main()
