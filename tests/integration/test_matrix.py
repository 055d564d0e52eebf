"""Every generation of FlyDSL's cache against the real wheels: a kernel is compiled, packed, seeded and found again.

Each FlyDSL gets an environment of its own, kept in pytest's cache, that shares all other packages with this one.
FLYDSL_WHEELS may name a folder with wheels, for machines that cannot reach an index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

import aiter_checkout
import fake_hip
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain
from packs import open_to_others
from processes import ARCH, ROOT, SUPPORT, flydsl_environment, run_python

pytestmark = pytest.mark.slow

VERSIONS = ("0.3.1", "0.3.4.1", "0.4.2", "0.5.0")
REFERENCE_VERSIONS = VERSIONS[1:]
"""0.3.1 cannot compile the reference kernels."""

BUILD = """
import sys
from pathlib import Path
from aiter_flydsl_prebuild.builder.compiling import Task, building_flydsl, compile_task
from packs import make_job, make_pack
from dataclasses import replace
job = replace(make_job("tiny"), source="tiny_source:TinySource")
make_pack(Path(sys.argv[1]), [compile_task(Task(job, sys.argv[2], None))], building_flydsl())
"""

# Without the kernel the call would compile; with it the call is a hit, and what FlyDSL read is what its compiler made.
PROVE = """
import json, pickle, sys
from pathlib import Path
import aiter_flydsl_prebuild, flydsl
from tiny_source import TinySource
folder, original = map(Path, sys.argv[1:])
try:
    TinySource("tiny").call(None, 5)
    cold = "found"
except RuntimeError:
    cold = "would compile"
report = aiter_flydsl_prebuild.seed()
TinySource("tiny").call(None, 5)
def load(path):
    (file,) = path.rglob("*.pkl")
    with file.open("rb") as data:
        artifact = pickle.load(data)
    return {name: value for name, value in vars(artifact).items() if name not in ("_lock", "_source_ir")}
