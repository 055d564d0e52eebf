from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import places, seed
from aiter_flydsl_prebuild.builder import doctor
from aiter_flydsl_prebuild.report import SeedReport
from aiter_flydsl_prebuild.stamps import prune
from aiter_flydsl_prebuild.state import status
from packs import closed_to_others, make_compiled, make_pack, open_to_others
from processes import ROOT, SUPPORT, prebuild, run_python

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


@pytest.mark.parametrize("planted", ["open to all", "a link", "a file"])
def test_a_temporary_folder_that_is_not_private_is_not_used(
    home: Path, pack: Path, tmp_path: Path, monkeypatch: Any, planted: str
) -> None:
    blocked(home / ".flydsl")
    blocked(home / ".cache")
    folder = tmp_path / "tmp" / f"aiter-flydsl-prebuild-{os.geteuid()}"
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    if planted == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    elif planted == "a link":
        folder.symlink_to(target)
    else:
        folder.touch()
    expected = status()["cache_dir"]
    reports = [seed(), *(seed(environ=dict(os.environ)) for _ in range(2))]
    assert {report.cache_dir for report in reports} == {f"{folder}-1"} == {expected}
    assert [report.kernels for report in reports] == [3, 3, 3]
    why = "not a folder" if planted == "a file" else "not private to this user"
    assert f"cannot write to {folder} ({why}): using" in reports[0].problems[0]
    assert Path(f"{folder}-1").stat().st_mode & 0o777 == 0o700
    assert entries(target) == 0


