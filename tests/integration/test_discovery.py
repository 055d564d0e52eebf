"""Where packages and FlyDSL are looked for, and what is said of a place that was named and has no kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import aiter_flydsl_prebuild
from aiter_flydsl_prebuild import seed, status
from aiter_flydsl_prebuild.discovery import PACKS_VARIABLE, find_packs, look_for_packs
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.startup import at_startup
from packs import install_here, make_compiled, make_pack
from processes import prebuild, run_python

PACKAGE_ROOT = str(Path(aiter_flydsl_prebuild.__file__).parent.parent)

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "amd-aiter"
version = "1"

[tool.setuptools]
packages = ["aiter", "vendor.kernels"]
package-dir = {{ aiter = "{source}", "vendor.kernels" = "there" }}
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A process's environment with a GPU set by hand and a cache of its own."""
    return {
        **{name: value for name, value in os.environ.items() if name != PACKS_VARIABLE},
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
        "ROCM_PATH": str(tmp_path / "rocm"),
    }


def make_venv(folder: Path, *shared: str) -> Path:
    """The interpreter of a fresh environment that sees these folders and this one's packages."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    entries = [*shared, *(entry for entry in sys.path if entry.endswith("site-packages"))]
    (site / "a.pth").write_text("\n".join(entries) + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment where AITER and vendor.kernels, with a pack each, are installed editable."""
    root = tmp_path_factory.mktemp("editable")
    # Its importable name and its folder's differ, so that no entry of sys.path leads to it.
    for name in ("source", "there"):
        (root / "project" / name / "flydsl_kernels").mkdir(parents=True)
        (root / "project" / name / "__init__.py").write_text("raise ImportError('nobody asked for me')\n")
        kernels = [make_compiled(f"{name}{number}", f"module {{ {name} {number} }}") for number in range(3)]
        make_pack(root / "project" / name / "flydsl_kernels" / f"{name}.fkpack", kernels)
    (root / "project" / "pyproject.toml").write_text(PROJECT.format(source="source"))
    python = make_venv(root / "venv", PACKAGE_ROOT)
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--ignore-installed"]
    install += ["--prefix", str(root / "venv"), "-e", str(root / "project")]
    done = run_python(install, {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    assert done.returncode == 0, done.stderr
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    assert list(site.glob("__editable__*finder*.py")), "setuptools made no finder, so that this proves nothing"
    return python


def command(python: Path, environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(["-m", "aiter_flydsl_prebuild", *arguments], environ, python)


def test_an_editable_aiter_is_seen_by_every_command(editable: Path, environ: dict[str, str]) -> None:
    for more in ((), ("--package", "aiter")):
        state = json.loads(command(editable, environ, "status", "--json", *more).stdout)
        assert [(Path(pack["path"]).name, pack["fitting"]) for pack in state["packs"]] == [("source.fkpack", 3)]
        assert state["empty"] == []
    seeded = command(editable, environ, "seed", "--strict", "--json", "--package", "aiter")
    assert (seeded.returncode, json.loads(seeded.stdout)["kernels"]) == (0, 3), seeded.stderr
    inspected = command(editable, environ, "inspect", "--json")
    assert len(json.loads(inspected.stdout)["packs"]) == 1
    # The proof begins; that the kernels are made up is another matter.
    verified = command(editable, environ, "verify", "--json")
    assert verified.returncode == 1
    assert "no pack of kernels" not in verified.stdout
    assert json.loads(verified.stdout)["ok"] is False


def test_a_package_below_one_that_an_editable_install_maps(editable: Path, environ: dict[str, str]) -> None:
    state = json.loads(command(editable, environ, "status", "--json", "--package", "vendor.kernels").stdout)
    assert sorted(Path(pack["path"]).name for pack in state["packs"]) == ["source.fkpack", "there.fkpack"]
    assert state["empty"] == []


def test_a_second_start_finds_an_editable_aiter_in_place(editable: Path, environ: dict[str, str]) -> None:
    script = "import sys, aiter_flydsl_prebuild as p; print(p.seed().kernels, 'json' in sys.modules)"
    starts = [run_python(["-c", script], environ, editable).stdout for _ in range(2)]
    assert starts == ["3 True\n", "3 False\n"]


def test_no_package_is_imported_and_nothing_seeds_to_find_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("loud", "loud/inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "loud" / "inner" / "flydsl_kernels").mkdir()
    pack = make_pack(tmp_path / "loud" / "inner" / "flydsl_kernels" / "p.fkpack", [make_compiled()])

    class Raises:
        """Another program's finder that cannot answer."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            raise RuntimeError(name)

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [Raises(), *sys.meta_path])
    monkeypatch.setattr(aiter_flydsl_prebuild, "seed", lambda: pytest.fail("seeded"))
    monkeypatch.delitem(sys.modules, "flydsl", raising=False)
    at_startup()
    waiting = sys.meta_path[0]
    assert find_packs(["loud.inner"], {}) == [str(pack)]
    assert sys.meta_path[0] is waiting, "what waits for the import of AITER took the question for one"
    assert "loud" not in sys.modules


NAMED = {
    "no such package": ("nosuch", None, "package nosuch is not installed"),
    "a distribution's name": ("their-server", None, "package their-server is not installed"),
    "a path": ("/opt/kernels", None, "package /opt/kernels is not installed"),
    "a package without kernels": ("json", None, "holds no pack of kernels"),
    "nothing there": (None, "nonexistent", "nonexistent, which cannot be read: No such file or directory"),
    "a wheel": (None, "some.whl", "some.whl, which is a wheel: install it"),
    "a file": (None, "some.txt", "some.txt, which is neither a pack (*.fkpack) nor a folder"),
    "an empty folder": (None, "empty", "empty, a folder without a pack of kernels"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_named_place_without_packs_is_one_line_and_an_error_in_strict(
    kind: str, environ: dict[str, str], tmp_path: Path
) -> None:
    package, place, line = NAMED[kind]
    (tmp_path / "some.whl").write_bytes(b"")
    (tmp_path / "some.txt").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    good = make_pack(tmp_path / "good.fkpack", [make_compiled()])
    packages = [package] if package else []
    assert seed(environ={**environ, PACKS_VARIABLE: str(good)}).problems == []
    environ[PACKS_VARIABLE] = os.pathsep.join([str(good), *([str(tmp_path / place)] if place else [])])
    report = seed(packages, environ=environ)
    assert report.kernels == 1
    assert len(report.problems) == 1
    assert line in report.problems[0]
    assert status(packages, environ)["empty"] == report.problems
    with pytest.raises(CheckError, match="strict"):
        seed(packages, mode="strict", environ=environ)


def test_the_commands_name_a_place_without_packs(environ: dict[str, str], tmp_path: Path) -> None:
    good = make_pack(tmp_path / "good.fkpack", [make_compiled()])
    environ[PACKS_VARIABLE] = str(good)
    assert prebuild("seed", "--strict", environment=environ).returncode == 0
    # What a first start left behind must not hide it from the second.
    for _ in range(2):
        strict = prebuild("seed", "--strict", "--package", "nosuch", environment=environ)
        assert (strict.returncode, strict.stderr.count("package nosuch is not installed")) == (1, 1)
        script = "import aiter_flydsl_prebuild as p; p.seed(['nosuch'])"
        assert "package nosuch is not installed" in run_python(["-c", script], environ).stderr
    for name in ("verify", "inspect"):
        run = prebuild(name, "--package", "nosuch", environment=environ)
        assert (run.returncode, "package nosuch is not installed" in run.stderr) == (2, True)
    environ[PACKS_VARIABLE] = "/nonexistent"
    assert f"{PACKS_VARIABLE} names /nonexistent" in prebuild("status", environment=environ).stdout


def test_every_name_of_a_place_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "aiter" / "flydsl_kernels"
    inside.mkdir(parents=True)
    pack = make_pack(inside / "p.fkpack", [make_compiled()])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert look_for_packs(["aiter"], {PACKS_VARIABLE: str(inside)}) == ([str(pack)], [])


# ---- FlyDSL ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_flydsls(tmp_path: Path) -> Path:
    """A site-packages in which the update of FlyDSL left the old one's metadata behind."""
    install = install_here()
    site = tmp_path / "two"
    site.mkdir()
    for name in os.listdir(install.root):
        if name.startswith("flydsl"):
            (site / name).symlink_to(Path(install.root, name))
    (site / "flydsl-0.4.2.dist-info").mkdir()
    (site / "flydsl-0.4.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: flydsl\nVersion: 0.4.2\n")
    return site


def test_every_command_names_both_of_two_flydsls(two_flydsls: Path, environ: dict[str, str], tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "a.fkpack", [make_compiled()])
    environ |= {PACKS_VARIABLE: str(pack), "PYTHONPATH": os.pathsep.join([str(two_flydsls), PACKAGE_ROOT])}
    installed = install_here()
    both = [f"flydsl-{installed.version}.dist-info", "flydsl-0.4.2.dist-info", "pip uninstall flydsl"]
    for arguments in (
        ("seed",),
        ("status",),
        ("doctor",),
        ("verify", str(pack)),
        ("build", "--tokens", "1..1", "--out", str(tmp_path / "dist")),
    ):
        run = prebuild(*arguments, environment=environ)
        said = run.stdout + run.stderr
        assert all(words in said for words in both), (arguments, said)
        assert run.returncode == (0 if arguments == ("status",) else 1), (arguments, said)
    assert not (tmp_path / "dist").exists()


def test_an_editable_flydsl_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one built from source is: setuptools' finder maps the package, and the metadata is in site-packages."""
    (tmp_path / "source" / "flydsl").mkdir(parents=True)
    (tmp_path / "source" / "flydsl" / "__init__.py").write_text("")
    info = tmp_path / "site" / "flydsl-0.5.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("__editable___flydsl_finder.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            from importlib.util import spec_from_file_location

            file = tmp_path / "source" / "flydsl" / "__init__.py"
            return spec_from_file_location(name, file) if name == "flydsl" else None

    monkeypatch.delitem(sys.modules, "flydsl", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    install = install_here()
    assert (install.root, install.version, install.identity) == (str(tmp_path / "source"), "0.5.0", None)
