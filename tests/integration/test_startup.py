from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.startup import startup_files
from packs import make_compiled, make_pack
from processes import ROOT, prebuild, run_python

SCRIPT = "import importlib.util; print(importlib.util.find_spec('flydsl').name)"
IDLE = "import sys; print('json' in sys.modules, [m for m in sys.modules if m.startswith('aiter_flydsl_prebuild')])"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    pack = make_pack(tmp_path / "a.fkpack", [make_compiled(f"k{i}", f"module {{ {i} }}") for i in range(3)])
    return {
        **os.environ,
        "AITER_FLYDSL_PREBUILD_PACKS": str(pack),
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
        "ROCM_PATH": str(tmp_path / "rocm"),
    }


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment that sees this one's packages and has the start-up file."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    shared = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "a.pth").write_text("\n".join(shared) + "\n")
    for name, content in startup_files().items():
        (site / Path(name).name).write_text(content)
    return python


@pytest.fixture
def bereft(python: Path) -> Path:
    """The same after the package was uninstalled, and its start-up file was not."""
    (shared,) = python.parent.parent.glob("lib/python*/site-packages/a.pth")
    shared.write_text("")
    return python


def run(python: Path, environment: dict[str, str], script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    # Not in the checkout, whose folder would be on the path.
    return run_python(["-c", script], environment, python, cwd=python.parent)


def test_only_a_process_that_looks_for_flydsl_or_aiter_seeds(
    python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    idle = run(python, environment, IDLE)
    assert idle.stdout == "False ['aiter_flydsl_prebuild', 'aiter_flydsl_prebuild.startup']\n"
    assert not (tmp_path / "cache").exists()
    run(python, environment, "import importlib.util; importlib.util.find_spec('aiter')")
    assert len(list((tmp_path / "cache").rglob("*.pkl"))) == 3


def test_the_first_process_seeds_and_the_next_finds_all_in_place(
    python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    first = run(python, environment)
    assert first.stdout == "flydsl\n"
    assert len(list((tmp_path / "cache").rglob("*.pkl"))) == 3, first.stderr
    again = run(python, environment, f"{SCRIPT}\n{IDLE}")
    assert "seeding" not in again.stdout
    assert again.stderr == ""


def test_it_waits_once(python: Path, environment: dict[str, str]) -> None:
    """However often the start-up file runs; and FlyDSL is found by the finders that were there."""
    script = (
        "import sys; from aiter_flydsl_prebuild.startup import at_startup\n"
        "at_startup(); before = len(sys.meta_path)\n"
        f"{SCRIPT}\nprint(before - len(sys.meta_path))\nat_startup()\nprint(before - len(sys.meta_path))"
    )
    assert run(python, environment, script).stdout == "flydsl\n1\n0\n"


def test_a_new_pack_is_noticed(python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run(python, environment)
    make_pack(tmp_path / "a.fkpack", [make_compiled("new")])
    run(python, environment)
    assert len(list((tmp_path / "cache").rglob("*.pkl"))) == 4


def test_without_a_gpu_nothing_is_looked_at(python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    if Path("/sys/class/kfd/kfd/topology/nodes").exists():
        pytest.skip("this machine has AMD's kernel driver")
    del environment["AITER_FLYDSL_PREBUILD_ARCH"]
    assert "seeding" not in run(python, environment, f"{SCRIPT}\n{IDLE}").stdout
    assert not (tmp_path / "cache").exists()


def test_off(python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run(python, {**environment, "AITER_FLYDSL_PREBUILD": "off"})
    assert not (tmp_path / "cache").exists()


def test_strict_makes_the_import_fail_with_the_reason(
    python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    make_pack(tmp_path / "a.fkpack", [make_compiled()], arch="gfx942")
    strict = {**environment, "AITER_FLYDSL_PREBUILD": "strict"}
    done = run(python, strict)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    why = "strict: a.fkpack: kernels are for gfx942, this machine needs gfx950 (a.fkpack is for tokens 1..8)"
    assert last == f"aiter_flydsl_prebuild.errors.CheckError: {why}"
    said = prebuild("seed", environment=strict)
    assert (said.returncode, said.stderr) == (1, f"aiter-flydsl-prebuild: {why}\n")
    assert run(python, strict, "print('no kernel is needed')").returncode == 0
    assert run(python, environment).returncode == 0


def test_a_fault_never_stops_a_start(python: Path, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.fkpack").write_bytes(b"not a pack")
    done = run(python, environment)
    assert (done.returncode, done.stdout) == (0, "flydsl\n")
    assert "not a pack of FlyDSL kernels" in done.stderr


def test_after_fork(python: Path, environment: dict[str, str]) -> None:
    script = (
        "import os, aiter_flydsl_prebuild as p\n"
        "p.seed()\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if p.seed().written == 0 else 1)\n"
        "print(os.waitpid(pid, 0)[1])"
    )
    assert run(python, environment, script).stdout == "0\n"


def test_the_file_comes_and_goes() -> None:
    files = [Path(name) for name in startup_files()]
    installed = prebuild("startup", "--install")
    try:
        assert installed.returncode == 0, installed.stderr
        assert all(file.exists() for file in files)
    finally:
        removed = prebuild("startup", "--remove")
    assert removed.returncode == 0
    assert not any(file.exists() for file in files)


def test_the_file_is_silent_where_the_package_is_gone(bereft: Path, environment: dict[str, str]) -> None:
    for more in ("", "import importlib.util; importlib.util.find_spec('aiter')"):
        done = run(bereft, environment, f"{IDLE}\n{more}")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "False []\n"
    # Wheels of kernels may leave a folder of that name behind.
    (site,) = bereft.parent.parent.glob("lib/python*/site-packages")
    (site / "aiter_flydsl_prebuild" / "flydsl_kernels").mkdir(parents=True)
    assert run(bereft, environment, "").stderr == ""


def test_a_fault_in_the_package_is_not_hidden(python: Path, environment: dict[str, str]) -> None:
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    (site / "a.pth").write_text("")
    (site / "aiter_flydsl_prebuild").mkdir()
    (site / "aiter_flydsl_prebuild" / "startup.py").write_text("raise OSError('cannot be read')")
    assert "cannot be read" in run(python, environment, "").stderr


def start_as_3_15(python: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What site of Python 3.15 does with a .start file (PEP 829): resolve each line, and call what it names."""
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    script = (
        f"import pkgutil, sys\nfor line in open({str(site / 'aiter_flydsl_prebuild.start')!r}):\n"
        "    if not line.startswith('#'): pkgutil.resolve_name(line.strip())()\n"
    )
    return run(python, environment, f"{script}{SCRIPT}")


@pytest.mark.parametrize("gone", [False, True])
def test_the_start_file_of_python_3_15(
    python: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: Any, gone: bool
) -> None:
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    (site / "aiter_flydsl_prebuild.pth").unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 15, 0))
        files = {Path(name).name: content for name, content in startup_files().items()}
    assert set(files) == {"aiter_flydsl_prebuild.start", "_aiter_flydsl_prebuild_startup.py"}
    for name, content in files.items():
        (site / name).write_text(content)
    if gone:
        (site / "a.pth").write_text("")
        (site / "flydsl.py").touch()
    done = start_as_3_15(python, environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "flydsl\n", "")
    assert len(list(tmp_path.glob("cache/*/*.pkl"))) == (0 if gone else 3)


def test_vllm_finds_its_plugin() -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="aiter_flydsl_prebuild")
    assert callable(plugin.load())
