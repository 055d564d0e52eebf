"""The kernels' own wheel: its version, and how pip takes one for another."""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from aiter_flydsl_prebuild.builder.epoch import source_date_epoch
from aiter_flydsl_prebuild.builder.wheels.wheel import build_wheel, unordered, wheel_version
from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.packs.format import Pack
from packs import flydsl_here, make_compiled, make_pack
from processes import run_python

DAY = 86400
NOW = 1785585600  # 2026-08-01 12:00:00 UTC


@pytest.fixture(autouse=True)
def no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


def pack_of(folder: Path, *names: str, version: str = "0.5.0") -> Path:
    folder.mkdir(exist_ok=True)
    kernels = [make_compiled(name, f"module {{ {name} }}") for name in names]
    return make_pack(folder / "gfx950.fkpack", kernels, flydsl_here(version=version))


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def test_the_version_follows_from_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (Pack(str(pack_of(tmp_path / name, name))) for name in ("a", "b"))
    assert wheel_version(one) != wheel_version(other)
    assert wheel_version(one) == f"0.5.0+k{one.header.pack_id[:8]}"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(NOW))
    assert wheel_version(one) == f"0.5.0+20260801120000.k{one.header.pack_id[:8]}"
    assert wheel_version(one, 7) == "0.5.0.post7", "as indexes such as PyPI take it"


def test_the_order_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Pack(str(pack_of(tmp_path / "a", "a")))
    plain = Version(wheel_version(pack))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(NOW))
    dated = Version(wheel_version(pack))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(NOW + DAY))
    later = Version(wheel_version(pack))
    assert plain < dated < later < Version(wheel_version(pack, 3)) < Version(wheel_version(pack, 20))
    newer = Version(wheel_version(Pack(str(pack_of(tmp_path / "b", "a", version="0.5.1")))))
    assert newer > Version(wheel_version(pack, 20)), "kernels for a newer FlyDSL are newer"


@pytest.mark.parametrize("flydsl", ["0.5.0", "0.3.4.1", "0.6.0rc1", "0.6.0.dev3", "0.5.0.post1", "0.5.0+rocm7"])
def test_every_version_of_flydsl_gives_a_version(tmp_path: Path, flydsl: str) -> None:
    pack = Pack(str(pack_of(tmp_path / "a", "a", version=flydsl)))
    versions = [Version(wheel_version(pack, number)) for number in (1, 2, 10)]
    assert versions == sorted(versions)
    assert Version(wheel_version(pack)) not in versions


def test_two_wheels_of_the_same_kernels_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        wheels.append(build_wheel(pack_of(tmp_path / f"pack {name}", "a"), tmp_path / name))
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def pip(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    return run_python(command, dict(os.environ))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["number", "epoch"])
def test_pip_takes_the_newer_wheel_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    venv.create(tmp_path / "server", with_pip=False)
    python = tmp_path / "server" / "bin" / "python"
    index = tmp_path / "index"
    index.mkdir()
    install = ("install", "--no-deps", "--no-index", "--find-links", str(index), "-U", "aiter-flydsl-kernels-gfx950")
    held = []
    # Each with other kernels: whatever their digests are, the later wheel is taken.
    for turn, names in enumerate((["a", "b"], ["a"], ["a", "b", "c"], ["d"])):
        if how == "epoch":
            monkeypatch.setenv("SOURCE_DATE_EPOCH", str(NOW + turn))
        wheel = build_wheel(pack_of(tmp_path / f"p{turn}", *names), index, number=turn if how == "number" else None)
        run = pip(python, *install)
        assert run.returncode == 0, run.stderr
        (installed,) = (tmp_path / "server").rglob("*.fkpack")
        held.append(sorted(kernel.name for kernel in Pack(str(installed)).kernels))
        assert held[-1] == sorted(names), wheel.name
        again = pip(python, *install)
        assert "already satisfied" in again.stdout


@pytest.mark.slow
def test_a_wheel_of_other_kernels_by_name_replaces_the_installed_one(tmp_path: Path) -> None:
    """Neither has a number, so that only the digest tells them apart: enough for pip to install what is named."""
    venv.create(tmp_path / "server", with_pip=False)
    python = tmp_path / "server" / "bin" / "python"
    for name in ("a", "b", "a"):
        (tmp_path / "dist").mkdir(exist_ok=True)
        wheel = build_wheel(pack_of(tmp_path / name, name), tmp_path / "dist")
        assert pip(python, "install", "--no-deps", "--no-index", str(wheel)).returncode == 0
        (installed,) = (tmp_path / "server").rglob("*.fkpack")
        assert [kernel.name for kernel in Pack(str(installed)).kernels] == [name]


def test_wheels_that_pip_cannot_order_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_wheel(pack_of(tmp_path / "a", "a"), tmp_path)
    assert unordered(first, None) is None
    second = build_wheel(pack_of(tmp_path / "b", "b"), tmp_path)
    assert first.name in str(unordered(second, None))
    assert unordered(second, 3) is None
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(NOW))
    assert unordered(second, None) is None


# ---- SOURCE_DATE_EPOCH -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("0", (1980, 1, 1, 0, 0, 0)),
        ("-5", (1980, 1, 1, 0, 0, 0)),
        (str(NOW), (2026, 8, 1, 12, 0, 0)),
        ("4294967296", (2106, 2, 7, 6, 28, 16)),
        ("4354819199", (2107, 12, 31, 23, 59, 58)),
    ],
)
def test_every_time_that_a_zip_file_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, stamp: tuple[int, ...]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    wheel = build_wheel(pack_of(tmp_path / "a", "a"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert {info.date_time for info in archive.infolist()} == {stamp}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a whole number of seconds since 1970"),
        ("abc", "is not a whole number of seconds since 1970"),
        ("1e9", "is not a whole number of seconds since 1970"),
        ("4354819200", "is after 2107-12-31 23:59:59 UTC (4354819199), the last time that a ZIP file can hold"),
    ],
)
def test_a_time_that_is_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH=") as caught:
        source_date_epoch({"SOURCE_DATE_EPOCH": text})
    assert words in str(caught.value)
    assert source_date_epoch({}) is None