ours, theirs = load(folder), load(original)
print(json.dumps({
    "version": flydsl.__version__, "cold": cold, "kernels": report.kernels, "problems": report.problems,
    "equal": ours == theirs, "fields": sorted(ours), "text": len(ours["_ir_text"]),
}))
"""


# FlyDSL's own engine is built from what was seeded, once, and kept: the next call launches and loads nothing.
WARM = """
import json, torch
import aiter_flydsl_prebuild, fake_hip
from tiny_source import TinySource
torch.cuda.is_available, torch.cuda.synchronize = (lambda: True), (lambda: None)
report = aiter_flydsl_prebuild.warm(progress=None, trusted="tiny_source:TinySource")
warmed = fake_hip.counts()
TinySource("tiny").call(None, 7)
print(json.dumps({"report": report.to_json(), "warmed": warmed, "after": fake_hip.counts()}))
"""


def environment_of(version: str, folder: Path, *more: str) -> Path:
    """The interpreter of an environment with this FlyDSL in front of all that this one has, and ``more`` behind it."""
    home = folder / f"flydsl-{version}-{sys.implementation.cache_tag}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=False, clear=True, symlinks=True)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
        if wheels := os.environ.get("FLYDSL_WHEELS"):
            command += ["--no-index", "--find-links", wheels]
        run = subprocess.run([*command, f"flydsl=={version}"], capture_output=True, text=True, check=False)
        if run.returncode:
            pytest.skip(f"flydsl {version} cannot be installed: {(run.stderr.strip().splitlines() or ['?'])[-1]}")
        (home / "ready").touch()
    (site,) = home.glob("lib/python*/site-packages")
    shared = [str(ROOT), str(SUPPORT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *more]
    # In the source tree two sub-packages lie beside the package, as setup.py knows.
    sub_packages = f"import aiter_flydsl_prebuild as p; p.__path__.append({str(ROOT)!r})"
    (site / "shared.pth").write_text("\n".join([*shared, sub_packages]) + "\n")
    return python


class Built:
    """A FlyDSL, and a pack of the one kernel that it compiled."""

    def __init__(self, version: str, root: Path, python: Path, toolchain: Toolchain) -> None:
        self.version = version
        self.root = root
        self.python = python
        self.toolchain = toolchain
        self.pack = root / "tiny.fkpack"
        self.original = root / "original"
        environment = flydsl_environment(toolchain, root / "unused", ORIGINALS=str(self.original))
        self._run(BUILD, [self.pack, toolchain.rocm_root], environment)

    def prove(self, name: str, rocm: Path) -> dict[str, Any]:
        """Seed and call in a fresh process under a ROCm folder, compiling forbidden."""
        folder = self.root / name
        environment = {**self._serving(folder), "ROCM_PATH": str(rocm), "ROCM_HOME": str(rocm)}
        found: dict[str, Any] = json.loads(self._run(PROVE, [folder, self.original], environment).splitlines()[-1])
        return found

    def warm(self, folder: Path, hip: Path) -> dict[str, Any]:
        """Warm in a fresh process on a machine whose HIP library is ours."""
        environment = {**self._serving(folder), "LD_LIBRARY_PATH": str(hip)}
        del environment["COMPILE_ONLY"]
        found: dict[str, Any] = json.loads(self._run(WARM, [], environment).splitlines()[-1])
        return found

    def try_folders(self, root: Path) -> list[dict[str, Any]]:
        """What another user's calls come to in folders of root's; see folders.py."""
        environment = flydsl_environment(self.toolchain, root / "unused")
        return [*map(json.loads, self._run((SUPPORT / "folders.py").read_text(), [root], environment).splitlines())]

    def _serving(self, folder: Path) -> dict[str, str]:
        return flydsl_environment(
            self.toolchain,
            folder,
            FLYDSL_RUNTIME_RUN_ONLY="1",
            AITER_FLYDSL_PREBUILD_PACKS=str(self.pack),
            AITER_FLYDSL_PREBUILD_ARCH=ARCH,
        )

    def _run(self, script: str, arguments: list[Path], environment: dict[str, str]) -> str:
        run = run_python(["-c", script, *map(str, arguments)], environment, self.python, cwd=self.root)
        assert run.returncode == 0, run.stderr[-3000:]
        return run.stdout


def holds(found: dict[str, Any], version: str) -> None:
    assert found["version"] == version
    assert (found["cold"], found["kernels"], found["problems"]) == ("would compile", 1, [])
    assert found["equal"], found["fields"]
    assert found["text"] > 0


@pytest.fixture(scope="module", params=VERSIONS)
def built(request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Built:
    version: str = request.param
    assert request.config.cache is not None
    python = environment_of(version, request.config.cache.mkdir("flydsl"))
    return Built(version, tmp_path_factory.mktemp("matrix"), python, toolchain)


def test_what_one_process_compiles_another_finds(built: Built) -> None:
    holds(built.prove("here", built.toolchain.rocm_root), built.version)


def test_warming_builds_the_engine_that_serving_uses(built: Built, tmp_path: Path) -> None:
    try:
        hip = fake_hip.build(tmp_path)
    except OSError as error:
        pytest.skip(f"no C compiler: {error}")
    found = built.warm(tmp_path / "cache", hip)
    report = found["report"]
    assert (report["ok"], report["launched"], report["compiled"], report["problems"]) == (True, True, 0, [])
    assert [(call["kernel"], call["error"]) for call in report["calls"]] == [
        ("tiny (N=128, K=256, scales 32x32, mxscale_bmm)", None)
    ]
    assert found["warmed"] == {"hipModuleLoadData": 1, "hipModuleLaunchKernel": 1}
    assert found["after"] == {"hipModuleLoadData": 1, "hipModuleLaunchKernel": 2}


def test_flydsl_does_what_is_said_of_folders_of_other_users(built: Built, tmp_path: Path) -> None:
    """The real FlyDSL, called by another user: every mode of docs/serving.md, and what it says does not work."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    open_to_others(tmp_path)
    found = {case["name"]: case for case in built.try_folders(tmp_path)}
    real = {name: case["real"] for name, case in found.items()}
    assert real == {
        "private to root": "PermissionError",
        "empty": "PermissionError",
        "given away": "found",
        "given away, but used by root": "PermissionError",
        "of the group": "found",
        "of the group, but used by root": "PermissionError",
        "folders open, entries not": "compiled",
        "read only, locks open": "found",
        "a file": "NotADirectoryError",
        "a link to nothing": "FileExistsError",
        "below their own": "compiled",
    }
    # There, a kernel that is not in the folder yet makes its call fail.
    assert not found.pop("read only, locks open")["usable"]
    for name, case in found.items():
        fails = real[name] not in ("found", "compiled")
        assert any("will fail" in line for line in case["said"]) == fails, name
        assert not fails or not case["usable"] or "lock file" in " ".join(case["said"]), name


