"""Shared pieces: real FlyDSL, a real linker, a real wheel that is built once for all tests."""

from __future__ import annotations

import json
import os
import shutil
import venv
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.toolchain import Toolchain, find_toolchain
from processes import ROOT, SUPPORT, flydsl_environment, prebuild, run_python

# Tests compile for real, and leave the user's own kernel store alone.
os.environ["AITER_FLYDSL_PREBUILD_STORE"] = "off"


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """A linker of this machine; the project's test environment always has one (ziglang)."""
    return find_toolchain()


@pytest.fixture(scope="session")
def tiny_entry(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What FlyDSL leaves for tiny.py: its cache folder, the entry's path below it, and the keys it printed."""
    folder = tmp_path_factory.mktemp("tiny")
    run = run_python([str(SUPPORT / "tiny.py")], flydsl_environment(toolchain, folder))
    assert run.returncode == 0, run.stderr
    (entry,) = folder.rglob("*.pkl")
    return {"root": folder, "path": entry.relative_to(folder).as_posix(), **json.loads(run.stdout.splitlines()[-1])}


@pytest.fixture(scope="session")
def project_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project's own wheel, built from a copy of its tree."""
    folder = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "benchmarks", "docs", "dist")
    shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    run = run_python([*command, str(folder / "tree")], dict(os.environ))
    assert run.returncode == 0, run.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def bare_server(project_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with this project, its requirement, and nothing else."""
    root = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    run = run_python(["-m", "pip", "--python", str(python), "install", "--quiet", str(project_wheel)], dict(os.environ))
    assert run.returncode == 0, run.stderr
    return python


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the reference kernels for few tokens, built once by the command line."""
    out = tmp_path_factory.mktemp("dist")
    run = prebuild("build", "--tokens", "1..32", "--out", out, "--json")
    assert run.returncode == 0, run.stderr
    return Path(json.loads(run.stdout)["wheel"])
