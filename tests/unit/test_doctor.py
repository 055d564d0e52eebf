"""What doctor finds, on this machine and on machines that lack something."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import needs
from aiter_flydsl_prebuild.builder import doctor
from aiter_flydsl_prebuild.builder.doctor import examine, ok, render, to_json
from aiter_flydsl_prebuild.flydsl.install import Install
from aiter_flydsl_prebuild.flydsl.toolchain import Candidate, survey
from aiter_flydsl_prebuild.sources.environment import Finding


def found(findings: list[Finding], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment like this machine's, with another home."""
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flydsl", "torch", "pebble", "elftools", "msgpack"))
    or all(candidate.problem for candidate in survey()),
    reason="something that a build needs is missing here",
)
def test_a_machine_that_can_build(home: dict[str, str]) -> None:
    findings = examine(home)
    assert ok(findings), [finding for finding in findings if finding.status == "missing"]
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names)
    assert names[:3] == ["Python", "torch", "FlyDSL"]
    assert "LLD" in found(findings, "linker").detail
    assert "build workers" in found(findings, "machine").detail


def test_all_that_a_build_needs_is_looked_at(home: dict[str, str]) -> None:
    names = {finding.name.lower() for finding in examine(home)}
    wanted = {needs.MODULES[module][0] for module in (*needs.COMPILING, *needs.WHEEL)}
    assert wanted <= names


def test_nothing_heavy_is_imported(home: dict[str, str]) -> None:
    script = (
        "import sys\n"
        "from aiter_flydsl_prebuild.builder.doctor import examine\n"
        "examine()\n"
        "print([name for name in ('torch', 'flydsl', 'numpy', 'aiter') if name in sys.modules])\n"
    )
    environment = {**home, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in modules else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.mark.parametrize(("module", "name"), [("torch", "torch"), ("pebble", "pebble"), ("elftools", "pyelftools")])
def test_a_missing_package(home: dict[str, str], monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    without(monkeypatch, module)
    findings = examine(home)
    assert found(findings, name).status == "missing"
    assert found(findings, name).advice
    assert not ok(findings)


@pytest.mark.parametrize(
    ("install", "status", "words"),
    [
        (None, "missing", "not installed"),
        (Install("/site", "0.2.0", "cp311", "ab", {}), "missing", "generation unknown"),
        (Install("/site", "0.5.0", "cp311", "ab", {}), "warning", "not a released wheel"),
        (Install("/site", "0.3.4.1", "cp311", None, {}), "warning", "generation call-key"),
    ],
)
def test_flydsl(monkeypatch: pytest.MonkeyPatch, install: Install | None, status: str, words: str) -> None:
    monkeypatch.setattr(doctor, "read_install", lambda: install)
    finding = doctor._flydsl()
    assert (finding.status, bool(finding.advice)) == (status, True)
    assert words in finding.detail


def test_no_linker(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Candidate("PATH", "/bin/ld.lld", ("/bin/ld.lld",), problem="is too old")
    monkeypatch.setattr("aiter_flydsl_prebuild.flydsl.toolchain._candidates", lambda environment: iter([broken]))
    findings = examine(home)
    linker = found(findings, "linker")
    assert (linker.status, linker.detail) == ("missing", "none\nPATH: /bin/ld.lld: is too old")
    assert "ziglang" in linker.advice


def test_a_broken_linker_before_a_good_one_is_worth_a_warning(home: dict[str, str], tmp_path: Path) -> None:
    if all(candidate.problem for candidate in survey()):
        pytest.skip("no linker on this machine")
    broken = tmp_path / "rocm" / "llvm" / "bin" / "ld.lld"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho GNU ld\n")
    broken.chmod(0o755)
    linker = found(examine({**home, "ROCM_PATH": str(tmp_path / "rocm")}), "linker")
    assert linker.status == "warning"
    assert f"ROCM_PATH: {broken}: is not LLD: --version printed 'GNU ld'" in linker.detail


def test_bitcode_is_reported_with_its_hash(home: dict[str, str], tmp_path: Path) -> None:
    if all(candidate.problem for candidate in survey()):
        pytest.skip("no linker on this machine")
    folder = tmp_path / "rocm" / "amdgcn" / "bitcode"
    folder.mkdir(parents=True)
    (folder / "ocml.bc").write_bytes(b"BC")
    detail = found(examine({**home, "ROCM_PATH": str(tmp_path / "rocm")}), "device bitcode").detail
    assert str(folder) in detail
    assert "sha256" in detail


def test_the_gpu_is_for_information_only(tmp_path: Path) -> None:
    assert doctor._gpu(tmp_path).status == "ok"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    node = tmp_path / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes" / "1"
    node.mkdir(parents=True)
    (node / "properties").write_text("simd_count 1024\ngfx_target_version 90500\n")
    assert "gfx950" in doctor._gpu(tmp_path).detail


def test_little_memory(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: 300000 kB\n")
    finding = doctor._machine(tmp_path)
    assert finding.status == "warning"
    assert "0.3 GB of memory free: 1 build workers" in finding.detail


def test_the_cache_folder(tmp_path: Path) -> None:
    def cache(folder: str) -> Finding:
        return doctor._cache({"FLYDSL_RUNTIME_CACHE_DIR": folder})

    assert cache(str(tmp_path / "new" / "deep")).status == "ok"
    (tmp_path / "file").touch()
    assert "not writable" in cache(str(tmp_path / "file")).detail
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "written to by others" in cache(str(tmp_path / "open")).advice
    assert cache("").status == "warning"


def test_settings_that_matter_are_listed_and_the_harmful_ones_warned_of() -> None:
    harmless = doctor._settings({"FLYDSL_GPU_ARCH": "gfx950", "ARCH": "gfx950", "EDITOR": "vi"})
    assert (harmless.status, harmless.detail) == ("ok", "ARCH=gfx950, FLYDSL_GPU_ARCH=gfx950")
    assert doctor._settings({"FLYDSL_RUNTIME_ENABLE_CACHE": "0"}).status == "warning"
    assert doctor._settings({}).detail == "nothing set that matters"


FINDINGS = [
    Finding("torch", "missing", "not installed [bold]", "install torch"),
    Finding("Python", "ok", "3.12"),
]


@pytest.mark.parametrize("rich", [True, False])
def test_for_people(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    if not rich:
        without(monkeypatch, "rich")
    stream = io.StringIO()
    render(FINDINGS, stream)
    text = stream.getvalue()
    for words in ("missing", "torch", "not installed [bold]", "-> install torch", "3.12"):
        assert words in text


def test_for_programs() -> None:
    assert json.loads(json.dumps(to_json(FINDINGS))) == [
        {"name": "torch", "status": "missing", "detail": "not installed [bold]", "advice": "install torch"},
        {"name": "Python", "status": "ok", "detail": "3.12", "advice": ""},
    ]
    assert not ok(FINDINGS)
    assert ok(FINDINGS[1:])
