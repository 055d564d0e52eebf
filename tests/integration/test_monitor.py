"""The monitor, in real processes with the FlyDSL that is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from processes import SUPPORT, flydsl_environment, run_python

SCRIPT = """
import logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
import aiter_flydsl_prebuild
monitor = aiter_flydsl_prebuild.watch()
assert aiter_flydsl_prebuild.watch() is monitor
sys.path.insert(0, sys.argv[1])
import tiny, flydsl.compiler as flyc, flydsl.expr as fx
for count in (5, 6):
    tiny.tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), count, fx.Stream(0))
print(monitor.found, monitor.compiled)
"""


@pytest.mark.slow
def test_compiles_and_hits_are_counted_and_logged(toolchain: Any, tmp_path: Path) -> None:
    log = tmp_path / "compiles.jsonl"
    environment = flydsl_environment(toolchain, tmp_path / "cache", AITER_FLYDSL_PREBUILD_LOG=str(log))
    first = run_python(["-c", SCRIPT, str(SUPPORT)], environment)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == "0 1"
    assert "aiter-flydsl-prebuild: FlyDSL compiled tiny_kernel_0" in first.stdout
    (event,) = map(json.loads, log.read_text().splitlines())
    assert (event["launcher"], event["kernels"]) == ("tiny", ["tiny_kernel_0"])
    assert 5 in event["arguments"]
    assert event["seconds"] > 0
    second = run_python(["-c", SCRIPT, str(SUPPORT)], environment)
    assert second.stdout.splitlines()[-1] == "1 0"
    assert len(log.read_text().splitlines()) == 1


def test_a_log_that_cannot_be_written_is_one_warning(toolchain: Any, tmp_path: Path) -> None:
    environment = flydsl_environment(toolchain, tmp_path / "cache", AITER_FLYDSL_PREBUILD_LOG=str(tmp_path))
    run = run_python(["-c", SCRIPT, str(SUPPORT)], environment)
    assert run.returncode == 0, run.stderr
    assert "cannot write to" in run.stdout