def test_folders_of_relative_names_do_not_count(home: Path, pack: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    blocked(home / ".flydsl")
    monkeypatch.setenv("XDG_CACHE_HOME", "xdg")
    assert seed(environ=dict(os.environ)).cache_dir == str(home / ".cache" / "flydsl")
    assert places.places({"TMPDIR": "tmp", "XDG_CACHE_HOME": "xdg", "HOME": "me"}, None)[-2].folder.startswith("/tmp/")
    assert not (tmp_path / "xdg").exists()


def test_the_users_own_choice_is_never_changed(home: Path, pack: Path, tmp_path: Path, monkeypatch: Any) -> None:
    blocked(tmp_path / "chosen")
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", str(tmp_path / "chosen"))
    report = seed()
    assert report.cache_dir is None
    assert os.environ["FLYDSL_RUNTIME_CACHE_DIR"] == str(tmp_path / "chosen")
    assert "calls of FlyDSL kernels will fail" in report.problems[0]
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


# ---- other users -----------------------------------------------------------------------------------------------------

NOBODY = 65534

BECOME = """
import json, logging, os, sys
import aiter_flydsl_prebuild as p
from aiter_flydsl_prebuild import monitor, places, startup
from aiter_flydsl_prebuild.builder import doctor
# What the interpreter has loaded it has: its folders may be closed to others.
p.seed(cache_dir=sys.argv[1]); p.status(); p.seed(); doctor._cache(os.environ)
os.environ.pop("FLYDSL_RUNTIME_CACHE_DIR", None)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ.update(json.loads(sys.argv[2]))
sys.path[:0] = filter(None, [os.environ.get("SITE")])
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("aiter_flydsl_prebuild").addHandler(Keep())
"""


@pytest.fixture
def nobody(tmp_path: Path, pack: Path, home: Path) -> Any:
    """Runs a script as a real other user, under whom ``home`` belongs to root, and gives what it prints."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    if why := closed_to_others():
        pytest.skip(why)
    open_to_others(tmp_path)
    home.chmod(0o755)
    (tmp_path / "tmp").chmod(0o1777)

    def run(script: str, **variables: str) -> Any:
        # The first steps are root's, with a home of their own.
        environment = {**os.environ, "HOME": str(tmp_path / "root")}
        more = json.dumps({"HOME": str(home), **variables})
        done = run_python(["-c", BECOME + script, tempfile.mkdtemp(dir=tmp_path), more], environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def give(folder: Path, mode: int = 0o700) -> Path:
    """A folder of the other user's."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(mode)
    return folder


SEED = "r = p.seed(); print(json.dumps([r.kernels, r.cache_dir, r.problems]))"
BOTH = (
    "s = p.status(); f = doctor._cache(os.environ); r = p.seed(); t = p.status()\n"
    "print(json.dumps([s['cache_dir'], s['cautions'], f.detail, f.status, r.cache_dir, r.problems, r.kernels, "
    "t['cache_dir'], t['packs'][0]['in_place']]))"
)


def test_a_user_without_rights(nobody: Any, tmp_path: Path) -> None:
    kernels, folder, problems = nobody(SEED)
    assert (kernels, folder) == (3, f"{tmp_path}/tmp/aiter-flydsl-prebuild-{NOBODY}")
    assert "cannot write to" in problems[0]


@pytest.mark.parametrize("left", ["private to root", "empty", "not there", "a file"])
def test_a_chosen_folder_in_which_calls_fail(nobody: Any, tmp_path: Path, left: str) -> None:
    folder = tmp_path / "c"
    if left == "private to root":
        seed(cache_dir=str(folder))
    elif left == "empty":
        folder.mkdir(mode=0o755)
    elif left == "a file":
        folder.touch()
    said, cautions, detail, judged, taken, problems, kernels, after, there = nobody(
        BOTH, FLYDSL_RUNTIME_CACHE_DIR=str(folder)
    )
    assert (kernels, taken, there) == (0, None, 0)
    (line,) = problems
    assert "calls of FlyDSL kernels will fail" in line
    assert f"set FLYDSL_RUNTIME_CACHE_DIR to a folder that user {NOBODY} can write to" in line
    assert "kernels will be compiled" not in line
    assert cautions == problems
    assert (said, after) == (str(folder), str(folder))
    assert (detail, judged) == (f"{folder} (set): not writable", "warning")
    if left == "a file":
        assert "as root" not in line
    else:
        # What it says to do is enough.
        assert os.system(line.partition("as root: ")[2]) == 0
        assert nobody(SEED, FLYDSL_RUNTIME_CACHE_DIR=str(folder)) == [3, str(folder), []]


def test_locks_of_another_user(nobody: Any, home: Path, tmp_path: Path) -> None:
    give(home)
    own = home / ".flydsl" / "cache"
    assert nobody(SEED) == [3, str(own), []]
    assert nobody(SEED) == [3, str(own), []]
    (entry, *_) = own.rglob("*.pkl")
    lock = entry.with_suffix(".lock")
    lock.touch(0o644)
    said, _, detail, judged, taken, problems, kernels, after, there = nobody(BOTH)
    assert (taken, kernels, there) == (str(home / ".cache" / "flydsl"), 3, 3)
    assert said == after == taken
    assert (detail, judged) == (f"{taken} (by default), not made yet", "warning")
    assert problems[0].startswith(f"1 lock file in {own} made by another user (to remove: find ")
    # A folder that the user named is seeded all the same.
    chosen = give(tmp_path / "c")
    assert nobody(SEED, FLYDSL_RUNTIME_CACHE_DIR=str(chosen)) == [3, str(chosen), []]
    (chosen / entry.relative_to(own)).with_suffix(".lock").touch(0o644)
    kernels, taken, problems = nobody(SEED, FLYDSL_RUNTIME_CACHE_DIR=str(chosen))
    assert (kernels, taken) == (3, str(chosen))
    line = f"1 lock file in {chosen} made by another user: calls of these kernels will fail; "
    assert problems[0].startswith(line)
    assert os.system(problems[0].removeprefix(line)) == 0
    assert nobody(SEED, FLYDSL_RUNTIME_CACHE_DIR=str(chosen)) == [3, str(chosen), []]


def test_entries_that_another_user_made_for_themselves(nobody: Any, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    seed(cache_dir=str(folder))
    for path in folder.rglob("*"):
        if path.is_dir():
            os.chown(path, NOBODY, NOBODY)
    os.chown(folder, NOBODY, NOBODY)
    kernels, _, problems = nobody(SEED, FLYDSL_RUNTIME_CACHE_DIR=str(folder))
    assert (kernels, problems) == (3, [])
    assert {path.stat().st_uid for path in folder.rglob("*.pkl")} == {NOBODY}


@pytest.mark.parametrize("case", ["home is /", "a link to nothing", "all is well"])
def test_status_and_doctor_show_the_folder_that_seeding_takes(
    nobody: Any, home: Path, tmp_path: Path, case: str
) -> None:
    private = f"{tmp_path}/tmp/aiter-flydsl-prebuild-{NOBODY}"
    variables, expected = {"HOME": "/"}, private
    if case == "a link to nothing":
        give(home)
        (home / ".flydsl").symlink_to("/nonexistent/flydsl")
        variables, expected = {}, str(home / ".cache" / "flydsl")
    elif case == "all is well":
        give(home)
        variables, expected = {}, str(home / ".flydsl" / "cache")
    said, cautions, detail, _, taken, problems, kernels, after, there = nobody(BOTH, **variables)
    assert (taken, kernels, there) == (expected, 3, 3)
    assert said == after == taken
    assert detail == f"{taken} (by default), not made yet"
    assert cautions == problems


def test_a_user_without_a_home(monkeypatch: Any) -> None:
    monkeypatch.setattr(places, "home", lambda environ: None)
    assert "no home" in (places.defeated({}) or "")


def test_status_and_doctor_write_nothing(home: Path, pack: Path, tmp_path: Path) -> None:
    blocked(home / ".flydsl")
    before = sorted(tmp_path.rglob("*"))
    status()
    doctor._cache(os.environ)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_another_process_makes_meanwhile(
    home: Path, pack: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """It comes between two looks at the same path."""
    folder = tmp_path / "c"
    real = os.path.lexists

    def slow(path: Any) -> bool:
        folder.mkdir(mode=0o700, exist_ok=True)
        return real(path)

    monkeypatch.setattr(os.path, "lexists", slow)
    assert places.refusal(places.Place(str(folder), announce=False, chosen=True)) is None
    assert folder.is_dir(), "it was looked for"


def test_pruning_finds_the_folder_that_was_seeded(home: Path, pack: Path, monkeypatch: Any) -> None:
    blocked(home / ".flydsl")
    assert prebuild("seed").returncode == 0
    assert entries(home / ".cache" / "flydsl") == 3
    pack.unlink()
    monkeypatch.delenv("AITER_FLYDSL_PREBUILD_PACKS")
    pruned = prebuild("seed", "--prune")
    assert "3 files removed" in pruned.stdout, pruned.stdout + pruned.stderr
    assert entries(home / ".cache" / "flydsl") == 0


@pytest.mark.parametrize("command", ["chown -R 1000 /opt/flydsl", "chgrp -R 0 /opt/flydsl && chmod -R g=u /opt/flydsl"])
def test_the_commands_of_the_docs_for_images(nobody: Any, tmp_path: Path, command: str) -> None:
    """The user of the docs' commands is 1000, in group 0; here both are the other user's."""
    lines = [line.strip() for line in (ROOT / "docs" / "serving.md").read_text().splitlines()]
    folder = tmp_path / "opt"
    for line in ("aiter-flydsl-prebuild seed", command):
        assert line in lines, "not in the docs any more"
    environment = {**os.environ, "FLYDSL_RUNTIME_CACHE_DIR": str(folder)}
    assert prebuild("seed", environment=environment).returncode == 0
    here = (
        command.replace("/opt/flydsl", str(folder))
        .replace("-R 1000 ", f"-R {NOBODY} ")
        .replace("-R 0 ", f"-R {NOBODY} ")
    )
    assert os.system(here) == 0
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.pkl")}
    kernels, taken, problems = nobody(SEED, FLYDSL_RUNTIME_CACHE_DIR=str(folder))
    assert (kernels, taken) == (3, str(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.pkl")} == before, "found, not written again"
    assert [line.partition(": ")[0] for line in problems] == (
        [f"{folder} belongs to another user"] if "chgrp" in command else []
    )


# ---- vLLM ------------------------------------------------------------------------------------------------------------

IN_ORDER = """
import ast
from pathlib import Path
if source := os.environ.get("VLLM"):
    # vLLM's own function, without what its module imports.
    path = Path(source, "vllm", "models", "deepseek_v41", "amd", "mono", "runner.py")
    name = "_ensure_writable_flydsl_cache"
    code = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == name]
    space = {"os": os, "Path": Path}
    exec(compile(ast.Module(code, []), str(path), "exec"), space)
    move_cache = space[name]
else:
    sys.path.append(os.environ["HERE"])
    from standin_vllm import move_cache
steps = {"plugin": startup.vllm_plugin, "seed": p.seed, "vllm": move_cache}
raised = []
for step in os.environ["ORDER"].split():
    try:
        steps[step]()
    except PermissionError:
        raised.append(step)
folder = os.environ.get("FLYDSL_RUNTIME_CACHE_DIR", os.path.expanduser("~/.flydsl/cache"))
there = sum(name.endswith(".pkl") for _, _, names in os.walk(folder) for name in names)
print(json.dumps([folder, there, os.access(folder, os.W_OK), raised, lines]))
"""


@pytest.fixture(params=["stand-in", "real"])
def vllm(request: Any) -> dict[str, str]:
    """Who moves the folder: this project's stand-in, or vLLM's own function."""
    if request.param == "stand-in":
        return {"HERE": str(SUPPORT)}
    if not (source := os.environ.get("VLLM_SOURCE")):
        pytest.skip("VLLM_SOURCE names no folder with vLLM's files (pip install --no-deps --target FOLDER vllm)")
    return {"VLLM": source}


CASES = {
    "variable unset": "home",
    "a folder of the user's": "home chosen",
    "one that is not there yet": "home below",
    "AITER's own folder": "home bundled",
    "read-only home": "",
    "read-only home with FlyDSL's folder": "theirs",
    "a folder that is read-only": "home read-only",
    "read-only folder and home": "read-only",
    "variable empty": "home empty",
}


@pytest.mark.parametrize("order", ["plugin vllm", "vllm plugin", "vllm seed", "plugin seed vllm seed"])
@pytest.mark.parametrize("case", CASES)
def test_vllm_moves_the_folder(
    nobody: Any, vllm: dict[str, str], home: Path, tmp_path: Path, request: Any, case: str, order: str
) -> None:
    """Every kernel is found where vLLM leaves FlyDSL, or a line says which variable to set."""
    what = CASES[case].split()
    chosen = tmp_path / "c"
    more = {**vllm, "ORDER": order}
    if "home" in what:
        give(home)
    if "chosen" in what:
        more["FLYDSL_RUNTIME_CACHE_DIR"] = str(give(chosen))
    elif "below" in what:
        more["FLYDSL_RUNTIME_CACHE_DIR"] = str(give(chosen) / "new")
    elif "read-only" in what:
        chosen.mkdir(mode=0o755)
        more["FLYDSL_RUNTIME_CACHE_DIR"] = str(chosen)
    elif "bundled" in what:
        more["FLYDSL_RUNTIME_CACHE_DIR"] = str(request.getfixturevalue("bundled"))
        more["SITE"] = str(tmp_path / "site")
    elif "empty" in what:
        more["FLYDSL_RUNTIME_CACHE_DIR"] = ""
    elif "theirs" in what:
        (home / ".flydsl" / "cache").mkdir(parents=True)
    folder, there, writable, raised, lines = nobody(IN_ORDER, **more)
    if case == "read-only folder and home":
        assert raised == ["vllm"], "vLLM itself fails where it can make no folder"
        assert any("set FLYDSL_RUNTIME_CACHE_DIR to a folder that" in line for line in lines), lines
        return
    assert raised == (["vllm"] if case == "read-only home" and order.startswith("vllm") else [])
    assert writable, folder
    assert there == (4 if "bundled" in what else 3), lines
    spoken = {"read-only": "calls of FlyDSL kernels will fail", "empty": "is empty, which turns FlyDSL's cache off"}
    if (said := spoken.get(what[-1] if what else "")) and order.startswith("plugin"):
        assert said in lines[0]
        assert lines[1] == (
            f"aiter-flydsl-prebuild: vLLM's monokernel uses {home}/.flydsl/cache instead: 3 kernels are in place there"
        )


def test_vllms_plugin_changes_no_variable(nobody: Any, home: Path, tmp_path: Path) -> None:
    give(home)
    (tmp_path / "c").mkdir(mode=0o755)
    script = "startup.vllm_plugin(); print(json.dumps(os.environ['FLYDSL_RUNTIME_CACHE_DIR']))"
    assert nobody(script, FLYDSL_RUNTIME_CACHE_DIR=str(tmp_path / "c")) == str(tmp_path / "c")


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
