"""The benchmark of builds, in short and on the reference kernels: every way to build gives the same wheel."""

from __future__ import annotations

import os

import pytest

from processes import ROOT, run_python

pytestmark = pytest.mark.slow


def test_every_way_to_build_in_short() -> None:
    script = ROOT / "benchmarks" / "bench_build.py"
    options = ("--reference", "--tokens", "1..1", "--parts", "2", "--workers", "2")
    done = run_python([str(script), *options], dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line[:34].strip(): line[34:].split() for line in done.stdout.splitlines()}
    ways = ("full build", "2 parts, merged and proven", "Dask cluster on this machine", "bare calls")
    assert [lines[way][0] for way in ways] == ["18"] * len(ways)
    assert lines["unchanged"][0] == "0"
    assert "4 wheels, 1 different" in done.stdout
