"""How long reading tuned tables, planning and spreading jobs take: seconds, peak memory, ratios to a csv.reader pass.

    python benchmarks/bench_plan.py [ROWS ...]          (default: 100000 1000000)

Each table is generated, then read and planned for tokens 1..32768, and its jobs spread over 8 parts, in a process of
its own, so that the peak is its own.
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

from aiter_flydsl_prebuild.builder.reach import plan_reach
from aiter_flydsl_prebuild.builder.sharding import assign, costs_of
from aiter_flydsl_prebuild.builder.tables import read_tables
from aiter_flydsl_prebuild.sources import load_source
from aiter_flydsl_prebuild.sources.base import Options, jobs_of

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
    start = time.perf_counter()
    with path.open(newline="") as file:
        count = sum(1 for _ in csv.reader(file))
    plain = time.perf_counter() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    tables = read_tables([path])
    read = time.perf_counter() - start
    reach = plan_reach(tables, gfx=["gfx950"], cu_num=[256], tokens=TOKENS)
    planned = time.perf_counter() - start
    jobs = jobs_of("reference", reach, "gfx950", Options())
    source = load_source("reference")
    parts = assign(jobs, PARTS, costs_of(jobs, source, None))
    total = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{count - 1:>9,} rows {len(reach.shapes):>6,} shapes {reach.distinct_kernels:>9,} kernels | "
        f"csv.reader {plain:6.2f} s | read {read:6.2f} s ({read / plain:5.1f}x) | "
        f"plan {planned - read:6.2f} s ({(planned - read) / plain:5.1f}x) | "
        f"{len(jobs):,} jobs spread over {len(parts.parts)} parts {total - planned:6.2f} s | all {total:6.2f} s | "
        f"peak {peak / 1024:6.0f} MB (+{(peak - before) / 1024:.0f})"
    )


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
