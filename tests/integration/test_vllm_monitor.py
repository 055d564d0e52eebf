"""FlyDSL's compiles in vLLM's JIT monitor: real compiles, on a stand-in for vLLM and on vLLM's own file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from processes import SUPPORT, flydsl_environment, run_python

# What a worker does: plugins, a warm-up that compiles, the monitor, and a request that compiles another kernel.
WORKER = """
import importlib, logging, os, sys, types
logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout)
sys.path[:0] = sys.argv[1:]
if source := os.environ.get("VLLM"):
    sys.path.append(source)
    # vLLM asks whether this is the first rank before it warns once; the module that knows needs all of vLLM's packages.
    for name in ("vllm.distributed", "vllm.distributed.parallel_state"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].is_local_first_rank = sys.modules[name].is_global_first_rank = lambda: True
    import vllm
elif (without := os.environ.get("WITHOUT")) is not None:
    import standin_vllm_monitor
    standin_vllm_monitor.install(without)
from aiter_flydsl_prebuild.startup import vllm_plugin
vllm_plugin(), vllm_plugin()
import tiny, flydsl.compiler as flyc, flydsl.expr as fx
tiny.tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), 5, fx.Stream(0))
print("warm")
if how := os.environ.get("HOW"):
    monitor = importlib.import_module("vllm.utils.jit_monitor")
    for _ in range(2):
        if hasattr(monitor, "activate"):
            monitor.activate(mode=how.split()[0], verbose="verbose" in how)
for _ in range(2):
    try:
        tiny.tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), 5, fx.Stream(0))
        import other
        other.other(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), 5, fx.Stream(0))
    except RuntimeError as error:
        print("RuntimeError:", error)
print("served")
"""


pytestmark = pytest.mark.slow


@pytest.fixture(params=["stand-in", "vllm"])
def vllm(request: Any) -> dict[str, str]:
    """vLLM's JIT monitor: this project's stand-in, or its own."""
    if request.param == "stand-in":
        return {"WITHOUT": ""}
    if not (source := os.environ.get("VLLM_SOURCE")):
        pytest.skip("VLLM_SOURCE names no folder with vLLM's files (pip install --no-deps --target FOLDER vllm)")
    return {"VLLM": source}


def work(toolchain: Any, folder: Path, **more: str) -> list[str]:
    """What a worker printed after its warm-up."""
    environment = flydsl_environment(toolchain, folder / "cache", **more)
    (folder / "other.py").write_text((SUPPORT / "tiny.py").read_text().replace("tiny", "other"))
    done: subprocess.CompletedProcess[str] = run_python(["-c", WORKER, str(SUPPORT), str(folder)], environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "FlyDSL" not in "".join(lines[: lines.index("warm")]), "warming up is not reported"
    return lines[lines.index("warm") + 1 :]


@pytest.mark.parametrize("how", ["warn", "warn verbose"])
def test_a_compile_after_warm_up_is_a_warning(toolchain: Any, vllm: dict[str, str], tmp_path: Path, how: str) -> None:
    said = [line for line in work(toolchain, tmp_path, HOW=how, **vllm) if "FlyDSL" in line]
    assert len(said) == 1, said
    assert "FlyDSL kernel compilation during inference: other_kernel_0" in said[0]
    assert ("(launcher=other)" in said[0]) == ("verbose" in how)


def test_in_mode_error_nothing_compiles(toolchain: Any, vllm: dict[str, str], tmp_path: Path) -> None:
    *said, last = work(toolchain, tmp_path, HOW="error", **vllm)
    errors = [line for line in said if line.startswith("RuntimeError")]
    assert len(errors) == 2, said
    assert all("FlyDSL kernel compilation during inference: other_kernel_0" in error for error in errors)
    assert last == "served"
    assert len(list((tmp_path / "cache").rglob("*.pkl"))) == 1, "the kernel of the warm-up"


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_without_its_private_function_the_same_is_said(toolchain: Any, tmp_path: Path, mode: str) -> None:
    *said, last = work(toolchain, tmp_path, HOW=mode, WITHOUT="_handle_jit_event")
    start = "RuntimeError: " if mode == "error" else "aiter_flydsl_prebuild: aiter-flydsl-prebuild: "
    line = f"{start}FlyDSL kernel compilation during inference: other_kernel_0 (launcher=other)"
    assert said == [line] * (2 if mode == "error" else 1), "what was refused is not in the cache"
    assert last == "served"


@pytest.mark.parametrize("without", ["activate", None])
def test_a_vllm_without_the_monitor_serves(toolchain: Any, tmp_path: Path, without: str | None) -> None:
    more = {} if without is None else {"WITHOUT": without, "HOW": "warn"}
    assert work(toolchain, tmp_path, **more) == ["served"]
