"""The command line: what runs with the loader's own requirement, what the rest needs, and how commands end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import needs
from aiter_flydsl_prebuild.cli import main as cli
from aiter_flydsl_prebuild.cli.result import Result
from aiter_flydsl_prebuild.errors import CheckError, InputError, PrebuildError
from aiter_flydsl_prebuild.packs.format import PackError
from processes import ROOT, run_python, start_interruptible

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILD = "pip install 'aiter-flydsl-prebuild[build]'"

# What a server is told to run, and what else needs no extra: arguments, exit status, a part of what is printed.
WITHOUT_EXTRAS = {
    "--version": (0, "aiter-flydsl-prebuild 0."),
    "--help": (0, "COMMAND"),
    "status": (0, "not installed"),
    "seed": (0, "nothing to do"),
    "warm": (0, "nothing to call"),
    "startup --install": (0, "written"),
    "startup --remove": (0, "is not there any more"),
    "doctor": (1, "missing"),
    "inspect WHEEL": (0, "135 kernels"),
    "inspect WHEEL --extract OUT": (0, ".hsaco"),
    "diff WHEEL WHEEL": (0, "identical"),
    "check WHEEL --max-spills 0": (0, "all gates are passed"),
    "plan": (0, "135 distinct kernels"),
    "store stats --store OUT": (0, "nothing is in it"),
    "store times --store OUT": (0, "seconds_of"),
    "store gc --store OUT": (0, "0 entries"),
}
WITH_EXTRAS = {
    "build": "build needs pyelftools, msgpack, pebble, numpy, torch, flydsl, setuptools, installer and packaging, "
    f"which are not installed: {BUILD} torch flydsl",
    "verify WHEEL": "verify needs pyelftools, msgpack, numpy, torch, flydsl, installer and packaging, "
    f"which are not installed: {BUILD} torch flydsl",
    "merge WHEEL": f"merge needs setuptools, installer and packaging, which are not installed: {BUILD}",
    "report WHEEL --out OUT": "a report needs jinja2 and matplotlib, which are not installed: "
    "pip install 'aiter-flydsl-prebuild[report]'",
    "store stats --store memory://x": "memory://x, a store by URL, needs fsspec, which is not installed: "
    "pip install 'aiter-flydsl-prebuild[store]'",
}


def on_the_server(line: str, server: Path, wheel: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    places = {"WHEEL": str(wheel), "OUT": str(folder / "out")}
    command = [str(server.parent / "aiter-flydsl-prebuild"), *(places.get(word, word) for word in line.split())]
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**kept, "FLYDSL_RUNTIME_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_what_a_server_runs_needs_the_loaders_requirement_alone(bare_server: Path, wheel: Path, tmp_path: Path) -> None:
    wrong = {}
    for line, (status, words) in WITHOUT_EXTRAS.items():
        run = on_the_server(line, bare_server, wheel, tmp_path)
        if run.returncode != status or words.replace("135 kernels", "kernels for gfx950") not in run.stdout:
            wrong[line] = (run.returncode, run.stdout, run.stderr)
    assert not wrong


def test_the_other_commands_name_the_extra_that_they_need(bare_server: Path, wheel: Path, tmp_path: Path) -> None:
    for line, words in WITH_EXTRAS.items():
        run = on_the_server(line, bare_server, wheel, tmp_path)
        assert (run.returncode, run.stderr) == (1, f"aiter-flydsl-prebuild: {words}\n"), line
    covered = {line.split()[0] for line in (*WITHOUT_EXTRAS, *WITH_EXTRAS)}
    assert covered >= set(cli.COMMANDS), "every command is tried"


def test_installed_kernels_that_nothing_can_call_are_said(bare_server: Path, wheel: Path, tmp_path: Path) -> None:
    script = (
        "import sys, aiter_flydsl_prebuild.warming as w\n"
        "w.find_packs = lambda packages: ['a.fkpack']\n"
        "print(w.warm().problems)"
    )
    run = run_python(["-c", script], dict(os.environ), bare_server, cwd=tmp_path)
    assert "torch cannot be imported, so no kernel can be called" in run.stdout


def test_the_parser_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys\n"
        "from aiter_flydsl_prebuild.cli.main import make_parser\n"
        "make_parser()\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names))"
    )
    run = run_python(["-c", script], dict(os.environ))
    extra = set(run.stdout.split()) - {"__main__", "__mp_main__"}
    assert {name for name in extra if not name.startswith(("_", "sitecustomize"))} == {"aiter_flydsl_prebuild"}


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for distribution, extra in needs.MODULES.values():
        if extra is not None:
            names = [line.partition(">")[0] for line in project["optional-dependencies"][extra]]
            assert distribution in names


# ---- exit status -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("a table is wrong"), 2),
        (CheckError("the proof failed"), 1),
        (PrebuildError("a worker process could not be started"), 1),
        (PackError("cut short"), 1),
        (needs.MissingError("build", ["torch"]), 1),
        (OSError(28, "No space left on device"), 1),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 1),
        (ModuleNotFoundError("No module named x", name="aiter_flydsl_prebuild.tuned_configs"), 2),
    ],
)
def test_status_2_is_for_what_the_user_gave(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    def run(args: Any) -> Result:
        raise error

    monkeypatch.setattr(cli.COMMANDS["status"], "run", run)
    assert cli.main(["status", "--json"]) == status
    said = capsys.readouterr()
    assert said.err.startswith("aiter-flydsl-prebuild: ")
    assert json.loads(said.out)["error"] in said.err


def test_a_worker_that_cannot_start_is_no_fault_of_the_input(tmp_path: Path) -> None:
    """Workers start through this interpreter, which the machine may refuse, for want of processes, say."""
    script = (
        "import sys\n"
        "from multiprocessing import util\n"
        "def refuse(*arguments): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "util.spawnv_passfds = refuse\n"
        "from aiter_flydsl_prebuild.cli.main import main\n"
        "sys.exit(main(['build', '--tokens', '1..1', '--out', sys.argv[1]]))"
    )
    run = run_python(["-c", script, str(tmp_path / "dist")], dict(os.environ))
    assert "a worker process could not be started" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.returncode == 1


def test_json_may_stand_before_a_task(tmp_path: Path) -> None:
    run = run_python(
        ["-m", "aiter_flydsl_prebuild", "store", "--json", "stats", "--store", str(tmp_path)], dict(os.environ)
    )
    assert json.loads(run.stdout)["where"] == str(tmp_path)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_ctrl_c_says_what_is_so_for_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def run(args: Any) -> Result:
        raise KeyboardInterrupt

    command = cli.COMMANDS[name]
    monkeypatch.setattr(command, "run", run)
    needed = {
        "merge": ["w"],
        "diff": ["a", "b"],
        "check": ["w"],
        "report": ["w", "--out", "o"],
        "startup": ["--remove"],
    }
    assert cli.main([name, *needed.get(name, [])]) == 130
    said = capsys.readouterr().err
    assert said == f"aiter-flydsl-prebuild: interrupted{': ' if command.INTERRUPTED else ''}{command.INTERRUPTED}\n"
    writes = {"build", "merge", "report", "inspect", "seed", "warm", "store"}
    assert bool(command.INTERRUPTED) == (name in writes), "commands that write say what is left"


def test_ctrl_c_while_printing_says_that_the_work_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def show() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.COMMANDS["seed"], "run", lambda args: Result({}, show))
    assert cli.main(["seed"]) == 130
    assert capsys.readouterr().err == "aiter-flydsl-prebuild: interrupted: it had finished, and was printing\n"


def test_a_suite_in_the_background_can_interrupt_its_children() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    script = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = start_interruptible([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert child.communicate(timeout=20)[0] == "True\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_in_the_background_keeps_ignoring_ctrl_c() -> None:
    """What the shell asks of a background job: Ctrl-C is for the job in the foreground."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "aiter_flydsl_prebuild", "plan"], stdout=subprocess.PIPE, text=True
        )
        child.send_signal(signal.SIGINT)
        assert "135 distinct kernels" in child.communicate(timeout=60)[0]
        assert child.returncode == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_module_that_no_extra_brings_is_a_fault_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError):
        cli._missing(ModuleNotFoundError(name="aiter_nonsense"))