def test_a_pack_of_one_rocm_serves_others(built: Built, tmp_path: Path) -> None:
    """Under 0.5 the bitcode enters the key, under older ones it does not: the kernel is found either way."""
    if built.version != VERSIONS[-1]:
        pytest.skip("the bitcode enters the keys from 0.5 on alone")
    for name, content in (("one", b"bitcode of one ROCm"), ("another", b"and of another"), ("none", None)):
        rocm = tmp_path / name
        rocm.mkdir()
        if content is not None:
            (rocm / "amdgcn" / "bitcode").mkdir(parents=True)
            (rocm / "amdgcn" / "bitcode" / "ocml.bc").write_bytes(content)
        holds(built.prove(name, rocm), built.version)
    names = {path.name for name in ("one", "another", "none") for path in (built.root / name).rglob("*.pkl")}
    assert len(names) == 3


def prebuild(python: Path, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Run a command of this project in an environment; its JSON. Skips where this FlyDSL lacks what the kernels use."""
    run = run_python(["-m", "aiter_flydsl_prebuild", *arguments, "--json"], environment, python, cwd="/")
    if "the installed FlyDSL lacks what they use" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def round_trip(python: Path, environment: dict[str, str], out: Path, *selection: str) -> None:
    """Build and prove a wheel, and compile what is in it once more without it."""
    built = prebuild(python, environment, "build", "--arch", ARCH, "--workers", "1", "--out", str(out), *selection)
    assert built["proof"]["compiled"] == 0 < built["kernels"]
    assert not built["failed"]
    cold = prebuild(python, environment, "verify", built["wheel"], "--cold")
    # Kernels of one name and shape may be one entry of FlyDSL's cache.
    assert 0 < cold["compiled"] <= built["proof"]["payloads"] == cold["payloads"]


@pytest.mark.parametrize("version", REFERENCE_VERSIONS)
def test_reference_kernels(version: str, request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path: Path) -> None:
    assert request.config.cache is not None
    python = environment_of(version, request.config.cache.mkdir("flydsl"))
    environment = {**os.environ, "ROCM_PATH": str(toolchain.rocm_root)}
    round_trip(python, environment, tmp_path, "--source", "reference", "--tokens", "1..1")


@pytest.mark.skipif("AITER_SOURCE" not in os.environ, reason="AITER_SOURCE does not name a checkout of AITER")
@pytest.mark.parametrize("version", VERSIONS)
def test_aiter_kernels(version: str, request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path: Path) -> None:
    """AITER_TOKENS takes another range than one token: 1..32768 is all of it, half an hour for each FlyDSL."""
    assert request.config.cache is not None
    python = environment_of(version, request.config.cache.mkdir("flydsl"), *aiter_checkout.packages())
    environment = {
        **os.environ,
        "ROCM_PATH": str(toolchain.rocm_root),
        "PYTHONPATH": os.environ["AITER_SOURCE"],
    }
    tokens = os.environ.get("AITER_TOKENS", "1..1")
    round_trip(python, environment, tmp_path, "--source", "aiter", "--models", "none", "--tokens", tokens)
