"""What a kernel's first call costs once its entry is in the cache: trace or table, engine or launcher, in one run.

    python benchmarks/bench_first_call.py [--flydsl 0.3.4.1 0.5.0] [--tokens 1..16] [--rounds 3]

Builds the reference kernels of some token counts with each FlyDSL (an environment of its own, as the tests make them),
and lets fresh processes seed and call each kernel twice, in the plain way, with a HIP library that does nothing. The
processes of all kinds take turns. Prints milliseconds, median and maximum over kernels and rounds, of wall time and of
the thread's CPU time; what a process pays once, at FlyDSL's import, is a column of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import fake_hip  # noqa: E402
from test_matrix import environment_of  # noqa: E402

from aiter_flydsl_prebuild.builder.toolchain import find_toolchain, worker_environment  # noqa: E402

ARCH = "gfx950"

# The parts of a first call that this project takes over, by what switches them off.
KINDS = {
    "FlyDSL alone": {"AITER_FLYDSL_PREBUILD_LOOKUP": "off", "AITER_FLYDSL_PREBUILD_LAUNCHERS": "off"},
    "table": {"AITER_FLYDSL_PREBUILD_LAUNCHERS": "off"},
    "launchers": {"AITER_FLYDSL_PREBUILD_LOOKUP": "off"},
    "table and launchers": {},
}

SERVE = """
import json, sys, time
import aiter_flydsl_prebuild
report = aiter_flydsl_prebuild.seed()
import torch
begun = time.thread_time()
import flydsl.compiler
imported = time.thread_time() - begun
import flydsl.compiler as flyc
import flydsl.expr as fx
from aiter_flydsl_prebuild.pack import Pack
from aiter_flydsl_prebuild.sources.reference.grammar import parse
from aiter_flydsl_prebuild.sources.reference.kernel import launcher
arguments = [flyc.from_c_void_p(fx.Uint8, 4096 * i, assumed_align=16) for i in range(1, 6)]
arguments += [1, fx.Stream(0)]
calls = []
for kernel in Pack(report.packs[0].path).kernels:
    call = launcher(parse(kernel.name), kernel.n, kernel.k)
    for _ in range(2):
        wall, cpu = time.perf_counter(), time.thread_time()
        call(*arguments)
        calls.append((time.perf_counter() - wall, time.thread_time() - cpu))
from aiter_flydsl_prebuild.flydsl import enable, lookup
print(json.dumps({
    "first": calls[::2], "second": calls[1::2], "import": imported, "table": lookup.counts.table,
    "launchers": sum(library.taken for library in enable.libraries),
}))
"""


def main() -> int:
    """Build, serve, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flydsl", nargs="+", default=["0.3.4.1", "0.5.0"], metavar="VERSION")
    parser.add_argument("--tokens", default="1..16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", type=Path, help="where to keep FlyDSL's environments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-first-call-") as name:
        folder = Path(name)
        (folder / "hip").mkdir()
        hip = fake_hip.build(folder / "hip")
        environments = options.environments or folder / "environments"
        environments.mkdir(exist_ok=True)
        for version in options.flydsl:
            python = environment_of(version, environments)
            wheel = build(python, folder / version, options)
            found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
            for _ in range(options.rounds):
                for kind in found:
                    found[kind].append(serve(python, folder / version, wheel, hip, KINDS[kind]))
            show(version, found)
    return 0


def environment(folder: Path) -> dict[str, str]:
    """That of a build worker."""
    return worker_environment(os.environ, rocm_root=find_toolchain().rocm_root, arch=ARCH, folder=folder)


def build(python: Path, folder: Path, options: argparse.Namespace) -> Path:
    """A pack of kernels; its path."""
    folder.mkdir()
    command = [str(python), "-m", "aiter_flydsl_prebuild", "build", "--source", "reference", "--arch", ARCH]
    command += ["--tokens", options.tokens, "--out", str(folder), "--store", "off"]
    subprocess.run(command, env={**environment(folder), "HOME": str(folder)}, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(target)], check=True)
    (pack,) = target.rglob("*.fkpack")
    return pack


def serve(python: Path, folder: Path, pack: Path, hip: Path, switches: dict[str, str]) -> dict[str, Any]:
    """One process that calls each kernel twice."""
    variables = environment(folder)
    del variables["COMPILE_ONLY"]
    variables |= {
        **switches,
        "LD_LIBRARY_PATH": str(hip),
        "FLYDSL_RUNTIME_CACHE_DIR": str(folder / "cache"),
        "FLYDSL_RUNTIME_RUN_ONLY": "1",
        "AITER_FLYDSL_PREBUILD_PACKS": str(pack),
        "AITER_FLYDSL_PREBUILD_ARCH": ARCH,
    }
    run = subprocess.run([str(python), "-c", SERVE], env=variables, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def show(version: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """A table of one FlyDSL."""
    print(f"flydsl {version}, {len(next(iter(found.values()))[0]['first'])} kernels, ms: median / maximum")
    print(f"{'':22}{'first, wall':>18}{'first, CPU':>18}{'second, CPU':>18}{'import, CPU':>14}  by table, launcher")
    for kind, runs in found.items():
        cells = []
        for which, index in (("first", 0), ("first", 1), ("second", 1)):
            values = [call[index] * 1e3 for run in runs for call in run[which]]
            cells.append(f"{statistics.median(values):.2f} / {max(values):.1f}")
        imported = statistics.median(run["import"] * 1e3 for run in runs)
        taken = f"{runs[0]['table']}, {runs[0]['launchers']}"
        print(f"{kind:22}{cells[0]:>18}{cells[1]:>18}{cells[2]:>18}{imported:>14.0f}  {taken}")


if __name__ == "__main__":
    sys.exit(main())
