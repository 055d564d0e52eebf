"""The setuptools hook in someone else's project, built by pip in real processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.dispatch.reach import plan_reach
from aiter_flydsl_prebuild.dispatch.tables import read_tables
from aiter_flydsl_prebuild.flydsl.install import interpreter_abi
from aiter_flydsl_prebuild.model.job import NO_OPTIONS
from aiter_flydsl_prebuild.sources.base import jobs_of
from aiter_flydsl_prebuild.sources.reference.source import table_path
from packs import flydsl_here, make_compiled, make_pack, pack_in
from processes import ROOT, SUPPORT, prebuild

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77", "aiter-flydsl-prebuild"]
build-backend = "setuptools.build_meta"

[project]
name = "their-server"
version = "1.0"

[tool.setuptools]
packages = ["their_server"]

"""
TABLE = """\
[tool.aiter-flydsl-prebuild]
package = "their_server"
"""


def make_project(root: Path, table: str) -> Path:
    project = root / "project"
    (project / "their_server").mkdir(parents=True)
    (project / "their_server" / "__init__.py").write_text("")
    # Of use without kernels: a wheel of kernels alone would have to require their FlyDSL.
    (project / "their_server" / "server.py").write_text("")
    (project / "pyproject.toml").write_text(PYPROJECT + table)
    return project


