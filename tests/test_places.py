from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import places, seed
from aiter_flydsl_prebuild.seeding import SeedReport, prune
from packs import closed_to_others, make_compiled, make_pack

KERNELS = [make_compiled(f"k{i}", f"module {{ {i} }}") for i in range(3)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU said by hand, an empty home, and no variable that names a cache."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("FLYDSL_RUNTIME_CACHE_DIR", "XDG_CACHE_HOME", "FLYDSL_GPU_ARCH", "FLYDSL_RUNTIME_RUN_ONLY"):
        monkeypatch.delenv(name, raising=False)
    # Set and removed again, so that what seed() sets is taken back after the test.
    for name in ("FLYDSL_RUNTIME_CACHE_DIR", "FLYDSL_RUNTIME_RUN_ONLY"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("AITER_FLYDSL_PREBUILD_ARCH", "gfx950")
    (tmp_path / "tmp").mkdir()
    return home


@pytest.fixture
def pack(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack that the loader finds."""
    path = make_pack(tmp_path / "a.fkpack", KERNELS)
    monkeypatch.setenv("AITER_FLYDSL_PREBUILD_PACKS", str(path))
    return path


def entries(folder: Path) -> int:
    return len(list(folder.rglob("*.pkl")))


def blocked(folder: Path) -> None:
    """A file where a folder should be: no user, root included, can make the folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")


def test_flydsls_own_folder_comes_first(home: Path, pack: Path) -> None:
    report = seed()
    assert report.cache_dir == str(home / ".flydsl" / "cache")
    assert (report.kernels, report.problems) == (3, [])
    assert "FLYDSL_RUNTIME_CACHE_DIR" not in os.environ
    assert [(home / part).stat().st_mode & 0o777 for part in (".flydsl", ".flydsl/cache")] == [0o700, 0o700]


def test_then_the_xdg_cache_and_flydsl_is_told(home: Path, pack: Path) -> None:
    blocked(home / ".flydsl")
    report = seed()
    assert report.cache_dir == os.environ["FLYDSL_RUNTIME_CACHE_DIR"] == str(home / ".cache" / "flydsl")
    assert entries(home / ".cache" / "flydsl") == 3
    (line,) = report.problems
    assert f"cannot write to {home}/.flydsl/cache" in line
    assert f"using {home}/.cache/flydsl" in line


def test_then_a_private_temporary_folder(home: Path, pack: Path, tmp_path: Path) -> None:
    blocked(home / ".flydsl")
    blocked(home / ".cache")
    report = seed()
    folder = tmp_path / "tmp" / f"aiter-flydsl-prebuild-{os.geteuid()}"
    assert report.cache_dir == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entries(folder) == 3


def test_a_temporary_folder_that_others_can_write_to_is_not_used(home: Path, pack: Path, tmp_path: Path) -> None:
    blocked(home / ".flydsl")
    blocked(home / ".cache")
    folder = tmp_path / "tmp" / f"aiter-flydsl-prebuild-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    report = seed()
    assert (report.cache_dir, report.kernels) == (None, 0)
    assert report.problems[0].endswith("kernels will be compiled")
    assert entries(folder) == 0


def test_the_users_own_choice_is_never_changed(home: Path, pack: Path, tmp_path: Path, monkeypatch: Any) -> None:
    blocked(tmp_path / "chosen")
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", str(tmp_path / "chosen"))
    report = seed()
    assert report.cache_dir is None
    assert os.environ["FLYDSL_RUNTIME_CACHE_DIR"] == str(tmp_path / "chosen")
    assert "kernels will be compiled" in report.problems[0]
    assert not (home / ".flydsl").exists()


def test_a_folder_that_others_can_write_to_is_seeded_with_a_warning(home: Path, pack: Path) -> None:
    folder = home / ".flydsl" / "cache"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    report = seed()
    assert report.kernels == 3
    assert "can be written to by others" in report.problems[0]


def test_a_home_that_does_not_exist(home: Path, pack: Path, tmp_path: Path, monkeypatch: Any) -> None:
    blocked(tmp_path / "nohome")
    monkeypatch.setenv("HOME", str(tmp_path / "nohome" / "me"))
    report = seed()
    assert report.cache_dir == str(tmp_path / "tmp" / f"aiter-flydsl-prebuild-{os.geteuid()}")


@pytest.mark.parametrize(("value", "line"), [("~/kernels", "does not expand ~"), ("kernels", "is relative")])
def test_a_folder_that_is_not_what_it_looks_like(
    home: Path, pack: Path, tmp_path: Path, monkeypatch: Any, value: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", value)
    report = seed()
    assert report.kernels == 3
    assert entries(tmp_path / value) == 3
    assert line in report.problems[0]


def test_an_arch_against_the_gpus(monkeypatch: Any) -> None:
    monkeypatch.setattr(places, "driver_arches", lambda: ["gfx950"])
    (line,) = places.cautions({"FLYDSL_GPU_ARCH": "gfx942"})
    assert line == "the environment makes FlyDSL compile for gfx942, the GPU is gfx950"
    assert places.cautions({"FLYDSL_GPU_ARCH": "gfx950"}) == []


@pytest.fixture
def bundled(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An AITER that ships a cache folder inside its package."""
    folder = tmp_path / "site" / "aiter" / "jit" / "flydsl_cache"
    (folder / "gemm_0123").mkdir(parents=True)
    (folder / "gemm_0123" / "4567.pkl").write_bytes(b"prebuilt")
    (folder / "gemm_0123" / "4567.lock").write_bytes(b"")
    (tmp_path / "site" / "aiter" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    return folder


def test_what_aiter_bundles_is_copied_to_a_folder_that_can_be_locked(home: Path, bundled: Path) -> None:
    report = seed()
    folder = home / ".flydsl" / "cache"
    assert report.bundled == 1
    assert (folder / "gemm_0123" / "4567.pkl").read_bytes() == b"prebuilt"
    assert not (folder / "gemm_0123" / "4567.lock").exists()
    # Otherwise AITER would point FlyDSL at its own folder.
    assert os.environ["FLYDSL_RUNTIME_CACHE_DIR"] == str(folder)
    assert seed().written == 0


def test_aiters_own_folder_is_not_the_users_choice(home: Path, bundled: Path, pack: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", str(bundled))
    report = seed()
    assert report.cache_dir == os.environ["FLYDSL_RUNTIME_CACHE_DIR"] == str(home / ".flydsl" / "cache")
    assert (report.kernels, report.bundled) == (3, 1)
    assert entries(bundled) == 1


def test_strict_forbids_later_compiles(home: Path, pack: Path) -> None:
    assert seed(mode="strict").kernels == 3
    assert os.environ["FLYDSL_RUNTIME_RUN_ONLY"] == "1"


def test_a_user_without_rights(tmp_path: Path, pack: Path, home: Path) -> None:
    """A real other user, a folder of root's."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    if why := closed_to_others():
        pytest.skip(why)
    root_owned = tmp_path / "root-owned"
    root_owned.mkdir()
    root_owned.chmod(0o755)
    for folder in (tmp_path, *list(tmp_path.parents)[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "tmp").chmod(0o777)
    # Seeding once as root loads all modules: the interpreter's folders may be closed to others.
    script = (
        "import logging, os, sys, aiter_flydsl_prebuild as p\n"
        "p.seed(cache_dir=sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "r = p.seed(); print(r.kernels, r.cache_dir); print(*r.problems, sep='\\n')"
    )
    environment = {**os.environ, "HOME": str(root_owned)}
    command = [sys.executable, "-c", script, str(tmp_path / "first")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == f"3 {tmp_path}/tmp/aiter-flydsl-prebuild-65534"
    assert "cannot write to" in run.stdout


def test_pruning_takes_what_no_installed_pack_has(tmp_path: Path, home: Path, monkeypatch: Any) -> None:
    old = make_pack(tmp_path / "old.fkpack", KERNELS[:2])
    new = make_pack(tmp_path / "new.fkpack", KERNELS[1:])
    report: SeedReport = seed(packs=[str(old), str(new)])
    assert report.cache_dir is not None
    folder = Path(report.cache_dir)
    (folder / "gemm" / "own.pkl").write_bytes(b"compiled here")
    assert entries(folder) == 4
    assert prune(str(folder), []) == [], "both packs are where they were"
    old.unlink()
    removed = prune(str(folder), [str(new)])
    assert len(removed) == 1
    assert entries(folder) == 3
    assert (folder / "gemm" / "own.pkl").exists()
    assert prune(str(folder), [str(new)]) == []
    make_pack(new, KERNELS[:1])
    assert len(prune(str(folder), [])) == 2, "another pack took its place"
    assert entries(folder) == 1


def test_pruning_removes_nothing_outside(tmp_path: Path) -> None:
    stamps = tmp_path / "cache" / ".aiter-flydsl-prebuild"
    stamps.mkdir(parents=True)
    precious = tmp_path / "precious.pkl"
    precious.write_text("")
    files = ["../precious.pkl", "/etc/x.pkl", 3, "a/../../precious.pkl"]
    (stamps / "0.json").write_text(json.dumps({"pack_id": "x", "files": files}))
    (stamps / "1.json").write_text("{")
    assert prune(str(tmp_path / "cache"), []) == []
    assert precious.exists()
