"""What a build costs in a pipeline, on AITER's real gfx950 rows or on the reference kernels, all in one run.

    AITER_SOURCE=CHECKOUT python benchmarks/bench_build.py [--shapes N] [--workers N] [--parts 4]
    python benchmarks/bench_build.py --reference [--tokens 1..64]

Prints, for each way to build the same wheel, what was compiled, wall and CPU seconds (of all processes), and the ratio
to the full build: full, unchanged, one kernel's source touched, parts merged, a Dask cluster on this machine,
and beside them the same compiles as bare calls of the source in as many processes, and (AITER's rows) AITER's own
ahead-of-time command. Wheels are compared. All rows of AITER's August snapshot take two cores more than an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiter_flydsl_prebuild.flydsl.toolchain import find_toolchain, scrubbed_environment
from aiter_flydsl_prebuild.sources.aiter.installed import Installed
from bench_aiter import ARCH, FAMILY, Cost, run, theirs, write_rows

TOUCHED = "ops/flydsl/gemm_a8w8_bpreshuffle_8wave.py"
"""What the 8-wave kernels are made by, and the others of the family are not."""

# Every job's call in this process, into one cache folder: what the kernels cost without anything of this project.
BARE = """
import sys
from aiter_flydsl_prebuild.sources.planning import plan_source
from aiter_flydsl_prebuild.dispatch.reach import parse_tokens
from aiter_flydsl_prebuild.sources import load_source
from aiter_flydsl_prebuild.model.job import Options
name, tokens, index, of = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
source = load_source(name, Options(models=("none",) if name == "aiter" else ()))
jobs = plan_source(source, arch="gfx950", cu_num=(), tokens=parse_tokens(tokens)).jobs[index::of]
for job in jobs:
    source.compile(job)
print(len(jobs))
"""

CLUSTER = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
    from aiter_flydsl_prebuild.cli.main import main
    sys.exit(main([*sys.argv[2:], "--scheduler", cluster.scheduler_address]))
"""


@dataclass(frozen=True)
class Line:
    """One way to build: what was compiled, what it cost, and the wheel."""

    name: str
    kernels: int
    cost: Cost
    wheel: bytes | None


