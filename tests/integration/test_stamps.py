"""What a second start must notice although times and names say that nothing changed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiter_flydsl_prebuild import discovery, marker, seed, status
from aiter_flydsl_prebuild.errors import CheckError
from packs import install_here, make_compiled, make_pack
from processes import prebuild, run_python
from servers import Server, flatten

INSTALL = install_here()
KERNELS = [make_compiled(f"k{i}", f"module {{ {i} }}") for i in range(6)]
EDITED = "flydsl/compiler/jit_function.py"


def copy_flydsl(target: Path) -> Path:
    """A FlyDSL of its own below a folder; all but its sources and metadata are links."""
    for path in INSTALL.record:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".py"):
            shutil.copy(Path(INSTALL.root, path), target / path)
        else:
            (target / path).symlink_to(Path(INSTALL.root, path))
    info = f"flydsl-{INSTALL.version}.dist-info"
    shutil.copytree(Path(INSTALL.root, info), target / info)
    return target


def edit(path: Path) -> None:
    """Another byte at the same length."""
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])


def correct_record(site: Path, path: str) -> None:
    """Have RECORD agree with a file again."""
    (record,) = site.glob("flydsl-*.dist-info/RECORD")
    digest = base64.urlsafe_b64encode(hashlib.sha256((site / path).read_bytes()).digest()).rstrip(b"=").decode()
    lines = record.read_text().splitlines(keepends=True)
    record.write_text(
        "".join(f"{path},sha256={digest},{line.rsplit(',', 1)[1]}" if line.startswith(path) else line for line in lines)
    )


class FlyDSLServer(Server):
    """A server with a FlyDSL of its own."""

    def __init__(self, root: Path, pack: Path) -> None:
        super().__init__(root, pack)
        copy_flydsl(self.site)

    def entries(self) -> list[Path]:
        return sorted(self.cache.rglob("*.pkl"))


@pytest.fixture
def server(tmp_path: Path) -> FlyDSLServer:
    return FlyDSLServer(tmp_path, make_pack(tmp_path / "a.fkpack", KERNELS))


@pytest.mark.parametrize("mode", ["on", "strict"])
def test_a_changed_flydsl_is_noticed_where_all_times_are_equal(server: FlyDSLServer, mode: str) -> None:
    flatten(server.site)
    assert server.start(AITER_FLYDSL_PREBUILD=mode)["packs"][0]["kernels"] == 6
    assert server.start(AITER_FLYDSL_PREBUILD=mode)["quick"]
    edit(server.site / EDITED)
    correct_record(server.site, EDITED)
    flatten(server.site)
    found = server.start(AITER_FLYDSL_PREBUILD=mode)
    assert "is not the build that the kernels were made for" in str(found)


def test_changed_bitcode_is_noticed_where_all_times_are_equal(server: FlyDSLServer) -> None:
    library = server.rocm / "amdgcn" / "bitcode" / "ocml.bc"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"one\n")
    flatten(server.rocm)
    assert server.strict()["packs"][0]["written"] == 6
    assert server.strict()["quick"]
    library.write_bytes(b"two\n")
    flatten(server.rocm)
    assert server.strict()["packs"][0]["written"] == 6
    assert len(server.entries()) == 12


@pytest.mark.parametrize("stamps", ["marker and stamps", "stamps alone"])
def test_truncated_entries_are_written_again(server: FlyDSLServer, stamps: str) -> None:
    server.strict()
    whole = {path: path.read_bytes() for path in server.entries()}
    for path in whole:
        path.write_bytes(b"")
    (described,) = server.status()["packs"]
    assert (described["in_place"], described["files"]) == (0, 6)
    if stamps == "stamps alone":
        for path in (server.cache / ".aiter-flydsl-prebuild").glob("seeded-*"):
            path.unlink()
    assert server.strict()["packs"][0]["written"] == 6
    assert {path: path.read_bytes() for path in server.entries()} == whole
    assert server.strict()["quick"]


def test_a_truncated_copy_of_a_bundled_entry_is_written_again(server: FlyDSLServer, tmp_path: Path) -> None:
    bundled = server.site / "aiter" / "jit" / "flydsl_cache" / "gemm_01"
    bundled.mkdir(parents=True)
    (bundled / "23.pkl").write_bytes(b"prebuilt")
    copy = server.cache / "gemm_01" / "23.pkl"
    assert server.start()["bundled"] == 1
    copy.write_bytes(b"")
    assert server.start()["bundled"] == 1
    assert copy.read_bytes() == b"prebuilt"
    assert server.start()["quick"]


def test_the_same_kernel_in_two_packs_settles(server: FlyDSLServer, tmp_path: Path) -> None:
    """Another linker gives another payload under the same key: the two do not replace each other at every start."""
    other = make_pack(tmp_path / "b.fkpack", [make_compiled("k0", "module { another linker }"), KERNELS[1]])
    server.environ["AITER_FLYDSL_PREBUILD_PACKS"] += f"{os.pathsep}{other}"
    assert [pack["written"] for pack in server.start()["packs"]] == [6, 0]
    assert server.start()["quick"]
    for order in (1, -1):
        packs = server.environ["AITER_FLYDSL_PREBUILD_PACKS"].split(os.pathsep)[::order]
        found = server.start(AITER_FLYDSL_PREBUILD_PACKS=os.pathsep.join(packs))
        assert [pack["written"] for pack in found["packs"]] == [0, 0]


def test_an_image_of_the_same_content_needs_no_second_seeding(server: FlyDSLServer, tmp_path: Path) -> None:
    """Unpacked elsewhere, with other inodes and times: the marker does not hold, the stamps do, by content."""
    (server.rocm / "amdgcn" / "bitcode").mkdir(parents=True)
    (server.rocm / "amdgcn" / "bitcode" / "ocml.bc").write_bytes(b"one\n")
    server.start()
    shutil.copytree(server.rocm, tmp_path / "again")
    shutil.rmtree(server.rocm)
    (tmp_path / "again").rename(server.rocm)
    stamps = {path: path.stat().st_mtime_ns for path in server.cache.rglob("*.json")}
    found = server.start()
    assert (found["quick"], found["packs"][0]["written"]) == (False, 0)
    assert {path: path.stat().st_mtime_ns for path in server.cache.rglob("*.json")} == stamps
    assert server.start()["quick"]


@pytest.mark.parametrize("what", ["edited", "added", "removed"])
def test_an_altered_flydsl_is_named_by_all_who_look(server: FlyDSLServer, what: str) -> None:
    """Its RECORD is as it was, and every call would miss."""
    assert server.strict()["packs"][0]["kernels"] == 6
    assert server.strict()["quick"]
    path = EDITED if what != "added" else "flydsl/compiler/extra.py"
    if what == "removed":
        (server.site / path).unlink()
    else:
        with (server.site / path).open("a") as file:
            file.write("# a comment\n")
    line = f"was changed after it was installed ({path})"
    assert line in server.strict()["error"]
    found = server.status()
    assert line in found["flydsl"]["damage"]
    assert line in found["packs"][0]["reasons"][0]
    assert (found["packs"][0]["fitting"], found["packs"][0]["in_place"]) == (0, 0)
    examined = json.loads(prebuild("doctor", "--json", environment=server.environ).stdout)
    (finding,) = [one for one in examined["findings"] if one["name"] == "FlyDSL"]
    assert (finding["status"], line in finding["detail"]) == ("missing", True)
    build = prebuild("build", "--tokens", "1..1", environment=server.environ)
    assert (build.returncode, line in build.stderr) == (1, True), build.stderr
    for stamp in (server.cache / ".aiter-flydsl-prebuild").iterdir():
        stamp.unlink()
    assert line in server.start()["problems"][0]


def test_a_strict_second_start_does_not_load_logging(server: FlyDSLServer) -> None:
    """It takes longer than the whole start; who has loaded it gets the line that says where strict mode ends."""
    server.strict()
    server.environ["AITER_FLYDSL_PREBUILD"] = "strict"
    start = "import sys, aiter_flydsl_prebuild as p; p.seed()"
    quiet = run_python(["-c", f"{start}; print('logging' in sys.modules)"], server.environ)
    assert quiet.stdout == "False\n", quiet.stderr
    loud = run_python(["-c", f"import logging; logging.basicConfig(level=logging.INFO); {start}"], server.environ)
    assert "6 kernels in place, any other call of FlyDSL will raise" in loud.stderr


def test_sources_outside_the_keys_are_an_error_in_strict_mode_alone(server: FlyDSLServer) -> None:
    server.strict()
    with (server.site / "flydsl" / "_mlir" / "ir.py").open("a") as file:
        file.write("# a comment\n")
    assert server.start()["packs"][0]["kernels"] == 6
    assert "was changed after it was installed (flydsl/_mlir/ir.py)" in server.strict()["error"]


def test_other_modes_leave_strict_mode_its_word_on_flydsl(server: FlyDSLServer) -> None:
    server.strict()
    longer = "import aiter_flydsl_prebuild.seeding as s; s.seed()"
    assert run_python(["-c", longer], server.environ).returncode == 0
    assert server.strict()["quick"]
    with (server.site / EDITED).open("a") as file:
        file.write("# a comment\n")
    assert run_python(["-c", longer], server.environ).returncode == 0
    assert "was changed after it was installed" in server.strict()["error"]


@pytest.mark.slow
def test_altered_libraries_are_named_where_there_is_time(server: FlyDSLServer, wheel: Path) -> None:
    library = next(path for path in INSTALL.record if path.startswith("flydsl/_mlir/_mlir_libs/") and ".so" in path)
    changed = server.site / library
    data = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(data + b"\0")
    line = f"was changed after it was installed ({library})"
    assert line in prebuild("doctor", "--json", environment=server.environ).stdout
    verify = prebuild("verify", wheel, environment=server.environ)
    assert (verify.returncode, line in verify.stdout) == (1, True), verify.stdout + verify.stderr


def test_a_file_system_without_times_of_change_gets_no_marker(tmp_path: Path, monkeypatch: Any) -> None:
    """squashfs gives the time of modification as the time of change: all equal, where an image builder made them so."""
    file = tmp_path / "ocml.bc"
    file.write_bytes(b"one")
    real = os.stat(file)
    assert discovery.unchanged(discovery.state_of(str(file)))
    flat = SimpleNamespace(st_ctime_ns=10**9, st_mtime_ns=10**9, st_ino=real.st_ino, st_size=real.st_size)
    monkeypatch.setattr(os, "stat", lambda *a, **k: flat)
    with pytest.raises(discovery.UncertainError):
        discovery.state_of(str(file))
    assert not discovery.unchanged(f"{file} {10**9} {10**9} {real.st_ino} {real.st_size}")
    monkeypatch.undo()
    environ = {
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
        "ROCM_PATH": str(tmp_path / "rocm"),
    }
    bitcode = tmp_path / "rocm" / "amdgcn" / "bitcode"
    bitcode.mkdir(parents=True)
    file.rename(bitcode / "ocml.bc")
    pack = make_pack(tmp_path / "a.fkpack", KERNELS)
    monkeypatch.setattr(marker, "state_of", lambda path: (_ for _ in ()).throw(discovery.UncertainError(path)))
    assert seed(packs=[str(pack)], environ=environ).written == 6
    assert seed(packs=[str(pack)], environ=environ).written == 0
    assert not list((tmp_path / "cache").rglob("seeded-*"))
    (bitcode / "ocml.bc").write_bytes(b"two")
    assert seed(packs=[str(pack)], environ=environ).written == 6


def test_a_flydsl_without_a_record_is_known_by_its_files(tmp_path: Path, monkeypatch: Any) -> None:
    site = copy_flydsl(tmp_path / "site")
    (record,) = site.glob("flydsl-*.dist-info/RECORD")
    record.write_text("__editable__.flydsl.pth,,\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    before = marker.flydsl_state()
    assert marker.flydsl_state() == before
    edit(site / EDITED)
    flatten(site)
    assert marker.flydsl_state() != before


def test_strict_says_what_status_says(server: FlyDSLServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [str(server.site), *sys.path])
    assert status(environ=server.environ)["flydsl"]["damage"] is None
    (server.site / EDITED).write_text("# nothing\n")
    with pytest.raises(CheckError, match="was changed after it was installed"):
        seed(packs=[server.environ["AITER_FLYDSL_PREBUILD_PACKS"]], environ=server.environ, mode="strict")