def pip_wheel(
    project: Path, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", *options, "."]
    environment = dict(os.environ) if environment is None else environment
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def names_in(project: Path) -> tuple[Path, list[str]]:
    (wheel,) = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel, archive.namelist()


def loader_requirements(wheel: Path) -> list[str]:
    """What the wheel's metadata says of this project."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [line for line in lines if line.startswith("Requires-Dist: ") and "prebuild" in line.lower()]


@pytest.fixture
def pack(wheel: Path, tmp_path: Path) -> Path:
    return pack_in(wheel, tmp_path / "packs")


@pytest.mark.slow
def test_kernels_are_built_into_the_projects_own_wheel(with_kernels: dict[str, str], tmp_path: Path) -> None:
    project = make_project(tmp_path, TABLE + 'tokens = "1..4"\n')
    run = pip_wheel(project, "--no-build-isolation", environment=with_kernels)
    assert run.returncode == 0, run.stdout + run.stderr
    wheel, names = names_in(project)
    assert sum(name.startswith("their_server/flydsl_kernels/gfx950-flydsl") for name in names) == 1
    assert loader_requirements(wheel) == ["Requires-Dist: aiter-flydsl-prebuild>=0.1.0"]
    run_verify = prebuild("verify", wheel, "--json")
    assert run_verify.returncode == 0, run_verify.stdout + run_verify.stderr
    reach = plan_reach(read_tables([table_path()]), gfx=["gfx950"], cu_num=[], tokens=(1, 4))
    assert json.loads(run_verify.stdout)["kernels"] == len(jobs_of("reference", reach, "gfx950", NO_OPTIONS))


@pytest.mark.slow
def test_what_one_project_compiled_another_takes_out_of_the_store(tmp_path: Path) -> None:
    environment = {**os.environ, "AITER_FLYDSL_PREBUILD_STORE": str(tmp_path / "store")}
    wheels = []
    for name, compiles in (("one", True), ("two", False)):
        project = make_project(tmp_path / name, TABLE + 'tokens = "1..1"\n')
        run = pip_wheel(project, "--no-build-isolation", "--verbose", environment=environment)
        assert run.returncode == 0, run.stdout + run.stderr
        assert ("compiling 18 kernels" in run.stdout + run.stderr) == compiles
        wheel, names = names_in(project)
        with zipfile.ZipFile(wheel) as archive:
            wheels.append(archive.read(next(name for name in names if name.endswith(".fkpack"))))
    assert wheels[0] == wheels[1]


@pytest.mark.slow
def test_the_projects_gates_stop_its_wheel(with_kernels: dict[str, str], tmp_path: Path) -> None:
    project = make_project(tmp_path, TABLE + 'tokens = "1..1"\nmax-size = "1kB"\nrequire-coverage = "1..4"\n')
    run = pip_wheel(project, "--no-build-isolation", environment=with_kernels)
    assert run.returncode != 0
    assert "the gates are not passed (2):" in run.stdout + run.stderr
    assert "coverage: the kernels were built for tokens 1..1, not for 2..4" in run.stdout + run.stderr
    assert not list(project.rglob("*.whl"))


def test_a_project_without_the_table_is_left_alone(tmp_path: Path) -> None:
    project = make_project(tmp_path, "# aiter-flydsl-prebuild is only mentioned here\n")
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode == 0, run.stderr
    assert not any("flydsl" in name for name in names_in(project)[1])


@pytest.mark.parametrize("how", ["enabled = false", "variable"])
def test_the_hook_can_be_switched_off(tmp_path: Path, how: str) -> None:
    project = make_project(tmp_path, TABLE + ("enabled = false\n" if how != "variable" else ""))
    environment = {**os.environ, "AITER_FLYDSL_PREBUILD_BUILD": "0"} if how == "variable" else None
    run = pip_wheel(project, "--no-build-isolation", environment=environment)
    assert run.returncode == 0, run.stderr
    assert not any("flydsl" in name for name in names_in(project)[1])


@pytest.mark.slow
def test_a_finished_pack_in_an_isolated_build(tmp_path: Path, pack: Path, project_wheel: Path) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\n")
    run = pip_wheel(project, environment={**os.environ, "PIP_FIND_LINKS": str(project_wheel.parent)})
    assert run.returncode == 0, run.stdout + run.stderr
    wheel, names = names_in(project)
    assert f"their_server/flydsl_kernels/{pack.name}" in names
    assert wheel.name.endswith("-py3-none-any.whl" if "cp" not in pack.name else f"-{interpreter_abi()}-none-any.whl")


@pytest.mark.slow
def test_this_project_can_carry_kernels_itself(tmp_path: Path, pack: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    with (project / "pyproject.toml").open("a") as file:
        file.write(
            f'\n[tool.aiter-flydsl-prebuild]\npackage = "aiter_flydsl_prebuild"\npack = {json.dumps(str(pack))}\n'
        )
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode == 0, run.stdout + run.stderr
    wheel, names = names_in(project)
    assert f"aiter_flydsl_prebuild/flydsl_kernels/{pack.name}" in names
    assert "aiter_flydsl_prebuild/build_hooks/hook.py" in names
    assert "aiter_flydsl_prebuild/tuned_configs/reference_mxfp8_tuned_gemm.csv" in names
    assert prebuild("verify", wheel).returncode == 0


@pytest.mark.slow
def test_a_wheel_of_kernels_may_be_named_in_place_of_a_pack(tmp_path: Path, wheel: Path, pack: Path) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(wheel))}\n")
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"their_server/flydsl_kernels/{pack.name}" in names_in(project)[1]


@pytest.mark.slow
def test_kernels_of_one_abi_tag_the_wheel(tmp_path: Path) -> None:
    one_abi = flydsl_here(generation="call-key", identities={interpreter_abi(): ["0" * 64]})
    pack = make_pack(tmp_path / "a.fkpack", [make_compiled(path="gemm_0/0.pkl")], one_abi)
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\n")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert names_in(project)[0].name == f"their_server-1.0-{interpreter_abi()}-none-any.whl"


@pytest.mark.parametrize("line", ["loader = false", ""])
def test_the_loader_is_required_once_if_at_all(tmp_path: Path, pack: Path, line: str) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\n{line}\n")
    # Another project, whose name only begins like this one's, is no requirement of this one.
    theirs = [
        "aiter-flydsl-prebuild-extras>=1",
        "numpy",
        *([] if line else ["Aiter_FlyDSL.prebuild[build]>=0.1; True"]),
    ]
    required = f'version = "1.0"\ndependencies = {json.dumps(theirs)}\n'.replace("; True", "; python_version>'3'")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace('version = "1.0"\n', required))
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    wheel, _ = names_in(project)
    others = [one for one in loader_requirements(wheel) if "extras" in one]
    assert len(others) == 1
    assert len(loader_requirements(wheel)) - 1 == (0 if line else 1)


def test_a_requirement_that_begins_alike_is_not_the_loader(tmp_path: Path, pack: Path) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\n")
    text = (project / "pyproject.toml").read_text()
    required = 'version = "1.0"\ndependencies = ["aiter-flydsl-prebuild-extras"]\n'
    (project / "pyproject.toml").write_text(text.replace('version = "1.0"\n', required))
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert sorted(loader_requirements(names_in(project)[0])) == [
        "Requires-Dist: aiter-flydsl-prebuild-extras",
        "Requires-Dist: aiter-flydsl-prebuild>=0.1.0",
    ]


@pytest.mark.slow
def test_kernels_of_a_source_in_the_project_itself(tmp_path: Path) -> None:
    project = make_project(tmp_path, TABLE + 'tokens = "1..1"\nsource = "their_server.kernels:Own"\n')
    (project / "their_server" / "kernels.py").write_text(
        "from aiter_flydsl_prebuild.sources.reference.source import ReferenceSource\n"
        "class Own(ReferenceSource):\n    pass\n"
    )
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode == 0, run.stdout + run.stderr
    wheel, _ = names_in(project)
    assert prebuild("verify", wheel).returncode == 2
    assert prebuild("verify", wheel, "--source", "their_server.kernels:Own").returncode == 0


@pytest.mark.slow
def test_a_second_build_leaves_no_old_pack(tmp_path: Path, pack: Path) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\n")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    renamed = pack.with_name("gfx950-other.fkpack")
    shutil.copy(pack, renamed)
    (project / "pyproject.toml").write_text(PYPROJECT + TABLE + f"pack = {json.dumps(str(renamed))}\n")
    shutil.rmtree(project / "dist")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert [name for name in names_in(project)[1] if name.endswith(".fkpack")] == [
        "their_server/flydsl_kernels/gfx950-other.fkpack"
    ]


def bound_pack(root: Path, files: dict[str, Path], version: str) -> Path:
    """A pack of two kernels, of which one is bound to these files (path in the pack, file here)."""
    bound = tuple((path, hashlib.sha256(file.read_bytes()).hexdigest()) for path, file in files.items())
    packages = {
        path.split("/")[0]: {"distribution": "their-server", "version": version, "digest": "0" * 64} for path in files
    }
    kernels = [
        make_compiled("bound", files=bound),
        make_compiled("free", "module { 1 }", files=(("json/tool.py", TOOL),)),
    ]
    return make_pack(root / "k.fkpack", kernels, packages=packages)


TOOL = hashlib.sha256(Path(json.__file__).with_name("tool.py").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["flat", "src"])
def test_a_pack_of_other_code_than_the_projects_stops_the_build(tmp_path: Path, layout: str) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(tmp_path / 'k.fkpack'))}\n")
    package = project / "their_server"
    if layout == "src":
        package = project / "src" / "their_server"
        shutil.move(project / "their_server", package)
        text = (project / "pyproject.toml").read_text()
        (project / "pyproject.toml").write_text(
            text.replace("[tool.setuptools]\n", '[tool.setuptools]\npackage-dir = {"" = "src"}\n')
        )
    (package / "kernels.py").write_text("# as it was\n")
    bound_pack(tmp_path, {"their_server/kernels.py": package / "kernels.py"}, "0.9")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    shutil.rmtree(project / "dist")
    (package / "kernels.py").write_text("# changed\n")
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode != 0
    said = run.stdout + run.stderr
    assert (
        "k.fkpack: 1 of 2 kernels were compiled from their_server 0.9, this project has other code in their_server "
        "(their_server/kernels.py)" in said
    )
    assert not list(project.rglob("*.whl"))


@pytest.mark.slow
def test_a_pack_of_other_code_than_what_is_installed_stops_the_build(tmp_path: Path) -> None:
    site = tmp_path / "site" / "theirs"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text('__version__ = "2.0"\nraise ImportError\n')
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(tmp_path / 'k.fkpack'))}\n")
    bound_pack(tmp_path, {"theirs/__init__.py": site / "__init__.py"}, "1.0")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    assert pip_wheel(project, "--no-build-isolation", environment=environment).returncode == 0
    (site / "__init__.py").write_text('__version__ = "2.1"\nraise ImportError\n')
    run = pip_wheel(project, "--no-build-isolation", environment=environment)
    assert run.returncode != 0
    line = "compiled from theirs 1.0, installed is theirs 2.1 with different code (theirs/__init__.py)"
    assert line in run.stdout + run.stderr
    run = pip_wheel(project, "--no-build-isolation", "-v")
    assert run.returncode == 0
    assert "theirs is not here, so that its code is not compared with that of 1 kernels" in run.stdout + run.stderr


def two_packages(root: Path, pack: Path) -> Path:
    """A project with the packages their_server and other, built once with the pack in their_server."""
    project = make_project(root, "")
    (project / "other").mkdir()
    (project / "other" / "__init__.py").write_text("")
    set_table(project, TABLE + f"pack = {json.dumps(str(pack))}\noptional = true\n")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert packs_in(project) == [f"their_server/flydsl_kernels/{pack.name}"]
    return project


def set_table(project: Path, table: str) -> None:
    packages = PYPROJECT.replace('["their_server"]', '["their_server", "other"]')
    (project / "pyproject.toml").write_text(packages + table)
    shutil.rmtree(project / "dist", ignore_errors=True)


def packs_in(project: Path) -> list[str]:
    return [name for name in names_in(project)[1] if name.endswith(".fkpack")]


def bills_in(project: Path) -> int:
    return sum("/sboms/" in name for name in names_in(project)[1])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["another package", "cannot be built", "switched off"])
def test_packs_of_an_earlier_build_do_not_come_back_from_another_place(tmp_path: Path, pack: Path, how: str) -> None:
    project = two_packages(tmp_path, pack)
    more = {"another package": f"pack = {json.dumps(str(pack))}\n", "cannot be built": 'pack = "none.fkpack"\n'}
    more["switched off"] = more["another package"] + "enabled = false\n"
    set_table(project, TABLE.replace("their_server", "other") + more[how] + "optional = true\n")
    run = pip_wheel(project, "--no-build-isolation", "-v")
    assert run.returncode == 0, run.stdout + run.stderr
    expected = [f"other/flydsl_kernels/{pack.name}"] if how == "another package" else []
    assert packs_in(project) == expected
    assert bills_in(project) == len(expected)
    removed = f"removed build/lib/their_server/flydsl_kernels/{pack.name}, kernels of an earlier build"
    assert removed in run.stdout + run.stderr


@pytest.mark.slow
def test_a_pack_among_the_projects_own_files_stays(tmp_path: Path, pack: Path) -> None:
    project = two_packages(tmp_path, pack)
    (project / "their_server" / "flydsl_kernels").mkdir()
    shutil.copy(pack, project / "their_server" / "flydsl_kernels" / "own.fkpack")
    table = '[tool.setuptools.package-data]\n"*" = ["flydsl_kernels/*"]\n' + TABLE.replace("their_server", "other")
    set_table(project, table + f"pack = {json.dumps(str(pack))}\n")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert packs_in(project) == [f"other/flydsl_kernels/{pack.name}", "their_server/flydsl_kernels/own.fkpack"]


@pytest.mark.slow
def test_without_the_table_a_clean_build_has_no_kernels(tmp_path: Path, pack: Path) -> None:
    """As docs/hook.md says: the hook does nothing without its table, so the build folder has to go."""
    project = two_packages(tmp_path, pack)
    set_table(project, "")
    shutil.rmtree(project / "build")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert packs_in(project) == []


def build(project: Path, what: str) -> None:
    """Ask setuptools for an editable wheel or an sdist, without pip."""
    script = f"import setuptools.build_meta as b; print(b.build_{what}('dist'))"
    (project / "dist").mkdir(exist_ok=True)
    run = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_an_editable_install_removes_its_own_packs_and_no_others(tmp_path: Path, pack: Path) -> None:
    project = two_packages(tmp_path, pack)
    folder = project / "their_server" / "flydsl_kernels"
    folder.mkdir()
    shutil.copy(pack, folder / "own.fkpack")
    second = pack.with_name("gfx950-second.fkpack")
    shutil.copy(pack, second)
    for path in (pack, second, folder / "own.fkpack"):
        set_table(project, TABLE + f"pack = {json.dumps(str(path))}\neditable = true\n")
        build(project, "editable")
        assert {one.name for one in folder.glob("*.fkpack")} == {"own.fkpack", path.name}
    set_table(project, TABLE + "editable = true\nenabled = false\n")
    build(project, "editable")
    assert [one.name for one in folder.glob("*.fkpack")] == ["own.fkpack"]


@pytest.mark.slow
def test_the_gates_and_the_report_go_with_a_finished_pack(tmp_path: Path, pack: Path) -> None:
    table = TABLE + f"pack = {json.dumps(str(pack))}\nreport = 'report'\n"
    project = make_project(tmp_path, table + 'known-bad = ["flydsl==0.5.0"]\nmax-size = "1kB"\n')
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode != 0
    said = run.stdout + run.stderr
    assert "the gates are not passed (2):" in said
    assert "compiler: flydsl 0.5.0 is known to be bad" in said
    (project / "pyproject.toml").write_text(PYPROJECT + table)
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    assert (project / "report" / "report.html").is_file()


@pytest.mark.slow
def test_what_the_command_line_can_do_the_hook_can(tmp_path: Path) -> None:
    """A build that goes on without a kernel that fails, with its own workers, rule and time limit, and a report."""
    table = 'tokens = "1..1"\nsource = "sources_for_tests:Raises"\nreport = "report"\nworkers = 1\ntimeout = 60\n'
    project = make_project(tmp_path, TABLE + table + 'rule = "newest"\nkeep-going = true\n')
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    run = pip_wheel(project, "--no-build-isolation", "-v", environment=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    said = run.stdout + run.stderr
    assert "built without the FlyDSL kernel" in said
    assert "no such instruction on gfx950" in said
    (held,) = json.loads(prebuild("inspect", names_in(project)[0], "--json").stdout)["packs"]
    assert (len(held["kernels"]), len(held["missing"])) == (17, 1)
    assert "no such instruction on gfx950" in (project / "report" / "report.html").read_text()


@pytest.mark.parametrize(("epoch", "words"), [("4354819200", "is after 2107-12-31"), ("soon", "is not a whole number")])
def test_a_date_that_no_wheel_can_hold_is_said_before_compiling(tmp_path: Path, epoch: str, words: str) -> None:
    project = make_project(tmp_path, TABLE)
    run = pip_wheel(project, "--no-build-isolation", environment={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    assert run.returncode != 0
    said = run.stdout + run.stderr
    assert f"SOURCE_DATE_EPOCH={epoch} {words}" in said
    assert "compiling 135 kernels" not in said


def test_a_date_before_zip_files_is_theirs_first(tmp_path: Path, pack: Path) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\n")
    run = pip_wheel(project, "--no-build-isolation", environment={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    assert run.returncode == 0, run.stdout + run.stderr
    wheel, names = names_in(project)
    with zipfile.ZipFile(wheel) as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {1980}
        (bill,) = (json.loads(archive.read(name)) for name in names if "/sboms/" in name)
    assert bill["metadata"]["timestamp"] == "1980-01-01T00:00:00Z"


FAULTS = {
    'colour = "red"': "has no key 'colour'; known are source, arch,",
    "tokens = 8192": "tokens must be token counts such as 1..8192, is 8192",
    "cu-num = ['256']": "cu-num must be a list, each a positive whole number",
    'tokens = "many"': "many",
    'source = "nowhere"': "source 'nowhere' is not known",
    'arch = "gfx000"': "gfx000",
    'pack = "none.fkpack"': "none.fkpack: cannot be read: No such file",
    'pack = "../k.fkpack"': "leads out of the project",
    "pack = 3": "pack must be a path, is 3",
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_fault_is_one_message_and_no_traceback(tmp_path: Path, line: str) -> None:
    project = make_project(tmp_path, TABLE + line + "\n")
    run = pip_wheel(project, "--no-build-isolation")
    assert run.returncode != 0
    said = run.stdout + run.stderr
    assert FAULTS[line] in said
    assert "PrebuildError" not in said
    assert not list((project / "dist").glob("*")) if (project / "dist").exists() else True


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("../../evil", "is not the name of a package"),
        ("/evil", "is not the name of a package"),
        ("their_server.nothing", "this project has no such package"),
    ],
)
def test_kernels_go_into_a_package_of_the_project_or_nowhere(tmp_path: Path, pack: Path, name: str, line: str) -> None:
    table = TABLE.replace("their_server", name) + f"pack = {json.dumps(str(pack))}\n"
    run = pip_wheel(make_project(tmp_path, table), "--no-build-isolation")
    assert run.returncode != 0
    assert line in run.stdout + run.stderr
    assert not Path("/evil").exists()


@pytest.mark.parametrize("how", ["switched off", "cannot be built"])
def test_kernels_of_an_earlier_build_do_not_come_back(tmp_path: Path, pack: Path, how: str) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\noptional = true\n")
    assert pip_wheel(project, "--no-build-isolation").returncode == 0
    shutil.rmtree(project / "dist")
    if how == "cannot be built":
        pack.unlink()
    switch = {"AITER_FLYDSL_PREBUILD_BUILD": "0"} if how == "switched off" else {}
    assert pip_wheel(project, "--no-build-isolation", environment={**os.environ, **switch}).returncode == 0
    assert not any(name.endswith(".fkpack") for name in names_in(project)[1])


def test_optional_builds_without_kernels(tmp_path: Path) -> None:
    project = make_project(tmp_path, TABLE + 'pack = "none.fkpack"\noptional = true\n')
    run = pip_wheel(project, "--no-build-isolation", "-v")
    assert run.returncode == 0, run.stderr
    assert "built without FlyDSL kernels" in run.stdout + run.stderr
    assert not any(name.endswith(".fkpack") for name in names_in(project)[1])


def test_an_editable_install_compiles_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path, TABLE)
    build(project, "editable")
    assert not list(project.rglob("*.fkpack"))


def test_an_editable_install_gets_kernels_where_asked(tmp_path: Path, pack: Path) -> None:
    project = make_project(tmp_path, TABLE + f"pack = {json.dumps(str(pack))}\neditable = true\n")
    build(project, "editable")
    assert (project / "their_server" / "flydsl_kernels" / pack.name).exists()


def test_an_sdist_has_a_finished_pack_and_no_other_kernels(tmp_path: Path, pack: Path) -> None:
    project = make_project(tmp_path, TABLE + 'pack = "packs/k.fkpack"\n')
    (project / "packs").mkdir()
    shutil.copy(pack, project / "packs" / "k.fkpack")
    build(project, "sdist")
    with tarfile.open(next((project / "dist").iterdir())) as archive:
        assert [n for n in archive.getnames() if n.endswith(".fkpack")] == ["their_server-1.0/packs/k.fkpack"]
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert pip_wheel(tmp_path / "unpacked" / "their_server-1.0", "--no-build-isolation").returncode == 0
