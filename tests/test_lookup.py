"""The look-up table against FlyDSL 0.5: a call that it knows finds the artifact of its trace, and no other call does.

Each case of lookup_process.py changes something that a trace reads, calls, and calls again with no table in front.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.call_keys import ContradictionError, RecordedCall, make_table
from aiter_flydsl_prebuild.builder.toolchain import find_toolchain, worker_environment

pytest.importorskip("flydsl", minversion="0.5")

HERE = Path(__file__).parent
UNCHANGED = {
    *("nothing", "other_rows", "second_call", "after_a_trace", "closure", "in_a_thread", "patched_by_watch"),
    "object_in_a_closure",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lookup")
    for name in ("lookup_helper.py", "lookup_kernels.py", "lookup_process.py"):
        shutil.copy(HERE / name, folder)
    environment = worker_environment(
        os.environ, rocm_root=find_toolchain().rocm_root, arch="gfx950", folder=folder / "tmp"
    )
    environment |= {"FLYDSL_RUNTIME_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}

    def run(*arguments: str) -> Any:
        command = [sys.executable, str(folder / "lookup_process.py"), *arguments]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    table = str(folder / "table.json")
    return {"recorded": run("record", table), "cases": run("try", table)}


def test_what_cannot_be_named_is_left_out_with_the_reason(results: dict[str, Any]) -> None:
    problems = {launcher: problem for launcher, problem in results["recorded"] if problem}
    assert problems == {
        "lookup_kernels:Owner.method": "it is a method",
        "lookup_kernels:reading": "its trace reads the file /etc/hostname",
    }


def test_every_call_takes_the_artifact_that_its_trace_gives(results: dict[str, Any]) -> None:
    wrong = {name: found for name, found in results["cases"].items() if found.get("same") is not True}
    assert not wrong


def test_a_call_is_found_in_the_table_where_nothing_has_changed_and_only_there(results: dict[str, Any]) -> None:
    assert len(results["cases"]) > 40
    assert {name for name, found in results["cases"].items() if found["table"]} == UNCHANGED


def call(key: str, artifact: str, **guards: str) -> RecordedCall:
    return RecordedCall("m:f", key, artifact, {"m": dict(guards)}, {})


def test_two_artifacts_under_one_key_make_no_table() -> None:
    with pytest.raises(ContradictionError, match="one call led to two artifacts"):
        make_table([call("1", "a"), call("1", "b")], "cpython-311")


def test_a_name_that_stood_for_two_things_makes_no_table() -> None:
    with pytest.raises(ContradictionError, match="x of m was one thing"):
        make_table([call("1", "a", x="1"), call("2", "b", x="2")], "cpython-311")


def test_what_ran_in_one_trace_is_told_by_its_code_in_all() -> None:
    table = make_table([call("1", "a", x="~idle"), call("2", "b", x="code"), call("3", "c", x="~idle")], "cpython-311")
    assert table["guards"] == {"m": {"x": "code"}}
