"""Which form of a payload costs less at a kernel's first call: plain ir_text, or ir_zlib as FlyDSL writes it itself.

    python benchmarks/bench_payload_form.py [--python PYTHON ...] [--rounds 9]

For each PYTHON (an environment with some FlyDSL and this project; default: this one): the real FlyDSL of it finds a
kernel (compiling forbidden, nothing launched) in a launcher's folder of 1 and of 723 entries, in a fresh process, the
files in the page cache and dropped from it. Prints milliseconds of that call, least and median, the folder's bytes, and
what writing the form costs the loader. FlyDSL up to 0.4 reads all entries of the folder at its first use.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import kernels
from aiter_flydsl_prebuild.flydsl import cache
from aiter_flydsl_prebuild.flydsl.toolchain import find_toolchain, scrubbed_environment

TESTS = Path(__file__).parent.parent / "tests" / "support"
ENTRIES = (1, 723)
FORMS = ("ir_text", "ir_zlib")

CALL = """
import sys, time
sys.path.insert(0, sys.argv[1])
import flydsl, flydsl.compiler as flyc, flydsl.expr as fx, tiny
argument, stream = flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), fx.Stream(0)
started = time.perf_counter()
tiny.tiny(argument, 5, stream)
print(time.perf_counter() - started, flydsl.__version__)
"""


def encode(entry: cache.Entry, form: str) -> bytes:
    """An entry in a form; the compressed one as FlyDSL's ``CompiledArtifact.__getstate__`` makes it."""
    plain = cache.encode_entry(entry)
    if form == "ir_text":
        return plain
    import pickle

    state = {**entry.fields, "ir_zlib": zlib.compress(entry.ir_text.encode())}
    head = plain[: plain.index(b")\x81") + 2]
    return head + pickle.dumps(state, protocol=3)[2:-1] + b"b."


def lay_out(folder: Path, source: Path, form: str, count: int) -> tuple[int, float]:
    """A launcher's folder with the real entry and ``count - 1`` made-up ones; its bytes, and the seconds to encode."""
    (real,) = source.rglob("*.pkl")
    target = folder / real.relative_to(source)
    target.parent.mkdir(parents=True)
    entry = cache.decode_entry(real.read_bytes())
    texts = [entry.ir_text, *itertools.islice(kernels.texts(count), count - 1)]
    started = time.perf_counter()
    data = [encode(cache.Entry(text, entry.fields), form) for text in texts]
    seconds = time.perf_counter() - started
    for index, content in enumerate(data):
        name = real.name if index == 0 else f"{index:0{len(real.stem)}x}.pkl"
        (target.parent / name).write_bytes(content)
    return sum(map(len, data)), seconds


def drop(folder: Path) -> None:
    """Have the folder's files read from the disk again."""
    os.sync()
    for path in folder.rglob("*.pkl"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def first_call(python: str, environ: dict[str, str], folder: Path, run_only: str = "1") -> tuple[float, str]:
    """Seconds of the first call in a fresh process, and FlyDSL's version."""
    for lock in folder.rglob("*.lock"):
        lock.unlink()
    environ = {**environ, "FLYDSL_RUNTIME_CACHE_DIR": str(folder), "FLYDSL_RUNTIME_RUN_ONLY": run_only}
    run = subprocess.run(
        [python, "-c", CALL, str(TESTS)], env=environ, capture_output=True, text=True, check=True, cwd="/"
    )
    seconds, version = run.stdout.split()
    return float(seconds), version


def measure(python: str, rounds: int) -> None:
    """All forms and sizes with one FlyDSL, taking turns."""
    with tempfile.TemporaryDirectory(prefix="bench-form-") as name:
        root = Path(name)
        environ = scrubbed_environment(
            os.environ, rocm_root=find_toolchain().rocm_root, arch="gfx950", cache_dir=root / "source"
        )
        environ["COMPILE_ONLY"] = "1"
        first_call(python, environ, root / "source", run_only="0")
        cases = list(itertools.product(ENTRIES, FORMS, (False, True)))
        written: dict[tuple[int, str], tuple[int, float]] = {}
        for count, form in itertools.product(ENTRIES, FORMS):
            written[count, form] = lay_out(root / f"{form}-{count}", root / "source", form, count)
        seconds: dict[tuple[int, str, bool], list[float]] = {case: [] for case in cases}
        version = ""
        for _ in range(rounds):
            for count, form, cold in cases:
                folder = root / f"{form}-{count}"
                if cold:
                    drop(folder)
                taken, version = first_call(python, environ, folder)
                seconds[count, form, cold].append(taken)
        print(f"FlyDSL {version}: milliseconds of the first call (least, median)")
        print(f"{'entries':>8} {'form':8} {'page cache':>16} {'from disk':>16} {'MB':>7} {'ms to encode':>13}")
        for count, form in itertools.product(ENTRIES, FORMS):
            size, encoding = written[count, form]
            warm, cold = (numbers(seconds[count, form, state]) for state in (False, True))
            print(f"{count:8} {form:8} {warm:>16} {cold:>16} {size / 1e6:7.2f} {1000 * encoding:13.1f}")


def numbers(seconds: list[float]) -> str:
    """Least and median in milliseconds."""
    return f"{1000 * min(seconds):.1f} {1000 * statistics.median(seconds):.1f}"


def main() -> None:
    """Measure each environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for python in options.python:
        measure(python, options.rounds)


if __name__ == "__main__":
    main()
