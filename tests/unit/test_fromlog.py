from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.dispatch.fromlog import sizes
from processes import prebuild


def event(**changes: Any) -> dict[str, Any]:
    return {"launcher": "gemm", "kernels": [], "constants": {}, "arguments": [], "seconds": 0.5, **changes}


def write(path: Path, *events: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in events))
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"constants": {"n": 512, "k": 5120}, "arguments": ["PointerJitArg", 7, "Stream"]}, (512, 5120, 7)),
        ({"constants": {"N": 512, "K": 5120}, "arguments": [7, 8]}, (512, 5120, None)),
        ({"arguments": ["bfloat16[3, 512]", "float8_e4m3fn[3, 5120]", "float8_e4m3fn[512, 5120]"]}, (512, 5120, 3)),
        ({"arguments": ["float8_e4m3fn[512, 5120]", "float32[3, 1]"]}, (None, None, None)),
        ({"constants": {"n": "512", "k": True}}, (None, None, None)),
    ],
)
def test_sizes(changes: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert sizes(event(**changes)) == expected


def test_the_tables_say_which_row_is_missing(tmp_path: Path) -> None:
    layer = {"constants": {"n": 512, "k": 5120}}
    other = {"constants": {"n": 640, "k": 5120}}
    log = write(
        tmp_path / "log.jsonl",
        event(**layer, arguments=[7]),
        event(**layer, arguments=[100_000]),
        event(**other, arguments=[7], seconds=1),
    )
    run = prebuild("plan", "--from-log", log, "--json")
    assert run.returncode == 0, run.stderr
    known, unknown = json.loads(run.stdout)["wanted"]
    assert (known["n"], known["k"], known["tokens"], known["compiles"], known["seconds"]) == (
        512,
        5120,
        [7, 100000],
        2,
        1.0,
    )
    assert known["rows"][0]["kernel"].startswith("refgemm_mxfp8_")
    assert known["rows"][1] == {"tokens": 100000, "kernel": None}
    assert unknown["rows"] == [{"tokens": 7, "kernel": None}]
    assert "640" in prebuild("plan", "--from-log", log).stdout


def test_lines_that_are_no_events_are_all_named(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", event(), [], {"launcher": "gemm"}, event(seconds="long"))
    with log.open("a") as file:
        file.write("{torn\n")
    run = prebuild("plan", "--from-log", log)
    assert run.returncode == 2
    assert [line.split(": ")[-2] for line in run.stderr.splitlines()] == [f"line {n}" for n in (2, 3, 4, 5)]


def test_no_log(tmp_path: Path) -> None:
    run = prebuild("plan", "--from-log", tmp_path / "none")
    assert (run.returncode, "No such file" in run.stderr) == (2, True)
