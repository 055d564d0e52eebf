from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import seed, status
from aiter_flydsl_prebuild.discovery import find_packs
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.flydsl import cache
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import FlyDSL
from aiter_flydsl_prebuild.report import SeedReport
from packs import flydsl_here, install_here, make_compiled, make_job, make_pack
from processes import prebuild

INSTALL = install_here()
KERNELS = [make_compiled(f"k{i}", f"module {{ {i} }}") for i in range(6)]


class Machine:
    """A cache folder and an environment, as one server process sees them."""

    def __init__(self, root: Path) -> None:
        self.cache = root / "cache"
        self.environ = {
            "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
            "FLYDSL_RUNTIME_CACHE_DIR": str(self.cache),
            "ROCM_PATH": str(root / "rocm"),
        }

    def seed(self, *packs: Path, **options: Any) -> SeedReport:
        return seed(packs=[str(p) for p in packs], environ=self.environ, **options)

    def files(self) -> list[Path]:
        return sorted(self.cache.rglob("*.pkl"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "a.fkpack", KERNELS)


def test_kernels_land_where_flydsl_looks(machine: Machine, pack: Path) -> None:
    report = machine.seed(pack)
    assert (report.kernels, report.written, report.problems) == (6, 6, [])
    toolchain = cache.toolchain_key(INSTALL, cache.NO_BITCODE)
    for kernel in KERNELS:
        key = kernel.entries[0].artifact_key
        assert key is not None
        path = machine.cache / cache.artifact_path("gemm", cache.disk_key(toolchain, key))
        assert cache.decode_entry(path.read_bytes()) == kernel.entries[0].entry
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_second_call_writes_nothing(machine: Machine, pack: Path) -> None:
    machine.seed(pack)
    before = {path: path.stat().st_mtime_ns for path in machine.files()}
    report = machine.seed(pack)
    assert (report.kernels, report.written) == (6, 0)
    assert {path: path.stat().st_mtime_ns for path in machine.files()} == before


def test_a_file_that_went_away_comes_back(machine: Machine, pack: Path) -> None:
    machine.seed(pack)
    machine.files()[2].unlink()
    report = machine.seed(pack)
    assert report.written == 1
    assert len(machine.files()) == 6


def test_a_damaged_file_under_our_name_is_replaced_at_the_first_seeding(machine: Machine, pack: Path) -> None:
    machine.seed(pack)
    whole = machine.files()[0].read_bytes()
    machine.files()[0].write_bytes(whole[:10])
    for stamp in (machine.cache / ".aiter-flydsl-prebuild").iterdir():
        stamp.unlink()
    assert machine.seed(pack).written == 1
    assert machine.files()[0].read_bytes() == whole


def test_another_rocm_gets_other_names(machine: Machine, pack: Path, tmp_path: Path) -> None:
    machine.seed(pack)
    bitcode = tmp_path / "rocm" / "amdgcn" / "bitcode"
    bitcode.mkdir(parents=True)
    (bitcode / "ocml.bc").write_bytes(b"one")
    assert machine.seed(pack).written == 6
    (bitcode / "ocml.bc").write_bytes(b"another")
    assert machine.seed(pack).written == 6
    assert len(machine.files()) == 18


def test_kernels_that_linked_bitcode_are_bound_to_it(machine: Machine, tmp_path: Path) -> None:
    bitcode = tmp_path / "rocm" / "amdgcn" / "bitcode"
    bitcode.mkdir(parents=True)
    (bitcode / "ocml.bc").write_bytes(b"one")
    digest = cache.bitcode_digest(str(tmp_path / "rocm"))
    pack = make_pack(tmp_path / "b.fkpack", [make_compiled("free"), make_compiled("bound", bitcode=digest)])
    assert machine.seed(pack).kernels == 2
    (bitcode / "ocml.bc").write_bytes(b"another")
    report = machine.seed(pack)
    assert report.kernels == 1
    here = cache.bitcode_digest(str(tmp_path / "rocm"))
    what = f"linked the device bitcode of another ROCm ({digest[:12]}, here it is {here[:12]})"
    assert report.problems == [f"b.fkpack: 1 kernel {what}: {make_job('bound').label}"]
    with pytest.raises(CheckError, match="bound"):
        machine.seed(pack, mode="strict")


def test_kernels_that_could_not_be_built_are_named(machine: Machine, tmp_path: Path) -> None:
    lost = [(make_job(f"lost{i}"), "reason") for i in range(5)]
    pack = make_pack(tmp_path / "b.fkpack", [make_compiled("here")], missing=lost)
    report = machine.seed(pack)
    named = ", ".join(make_job(f"lost{i}").label for i in range(3))
    assert report.kernels == 1
    assert report.problems == [
        f"b.fkpack: 5 kernels could not be built, so FlyDSL will compile them: {named} and 2 more"
    ]
    with pytest.raises(CheckError, match="lost0"):
        machine.seed(pack, mode="strict")


def test_a_name_that_would_forge_lines_of_a_log_is_refused(machine: Machine, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "b.fkpack", [make_compiled("here")], missing=[(make_job("lost\nINFO all is well"), "")])
    (line,) = machine.seed(pack).problems
    assert line == f"{pack}: broken manifest: missing: [0] name: 'lost\\nINFO all is well' is not printable text"


def test_older_generations_take_the_paths_of_their_abi(machine: Machine, tmp_path: Path, monkeypatch: Any) -> None:
    kernel = make_compiled("old", path="gemm_0123456789abcdef/fedcba.pkl")
    flydsl = flydsl_here(generation=cache.CALL_KEY, identities={INSTALL.abi: [INSTALL.identity]})
    report = machine.seed(make_pack(tmp_path / "old.fkpack", [kernel], flydsl))
    assert (report.kernels, report.problems) == (1, [])
    assert [p.relative_to(machine.cache).as_posix() for p in machine.files()] == ["gemm_0123456789abcdef/fedcba.pkl"]


MISFITS: dict[str, tuple[dict[str, Any], str, str]] = {
    "arch": ({}, "gfx942", "kernels are for gfx942, this machine needs gfx950"),
    "version": ({"version": "9.9"}, "gfx950", "kernels are for flydsl 9.9, installed is "),
    "abi": (
        {"identities": {"cp27": ["0" * 64]}},
        "gfx950",
        f"kernels are for FlyDSL on cp27, this Python is {INSTALL.abi}",
    ),
    "build": (
        {"identities": {INSTALL.abi: ["0" * 64]}},
        "gfx950",
        f"is not the build that the kernels were made for ({'0' * 12}, not {str(INSTALL.identity)[:12]})",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit_is_left_out_with_one_line(
    machine: Machine, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes, arch, reason = MISFITS[what]
    flydsl: FlyDSL = flydsl_here(**changes)
    pack = make_pack(tmp_path / "a.fkpack", KERNELS, flydsl, arch)
    with caplog.at_level(logging.WARNING):
        report = machine.seed(pack)
    assert report.kernels == 0
    assert not machine.files()
    assert [reason in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(CheckError, match="strict"):
        machine.seed(pack, mode="strict")


def test_a_pack_for_another_arch_beside_the_right_one_is_no_news(machine: Machine, pack: Path, tmp_path: Path) -> None:
    other = make_pack(tmp_path / "b.fkpack", KERNELS, arch="gfx942")
    report = machine.seed(pack, other)
    assert (report.kernels, report.problems) == (6, [])


def test_a_flydsl_without_a_record_is_not_trusted(
    machine: Machine, pack: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tmp_path / "site"
    (folder / "flydsl").mkdir(parents=True)
    (folder / "flydsl" / "__init__.py").write_text("")
    (folder / f"flydsl-{INSTALL.version}.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    report = machine.seed(pack)
    assert report.problems == [
        f"a.fkpack: flydsl {INSTALL.version} was not installed from a wheel: "
        "only kernels that were built with exactly this FlyDSL fit"
    ]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("FLYDSL_RUNTIME_ENABLE_CACHE", "0", "turns FlyDSL's cache off"),
        ("FLYDSL_RUNTIME_CACHE_DIR", "", "is empty, which turns FlyDSL's cache off"),
        ("FLYDSL_COMPILE_OPT_LEVEL", "3", "FLYDSL_COMPILE_OPT_LEVEL is set and enters FlyDSL's keys"),
    ],
)
def test_settings_that_defeat_the_kernels_are_said(
    machine: Machine, pack: Path, name: str, value: str, line: str
) -> None:
    machine.environ[name] = value
    report = machine.seed(pack)
    assert report.kernels == 0
    assert len(report.problems) == 1
    assert line in report.problems[0]


def test_off(machine: Machine, pack: Path) -> None:
    machine.environ["AITER_FLYDSL_PREBUILD"] = "off"
    assert machine.seed(pack).mode == "off"
    assert not machine.cache.exists()


def test_a_mode_that_does_not_exist_is_said_once(machine: Machine, pack: Path) -> None:
    machine.environ["AITER_FLYDSL_PREBUILD"] = "maybe"
    report = machine.seed(pack)
    assert report.problems == ["AITER_FLYDSL_PREBUILD=maybe: not one of off, on, strict; using on"]
    assert report.kernels == 6
    assert "problems=['AITER_FLYDSL_PREBUILD=maybe" in repr(report)


def test_without_a_gpu_nothing_happens(machine: Machine, pack: Path) -> None:
    if Path("/sys/class/kfd/kfd/topology/nodes").exists():
        pytest.skip("this machine has AMD's kernel driver")
    del machine.environ["AITER_FLYDSL_PREBUILD_ARCH"]
    report = machine.seed(pack)
    assert (report.arches, report.packs, report.problems) == ([], [], [])
    assert not machine.cache.exists()


def test_a_damaged_pack_is_one_line_and_no_file(machine: Machine, pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[-3] ^= 1
    pack.write_bytes(data)
    report = machine.seed(pack)
    assert not machine.files()
    assert len(report.problems) == 1
    assert "damaged" in report.problems[0]


def test_a_folder_that_cannot_be_written_to_is_one_line(machine: Machine, pack: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    machine.environ["FLYDSL_RUNTIME_CACHE_DIR"] = str(tmp_path / "file" / "cache")
    report = machine.seed(pack)
    assert len(report.problems) == 1
    assert "cannot write to" in report.problems[0]
    with pytest.raises(CheckError, match="cannot write to"):
        machine.seed(pack, mode="strict")


def test_strict_wants_a_pack(machine: Machine) -> None:
    with pytest.raises(CheckError, match="no pack of kernels is installed"):
        seed(packs=[], environ=machine.environ, mode="strict")


def test_processes_that_seed_at_once_agree(machine: Machine, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "many.fkpack", [make_compiled(f"k{i}", f"module {{ {i} }}" * 200) for i in range(100)])
    script = "import sys, aiter_flydsl_prebuild as p; r = p.seed(packs=sys.argv[1:]); print(r.kernels, r.problems)"
    command = [sys.executable, "-c", script, str(pack)]
    runs = [
        subprocess.Popen(command, env={**os.environ, **machine.environ}, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    assert {run.communicate()[0] for run in runs} == {"100 []\n"}
    assert len(machine.files()) == 100
    assert not [path for path in machine.cache.rglob("*") if path.name.endswith(".tmp")]


def test_what_a_killed_process_left_is_swept(machine: Machine, pack: Path) -> None:
    machine.seed(pack)
    folder = machine.files()[0].parent
    old, new = folder / ".afp-1-1-x.tmp", folder / ".afp-2-2-x.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    machine.files()[0].unlink()
    machine.seed(pack)
    assert (old.exists(), new.exists()) == (False, True)


def test_importing_and_seeding_load_nothing_heavy(machine: Machine, pack: Path) -> None:
    script = (
        "import sys, aiter_flydsl_prebuild as p\n"
        "light = len(sys.modules)\n"
        "p.seed(packs=[sys.argv[1]])\n"
        "print(sorted({'torch', 'numpy', 'flydsl', 'aiter', 'rich', 'pebble', 'elftools'} & set(sys.modules)))\n"
        "print([m for m in sys.modules if m.startswith('aiter_flydsl_prebuild.builder')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(pack)],
        env={**os.environ, **machine.environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split("\n")[:2] == ["[]", "[]"]
    assert len(machine.files()) == 6


def test_packs_are_found_in_packages_and_by_variable(tmp_path: Path, monkeypatch: Any) -> None:
    inside = tmp_path / "site" / "aiter" / "flydsl_kernels"
    own = tmp_path / "site" / "vendor" / "kernels" / "flydsl_kernels"
    loose = tmp_path / "loose"
    for folder in (inside, own, loose):
        folder.mkdir(parents=True)
        make_pack(folder / "p.fkpack", [make_compiled()])
        (folder / "README").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), str(tmp_path / "none")])
    assert find_packs(environ={}) == [str(inside / "p.fkpack")]
    assert find_packs(["vendor.kernels"], {}) == [str(own / "p.fkpack"), str(inside / "p.fkpack")]
    variable = {"AITER_FLYDSL_PREBUILD_PACKS": os.pathsep.join([str(loose), str(inside / "p.fkpack")])}
    assert find_packs(environ=variable) == [str(inside / "p.fkpack"), str(loose / "p.fkpack")]


def test_status_says_what_is_in_place(machine: Machine, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "site" / "aiter_flydsl_kernels" / "gfx950" / "flydsl_kernels"
    folder.mkdir(parents=True)
    pack = make_pack(folder / "p.fkpack", KERNELS)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    (described,) = status(environ=machine.environ)["packs"]
    assert (described["fitting"], described["in_place"], described["oldest"]) == (6, 0, None)
    machine.seed(pack)
    found = status(environ=machine.environ)
    (described,) = found["packs"]
    assert (described["in_place"], described["files"]) == (6, 6)
    assert described["oldest"] < 60
    assert found["flydsl"]["released_wheel"] is True
    assert len(Pack(str(pack)).kernels) == described["kernels"]


def test_the_commands_tell_success_from_failure(machine: Machine, tmp_path: Path) -> None:
    own = tmp_path / "site" / "their_server" / "flydsl_kernels"
    own.mkdir(parents=True)
    make_pack(own / "p.fkpack", KERNELS)
    environment = {**os.environ, **machine.environ, "PYTHONPATH": str(tmp_path / "site")}
    assert "no pack of kernels is installed" in prebuild("seed", environment=environment).stdout
    assert prebuild("seed", "--strict", environment=environment).returncode == 1
    seeded = prebuild("seed", "--package", "their_server", "--json", environment=environment)
    assert (seeded.returncode, json.loads(seeded.stdout)["kernels"]) == (0, 6)
    state = prebuild("status", "--package", "their_server", "--json", environment=environment)
    assert json.loads(state.stdout)["packs"][0]["in_place"] == 6
    if not Path("/sys/class/kfd/kfd/topology/nodes").exists():
        bare = {name: value for name, value in environment.items() if "ARCH" not in name}
        assert prebuild("seed", "--strict", environment=bare).returncode == 1
        state = prebuild("status", "--package", "their_server", environment=bare)
        assert "this machine has no ROCm GPU" in state.stdout
    environment["FLYDSL_RUNTIME_ENABLE_CACHE"] = "0"
    defeated = prebuild("seed", "--package", "their_server", environment=environment)
    assert (defeated.returncode, defeated.stdout) == (1, "nothing was seeded\n")
