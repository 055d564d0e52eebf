"""Shared pieces: real FlyDSL, a real linker, a real wheel that is built once for all tests."""

from __future__ import annotations

import json
import os
import shutil
import venv
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.store.store import VARIABLE
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain, find_toolchain
from processes import ROOT, SUPPORT, flydsl_environment, prebuild, run_python
from sharing import Shared

# Tests compile for real, and leave the user's own kernel store alone.
os.environ[VARIABLE] = "off"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """What all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    return Shared((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared")


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """A linker of this machine; the project's test environment always has one (ziglang)."""
    return find_toolchain()


@pytest.fixture(scope="session")
def tiny_entry(toolchain: Toolchain, shared: Shared) -> dict[str, Any]:
    """What FlyDSL leaves for tiny.py: its cache folder, the entry's path below it, and the keys it printed."""

    def make(folder: Path) -> None:
        run = run_python([str(SUPPORT / "tiny.py")], flydsl_environment(toolchain, folder / "cache"))
        assert run.returncode == 0, run.stderr
        (folder / "keys.json").write_text(run.stdout.splitlines()[-1])

    folder = shared.get("tiny", make)
    (entry,) = (folder / "cache").rglob("*.pkl")
    keys = json.loads((folder / "keys.json").read_text())
    return {"root": folder / "cache", "path": entry.relative_to(folder / "cache").as_posix(), **keys}


@pytest.fixture(scope="session")
def project_wheel(shared: Shared) -> Path:
    """This project's own wheel, built from a copy of its tree."""

    def make(folder: Path) -> None:
        away = (".*", "build", "*.egg-info", "__pycache__", "tests", "benchmarks", "docs", "dist")
        shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*away))
        command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
        run = run_python([*command, str(folder / "tree")], dict(os.environ))
        assert run.returncode == 0, run.stderr

    (built,) = shared.get("project", make).glob("*.whl")
    return built


@pytest.fixture(scope="session")
def bare_server(project_wheel: Path, shared: Shared) -> Path:
    """The interpreter of an environment with this project, its requirement, and nothing else."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=False)
        command = ["-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", str(project_wheel)]
        run = run_python(command, dict(os.environ))
        assert run.returncode == 0, run.stderr

    return shared.get("bare", make) / "bin" / "python"


@pytest.fixture(scope="session")
def built_reference(shared: Shared) -> Path:
    """The folders ``dist`` and ``store`` of a build of the reference kernels for few tokens, by the command line."""

    def make(folder: Path) -> None:
        run = prebuild("build", "--tokens", "1..32", "--out", folder / "dist", "--store", folder / "store")
        assert run.returncode == 0, run.stderr

    return shared.get("reference", make)


@pytest.fixture(scope="session")
def wheel(built_reference: Path) -> Path:
    """A wheel of the reference kernels for few tokens, built once by the command line."""
    (built,) = (built_reference / "dist").iterdir()
    return built


@pytest.fixture(scope="session")
def with_kernels(built_reference: Path) -> dict[str, str]:
    """An environment whose kernel store has the reference kernels: for tests of what follows compiling."""
    return {**os.environ, VARIABLE: str(built_reference / "store")}