class Bench:
    """The folders and the environment of a run, and how a build is started."""

    def __init__(self, folder: Path, environment: dict[str, str], select: list[str], workers: int) -> None:
        self.folder = folder
        self.environment = environment
        self.select = select
        self.workers = workers
        self.lines: list[Line] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "aiter_flydsl_prebuild", *arguments, "--json"]

    def build(
        self, name: str, *arguments: str, start: Callable[[list[str]], list[str]] | None = None
    ) -> dict[str, Any]:
        """Build, print and keep a line; returns what build said."""
        out = self.folder / "out" / name.replace(" ", "-")
        command = self.command("build", *self.select, "--out", str(out), *arguments)
        cost = run(start(command) if start else command, self.environment)
        said: dict[str, Any] = json.loads(cost.output)
        self.add(name, said["compiled"], cost, Path(said["wheel"]) if said["wheel"] else None)
        return said

    def add(self, name: str, kernels: int, cost: Cost, wheel: Path | None = None) -> None:
        line = Line(name, kernels, cost, wheel.read_bytes() if wheel else None)
        self.lines.append(line)
        full = self.lines[0].cost
        ratios = f"{cost.wall / full.wall:8.3f} {cost.cpu / full.cpu:8.3f}"
        print(f"{name:34}{kernels:8} {cost.wall:10.1f} {cost.cpu:10.1f} {ratios}", flush=True)

    def parts(self, count: int) -> None:
        """All parts of a build one after the other, without a store, and their merging."""
        walls, cpus, compiled, made = [], [], 0, []
        for index in range(1, count + 1):
            arguments = ("--shard", f"{index}/{count}", "--store", "off", "--workers", str(self.workers))
            out = str(self.folder / "parts")
            cost = run(self.command("build", *self.select, "--out", out, *arguments), self.environment)
            said = json.loads(cost.output)
            walls.append(cost.wall)
            cpus.append(cost.cpu)
            compiled += said["compiled"]
            made.append(said["part"])
        merging = run(self.command("merge", *made, "--out", str(self.folder / "merged")), self.environment)
        wheel = Path(json.loads(merging.output)["wheel"])
        total = Cost(sum(walls) + merging.wall, sum(cpus) + merging.cpu, "")
        self.add(f"{count} parts, merged and proven", compiled, total, wheel)
        print(
            f"{'':34}the longest part {max(walls):.1f} s, the shortest {min(walls):.1f} s, merge {merging.wall:.1f} s"
        )

    def bare(self, tokens: str) -> Cost:
        """The same compiles as plain calls, in as many processes as the build has workers."""
        script = self.folder / "bare.py"
        script.write_text(BARE)
        workers = " & ".join(
            f"FLYDSL_RUNTIME_CACHE_DIR={self.folder}/bare-{index} {sys.executable} {script} {self.select[1]} {tokens} "
            f"{index} {self.workers}"
            for index in range(self.workers)
        )
        environment = {**self.environment, "COMPILE_ONLY": "1"}
        cost = run(["bash", "-c", f"{workers} & wait"], environment)
        self.add("bare calls", sum(map(int, cost.output.split())), cost)
        return cost


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", action="store_true", help="the reference kernels, which need no AITER")
    parser.add_argument("--shapes", type=int, help="how many of AITER's shapes (default: all)")
    parser.add_argument("--tokens", help="token counts (default: 1..32768, of the reference kernels 1..64)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--parts", type=int, default=4)
    options = parser.parse_args()
    checkout = os.environ.get("AITER_SOURCE")
    if not options.reference and not checkout:
        sys.exit("AITER_SOURCE must name a checkout of AITER; --reference needs none")
    tokens = options.tokens or ("1..64" if options.reference else "1..32768")
    with tempfile.TemporaryDirectory(prefix="afp-bench-") as name:
        folder = Path(name)
        root = find_toolchain().rocm_root
        environment = scrubbed_environment(os.environ, rocm_root=root, arch=ARCH, cache_dir=folder / "unused")
        environment["AITER_FLYDSL_PREBUILD_STORE"] = "off"
        select = ["--source", "reference", "--arch", ARCH, "--tokens", tokens]
        aiter, table = None, None
        if not options.reference:
            # A copy, for one of its files is touched.
            shutil.copytree(Path(str(checkout)).resolve() / "aiter", folder / "aiter-copy" / "aiter", symlinks=True)
            for other in ("csrc", ".git"):
                if (path := Path(str(checkout)).resolve() / other).exists():
                    (folder / "aiter-copy" / other).symlink_to(path)
            aiter = Installed(folder / "aiter-copy" / "aiter")
            table, rows, shapes = write_rows(aiter, options.shapes, folder)
            path = f"{aiter.root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
            environment |= {"PYTHONPATH": path, FAMILY.variable: str(table)}
            select = ["--source", "aiter", "--models", "none", "--kinds", "a8w8_bpreshuffle", *select[2:]]
            print(f"{rows} rows of {shapes} shapes for {ARCH}, tokens {tokens}, {options.workers} workers")
        measure(Bench(folder, environment, select, options.workers), options, tokens, aiter, table)
    return 0


def measure(
    bench: Bench, options: argparse.Namespace, tokens: str, aiter: Installed | None, table: Path | None
) -> None:
    """Every way to build, one after the other."""
    print(f"{'':34}{'compiled':>8} {'wall s':>10} {'CPU s':>10} {'x full':>8} {'x CPU':>8}")
    store = ("--store", str(bench.folder / "store"), "--workers", str(options.workers))
    full = bench.build("full build", *store)
    bench.build("unchanged", *store)
    if aiter is not None:
        touched = aiter.package / TOUCHED
        before = touched.read_bytes()
        touched.write_bytes(before + b"\n# touched\n")
        bench.build("one kernel's source touched", *store)
        touched.write_bytes(before)
        bench.lines[-1] = Line(bench.lines[-1].name, bench.lines[-1].kernels, bench.lines[-1].cost, None)
    bench.parts(options.parts)
    cluster = ["--store", "off"]

    def on_cluster(command: list[str]) -> list[str]:
        return [sys.executable, "-c", CLUSTER, str(options.workers), *command[3:]]

    bench.build("Dask cluster on this machine", *cluster, start=on_cluster)
    bare = bench.bare(tokens)
    if aiter is not None and table is not None:
        cost, jobs, _ = theirs(bench.environment, aiter, table, bench.folder, options.workers)
        bench.add("AITER's own command", jobs, cost)
    wheels = {line.wheel for line in bench.lines if line.wheel is not None}
    print(f"{len([line for line in bench.lines if line.wheel])} wheels, {len(wheels)} different")
    compiling = sum(full["seconds_of"].values())
    without_proof = bench.lines[0].cost.cpu - full["proof"]["seconds"]
    print(f"CPU of the full build without its proof, over bare calls: {without_proof / bare.cpu:.3f}")
    print(f"seconds inside the compiles: {compiling:.1f} of {without_proof:.1f} CPU")


if __name__ == "__main__":
    sys.exit(main())
