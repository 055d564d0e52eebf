"""AITER's gfx950 per-token rows, prebuilt by this project and by AITER's own ahead-of-time command, in one run.

    AITER_SOURCE=CHECKOUT python benchmarks/bench_aiter.py [--shapes N] [--workers N]

Both get the same rows, the same number of processes and the same linker; ours includes the plan and the proof. Prints
kernels or jobs, wall and CPU seconds and bytes of each, and the ratios. All 78 shapes of AITER's August snapshot take
two cores about an hour; --shapes takes that many, spread evenly.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiter_flydsl_prebuild.flydsl.toolchain import find_toolchain, scrubbed_environment
from aiter_flydsl_prebuild.sources.aiter.installed import Installed
from aiter_flydsl_prebuild.sources.aiter.tables import FAMILIES, family_files, merge

ARCH = "gfx950"
TOKENS = "1..32768"
FAMILY = FAMILIES[0]


@dataclass(frozen=True)
class Cost:
    """Seconds of a command and of its processes, and what it printed."""

    wall: float
    cpu: float
    output: str


def run(command: list[str], environment: Mapping[str, str]) -> Cost:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout[-4000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.perf_counter() - started, cpu, done.stdout)


def write_rows(aiter: Installed, shapes: int | None, folder: Path) -> tuple[Path, int, int]:
    """A table of all gfx950 rows of some shapes; how many rows and shapes it has."""
    merged = merge(family_files(aiter, FAMILY, {}), folder / "all.csv")
    with merged.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gfx"] == ARCH]
    order = sorted({(int(row["N"]), int(row["K"])) for row in rows})
    chosen = set(order if shapes is None else order[:: max(1, len(order) // shapes)][:shapes])
    kept = [row for row in rows if (int(row["N"]), int(row["K"])) in chosen]
    table = folder / f"{FAMILY.stem}.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(kept)
    return table, len(kept), len(chosen)


def ours(environment: dict[str, str], folder: Path, workers: int) -> tuple[Cost, int, int, int]:
    """Plan, build and prove; the wheel's kernels, its bytes, and the shapes' token counts that were dispatched."""
    command = [sys.executable, "-m", "aiter_flydsl_prebuild", "build", "--source", "aiter", "--arch", ARCH]
    command += ["--tokens", TOKENS, "--workers", str(workers), "--out", str(folder / "wheel"), "--json"]
    cost = run(command, environment)
    result = json.loads(cost.output)
    return cost, result["kernels"], result["bytes"], result["proof"]["dispatches"]


def theirs(
    environment: dict[str, str], aiter: Installed, table: Path, folder: Path, workers: int
) -> tuple[Cost, int, int]:
    """AITER's command on the same rows: its jobs, and the bytes that it leaves."""
    # Importing it merges several families of tables, unless each variable names one file.
    core = (aiter.package / "jit/core.py").read_text(encoding="utf-8")
    defaults = re.findall(r'getenv\(\s*"(AITER_CONFIG_\w+)",\s*f"\{AITER_ROOT_DIR\}/([^"]+)"', core)
    cache = folder / "cache"
    rocm = folder / "rocm"
    (rocm / ".info").mkdir(parents=True)
    (rocm / ".info" / "version").write_text("7.0.0")
    (rocm / "llvm").symlink_to(Path(environment["ROCM_PATH"], "llvm"))
    environment = {
        **environment,
        **{variable: str(aiter.root / path) for variable, path in defaults},
        "AITER_AOT_IMPORT": "1",
        "AITER_JIT_DIR": str(folder / "jit"),
        "AITER_FLYDSL_AOT_WORKERS": str(workers),
        "GPU_ARCHS": ARCH,
        "FLYDSL_RUNTIME_CACHE_DIR": str(cache),
        "ROCM_PATH": str(rocm),
        "ROCM_HOME": str(rocm),
    }
    cost = run([sys.executable, "-m", "aiter.aot.flydsl.gemm", "--csv", str(table)], environment)
    jobs = re.search(r"Total jobs:\s*(\d+)", cost.output)
    left = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    return cost, int(jobs[1]) if jobs else 0, left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=int, help="how many shapes (default: all)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    checkout = os.environ.get("AITER_SOURCE")
    if not checkout:
        sys.exit("AITER_SOURCE must name a checkout of AITER")
    aiter = Installed(Path(checkout).resolve() / "aiter")
    with tempfile.TemporaryDirectory(prefix="afp-bench-") as name:
        folder = Path(name)
        table, rows, shapes = write_rows(aiter, options.shapes, folder)
        root = find_toolchain().rocm_root
        environment = scrubbed_environment(os.environ, rocm_root=root, arch=ARCH, cache_dir=folder / "unused")
        environment |= {"PYTHONPATH": f"{aiter.root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}
        print(f"{rows} rows of {shapes} shapes for {ARCH}, {options.workers} workers", flush=True)
        mine, kernels, size, dispatches = ours({**environment, FAMILY.variable: str(table)}, folder, options.workers)
        print(f"this project     {kernels:5} kernels  {mine.wall:7.1f} s wall {mine.cpu:7.1f} s CPU {size:12,} bytes")
        print(f"                 proven over {dispatches:,} dispatches (tokens {TOKENS})", flush=True)
        cost, jobs, left = theirs(environment, aiter, table, folder, options.workers)
        print(f"AITER's command  {jobs:5} jobs     {cost.wall:7.1f} s wall {cost.cpu:7.1f} s CPU {left:12,} bytes")
        print(
            f"ratio            {kernels / jobs:5.2f}          {mine.wall / cost.wall:7.2f}        "
            f"{mine.cpu / cost.cpu:7.2f}       {size / left:12.5f}"
        )


if __name__ == "__main__":
    main()
