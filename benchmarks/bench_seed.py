"""What the loader costs a process, against `python -c pass` and a bare copy of the same files in the same run.

    python benchmarks/bench_seed.py [--kernels 500] [--rounds 25]

Each number is of a fresh process, which measures itself from its first statement on; the processes of all kinds take
turns. Prints wall and CPU time (the process's own, the system's work for it included), the least and the median of the
rounds, and ends with 1 where the least CPU time is over its budget: whatever else runs on the machine can only add, and
adds more to the wall time.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

import kernels

ROOT = Path(__file__).parent.parent

BEGIN = "from time import perf_counter, process_time; _t, _c = perf_counter(), process_time()\n"
END = "\nprint(perf_counter() - _t, process_time() - _c)"
SEED = "import aiter_flydsl_prebuild as p; r = p.seed()"
STARTUP = "import aiter_flydsl_prebuild.startup; aiter_flydsl_prebuild.startup.at_startup()"
# What every server has loaded long before: torch imports all of it.
LOADED = "import contextlib, errno, hashlib, json, logging, pickle, re, stat, struct, typing, zlib\n"
COPY = (
    "import os, shutil\n"
    "for name in os.listdir(source := os.environ['BENCH_SOURCE']):\n"
    "    os.makedirs(target := os.path.join(os.environ['FLYDSL_RUNTIME_CACHE_DIR'], name))\n"
    "    for file in os.listdir(os.path.join(source, name)):\n"
    "        shutil.copyfile(os.path.join(source, name, file), os.path.join(target, file))"
)


class Case:
    """A script, what it must find loaded or gone, and what was measured of it and of its whole process."""

    def __init__(
        self, name: str, script: str, *, before: str = "", fresh: bool = False, gpu: bool = True, mode: str = "on"
    ) -> None:
        self.name = name
        self.script = before + BEGIN + script + END
        self.fresh = fresh
        self.gpu = gpu
        self.variables = {"AITER_FLYDSL_PREBUILD": mode}
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.process: list[float] = []


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--folder", help="where to work, for another file system than the temporary folder's")
    options = parser.parse_args()
    count = options.kernels
    passing = Case("python -c pass", "pass")
    importing = Case("import aiter_flydsl_prebuild", "import aiter_flydsl_prebuild")
    second = Case(f"second start, {count} kernels", SEED)
    strict = Case("the same in strict mode", SEED, mode="strict")
    full = Case("second start, with any option (the long way)", "import aiter_flydsl_prebuild.seeding as s; s.seed()")
    loaded = Case(
        "the same in a process that has json, re, ...",
        "import aiter_flydsl_prebuild.seeding as s; s.seed()",
        before=LOADED,
    )
    no_gpu = Case("start-up file, no GPU", STARTUP, gpu=False)
    in_place = Case(f"start-up file, {count} kernels in place", STARTUP)
    copy = Case(f"plain copy of {count} files", COPY, fresh=True)
    first = Case(f"first seeding of {count} kernels", SEED, fresh=True)
    warm = Case("the same in a process that has json, re, ...", SEED, before=LOADED, fresh=True)
    cases = [passing, importing, second, strict, full, loaded, no_gpu, in_place, copy, first, warm]

    with tempfile.TemporaryDirectory(prefix="bench-seed-", dir=options.folder) as folder:
        root = Path(folder)
        pack = kernels.make(root / "a.fkpack", count)
        # As installed: with byte code, and what others do to the source tree meanwhile does not show.
        shutil.copytree(ROOT / "aiter_flydsl_prebuild", root / "site" / "aiter_flydsl_prebuild")
        compileall.compile_dir(root / "site", quiet=2)
        # An editable install in this environment would load pathlib, re and more into every process before it measures.
        venv.create(root / "venv")
        python = str(root / "venv" / "bin" / "python")
        ours = ("FLYDSL_", "AITER_", "PYTHON")
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
            "PYTHONPATH": os.pathsep.join([str(root / "site"), sysconfig.get_path("purelib")]),
            "HOME": str(root / "home"),
            "AITER_FLYDSL_PREBUILD_PACKS": str(pack),
            "ROCM_PATH": str(root / "rocm"),
        }
        (root / "home").mkdir()
        with_gpu = {**environ, "AITER_FLYDSL_PREBUILD_ARCH": "gfx950"}
        run(python, SEED, {**with_gpu, "AITER_FLYDSL_PREBUILD": "strict"})
        seeded = root / "home" / ".flydsl" / "cache"
        files = list(seeded.rglob("*.pkl"))
        size = sum(path.stat().st_size for path in files)
        shutil.copytree(seeded, root / "source", ignore=shutil.ignore_patterns(".*"))
        print(f"{len(files)} files of {size / len(files) / 1000:.1f} KB, pack {pack.stat().st_size / 1e6:.2f} MB")
        for _ in range(options.rounds):
            for case in cases:
                environment = with_gpu if case.gpu else environ
                if case.fresh:
                    fresh = root / "fresh"
                    shutil.rmtree(fresh, ignore_errors=True)
                    source = {"FLYDSL_RUNTIME_CACHE_DIR": str(fresh), "BENCH_SOURCE": str(root / "source")}
                    environment = {**environment, **source}
                begun = time.perf_counter()
                wall, cpu = map(float, run(python, case.script, {**environment, **case.variables}).split())
                case.process.append(time.perf_counter() - begun)
                case.seconds.append(wall)
                case.cpu.append(cpu)

    whole = min(passing.process)
    print(f"python -c pass takes {1000 * whole:.1f} ms, a start of nothing else than the interpreter")
    print(f"{'milliseconds':48}{'wall':>16}{'CPU':>16}{'x pass':>8}")
    for case in cases:
        print(f"{case.name:48}{numbers(case.seconds):>16}{numbers(case.cpu):>16}{min(case.cpu) / whole:8.3f}")
    ratio = min(first.cpu) / min(copy.cpu)
    print(
        f"first seeding / plain copy: {ratio:.2f} of CPU time, {ratio_of_medians(first, copy):.2f} of median wall time"
    )
    budgets = [
        ("importing the package adds under 10 ms", min(importing.cpu), 0.010),
        (f"the second start adds under 3 ms for {count} kernels", min(second.cpu), 0.003),
        ("the start-up file costs under 1 ms without a GPU", min(no_gpu.cpu), 0.001),
        ("the start-up file costs under 1 ms with all in place", min(in_place.cpu), 0.001),
        (f"a first seeding of {count} kernels takes under 2 plain copies", ratio, 2.0),
    ]
    for text, value, budget in budgets:
        print(f"{'ok  ' if value < budget else 'OVER'}  {text}")
    return int(any(value >= budget for _, value, budget in budgets))


def numbers(seconds: list[float]) -> str:
    """Least and median in milliseconds."""
    return f"{1000 * min(seconds):.2f} {1000 * statistics.median(seconds):.2f}"


def ratio_of_medians(one: Case, other: Case) -> float:
    """How many times the median of the other a case takes."""
    return statistics.median(one.seconds) / statistics.median(other.seconds)


def run(python: str, script: str, environ: dict[str, str]) -> str:
    """The last line that a fresh process prints."""
    done = subprocess.run([python, "-c", script], env=environ, capture_output=True, text=True, check=True, cwd="/")
    return (done.stdout.splitlines() or [""])[-1]


if __name__ == "__main__":
    sys.exit(main())
