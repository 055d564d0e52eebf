"""The table of architectures, against LLVM where it is at hand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.arch import ARCHES, gfx_of_cu_num


def test_each_is_under_its_name() -> None:
    assert all(name == arch.name for name, arch in ARCHES.items())
    assert len({arch.elf_mach for arch in ARCHES.values()}) == len(ARCHES)


def test_tables_without_a_gfx_column() -> None:
    found = {number: gfx_of_cu_num(number) for number in (80, 256, 304, 32, 0)}
    assert found == {
        80: "gfx942",
        256: "gfx950",
        304: "gfx942",
        32: None,
        0: None,
    }


@pytest.mark.parametrize("name", sorted(ARCHES))
def test_elf_flags_are_llvms(name: str, tmp_path: Path) -> None:
    clang = next(filter(None, map(shutil.which, ("clang-21", "clang-20", "clang-19"))), None)
    if clang is None:
        pytest.skip("no clang 19 or newer on PATH")
    known = subprocess.run([clang, "--print-supported-cpus", "--target=amdgcn"], capture_output=True, text=True)
    if name not in known.stdout + known.stderr:
        pytest.skip(f"{clang} does not know {name}")
    (tmp_path / "empty.s").write_text("")
    command = [clang, "-c", "--target=amdgcn-amd-amdhsa", f"-mcpu={name}", "empty.s", "-o", "empty.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    flags = (tmp_path / "empty.o").read_bytes()[48:52]
    assert flags[0] == ARCHES[name].elf_mach
