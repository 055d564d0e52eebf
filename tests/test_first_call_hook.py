"""Standing by for FlyDSL's import: nothing is loaded before, and a FlyDSL that is not known is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WAITING = """
import sys
from aiter_flydsl_prebuild.flydsl.hook import arm
arm(lambda: print("asked") or [])
before = set(sys.modules)
import json, email
print([name for name in sys.modules if name.startswith("aiter_flydsl_prebuild.flydsl.")])
"""

# A FlyDSL of these tests: a package whose only module is the awaited one.
IMPORTING = """
import logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from aiter_flydsl_prebuild.flydsl import hook
hook.arm(lambda: [sys.argv[1]])
import flydsl.compiler.jit_function as jit
print(jit.JitFunction._compile_or_execute.__module__, type(jit.__loader__).__name__)
print(any(type(finder).__name__ == "_Waiting" for finder in sys.meta_path))
"""


def run(script: str, folder: Path) -> str:
    command = [sys.executable, "-c", script, str(folder / "stamp")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    folder = tmp_path / "flydsl" / "compiler"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "jit_function.py").write_text(
        "from . import jit_executor\nclass JitFunction:\n    def _compile_or_execute(self): pass\n"
    )
    (folder / "jit_executor.py").write_text("class CompiledArtifact:\n    def _get_func_exe(self): pass\n")
    return tmp_path


def test_a_process_without_flydsl_loads_nothing(tmp_path: Path) -> None:
    assert run(WAITING, tmp_path) == "['aiter_flydsl_prebuild.flydsl.hook']\n"


def test_an_unknown_flydsl_gets_no_patch_and_a_line(unknown: Path) -> None:
    (unknown / "stamp.lookup").write_text(
        f'{{"abi": "{sys.implementation.cache_tag}", "guards": {{}}, "launchers": {{}}}}'
    )
    for name in ("stamp.so", "stamp.so.json"):
        (unknown / name).touch()
    lines = run(IMPORTING, unknown).splitlines()
    assert lines == [
        "aiter-flydsl-prebuild: look-up tables are not used: this FlyDSL's compiler/jit_function.py is not one that is "
        "known here",
        "aiter-flydsl-prebuild: launchers are not used: this FlyDSL loads its kernels in a way that is not known here",
        "flydsl.compiler.jit_function SourceFileLoader",
        "False",
    ]


def test_a_damaged_table_is_a_line(unknown: Path) -> None:
    (unknown / "stamp.lookup").write_text("{")
    first, *rest = run(IMPORTING, unknown).splitlines()
    assert "stamp.lookup: a damaged table is not used" in first
    assert rest == ["flydsl.compiler.jit_function SourceFileLoader", "False"]
