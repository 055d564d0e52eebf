"""Replays what the fuzzer of fuzz_pack.py kept; needs neither the fuzzer nor FlyDSL."""

from __future__ import annotations

import subprocess
import sys

import fuzz_pack
from processes import SUPPORT

# In a process of its own: an audit hook cannot be taken away again.
REPLAY = """
import sys, tempfile
from pathlib import Path
import fuzz_pack
fuzz_pack.stub_toolchain()
with tempfile.TemporaryDirectory() as folder:
    sandbox = fuzz_pack.Sandbox(Path(folder))
    results = [fuzz_pack.try_input(path.read_bytes(), sandbox) for path in sorted(fuzz_pack.CORPUS.iterdir())]
print(len(results), results.count("taken"))
"""


def test_the_corpus() -> None:
    run = subprocess.run(
        [sys.executable, "-c", REPLAY], cwd=SUPPORT, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    count, taken = map(int, run.stdout.split())
    assert count > 50
    assert taken > 5


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in fuzz_pack.CORPUS.iterdir()) < 200_000
