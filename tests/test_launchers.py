"""Launchers against FlyDSL's own engine, for every release: what reaches the HIP library is the same to the byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import fake_hip
import pytest
from test_matrix import VERSIONS, environment_of

from aiter_flydsl_prebuild.builder.toolchain import Toolchain
from aiter_flydsl_prebuild.flydsl.launchers import embedded_binary
from conftest import HERE, flydsl_environment, run_python


class Made:
    """A folder with a cache of kernels and the library of their launchers."""

    def __init__(self, python: Path, folder: Path, toolchain: Toolchain, hip: Path) -> None:
        self.folder = folder
        self._python = python
        self._environment = flydsl_environment(toolchain, folder / "cache")
        self.made = self.run("make", str(toolchain.ld_lld))
        del self._environment["COMPILE_ONLY"]
        self._environment["LD_LIBRARY_PATH"] = str(hip)

    def run(self, command: str, *arguments: str) -> dict[str, Any]:
        script = [str(HERE / "launch_process.py"), command, str(self.folder), *arguments]
        run = run_python(script, self._environment, self._python, cwd=self.folder)
        assert run.returncode == 0, run.stderr[-3000:]
        found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="module", params=VERSIONS)
def made(request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Made:
    assert request.config.cache is not None
    try:
        hip = fake_hip.build(tmp_path_factory.mktemp("hip"))
    except OSError as error:
        pytest.skip(f"no C compiler: {error}")
    python = environment_of(request.param, request.config.cache.mkdir("flydsl"))
    found = Made(python, tmp_path_factory.mktemp("launchers"), toolchain, hip)
    assert found.made["version"] == request.param
    return found


def test_a_launcher_launches_what_the_engine_launches(made: Made) -> None:
    found = made.run("compare")
    kernels = found["artifacts"]
    assert (found["problem"], found["library"], found["engines"]) == (None, None, 0)
    assert kernels >= 5
    assert (found["taken"], found["loaded"]) == (kernels, kernels)
    assert found["launches"] >= 5 * kernels
    assert all(found["same"])


def test_an_artifact_that_differs_in_anything_takes_the_engine(made: Made) -> None:
    assert made.run("use") == {"problem": None, "taken": 1, "loaded": 1}
    assert made.run("use", "gfx942") == {"problem": None, "taken": 0, "loaded": 1}


def test_a_library_that_cannot_be_used_leaves_the_engine(made: Made) -> None:
    library = made.folder / "launchers.so"
    image = library.read_bytes()
    try:
        library.write_bytes(image[:-100])
        found = made.run("use")
        assert (found["taken"], found["loaded"]) == (0, 1)
        assert found["problem"] == "launchers.so is not used: damaged: its bytes do not match its sha256"
        library.unlink()
        assert (made.run("use")["taken"], made.run("use")["loaded"]) == (0, 1)
    finally:
        library.write_bytes(image)


def test_launchers_hold_no_instruction_beyond_the_baseline(made: Made) -> None:
    """Nothing of the builder's own CPU: no register wider than SSE's, no VEX or EVEX instruction."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump")
    command = [objdump, "-D", "-b", "binary", "-m", "i386:x86-64", str(made.folder / "launchers.so")]
    code = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.defpath}).stdout
    start, end = _text(made.folder / "launchers.so")
    lines = [line for line in code.splitlines() if _within(line, start, end)]
    assert len(lines) > 100
    assert not [line for line in lines if "ymm" in line or "zmm" in line or "\tv" in line]


def _text(path: Path) -> tuple[int, int]:
    """Where the executable segment lies in the file."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        (segment,) = [s for s in ELFFile(file).iter_segments("PT_LOAD") if s["p_flags"] & 1]
        return segment["p_offset"], segment["p_offset"] + segment["p_filesz"]


def _within(line: str, start: int, end: int) -> bool:
    place, colon, _ = line.strip().partition(":")
    try:
        return bool(colon) and start <= int(place, 16) < end
    except ValueError:
        return False


def test_a_code_object_is_read_out_of_mlirs_string() -> None:
    text = r'bin = "\7FELF\00\22a\\b\0A"> ]'
    start, end, image = embedded_binary(text) or (0, 0, b"")
    assert image == b'\x7fELF\x00"a\\b\n'
    assert text[start:end] == r"\7FELF\00\22a\\b\0A"
    assert embedded_binary("module {}") is None
    assert embedded_binary('bin = "a" bin = "b"') is None
