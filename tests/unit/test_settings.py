"""The build's settings: one dataclass behind the command line, the hook's table, its documentation and its schema."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.pipeline import request_of
from aiter_flydsl_prebuild.builder.settings import (
    SCHEMA,
    BuildSettings,
    HookSettings,
    make_schema,
    read_table,
    settings,
    tool_schema,
)
from aiter_flydsl_prebuild.cli import arguments
from aiter_flydsl_prebuild.cli.main import make_parser
from aiter_flydsl_prebuild.errors import InputError
from processes import ROOT, run_python

# For each setting of a build: words of the command line, the value of the table, what the field holds then.
VALUES: dict[str, tuple[list[str], Any, Any]] = {
    "source": (["aiter"], "aiter", "aiter"),
    "arch": (["gfx942"], "gfx942", "gfx942"),
    "cu_num": (["256", "32"], [256, 32], (256, 32)),
    "tokens": (["1..64"], "1..64", (1, 64)),
    "rule": (["august"], "august", "august"),
    "kinds": (["a", "b"], ["a", "b"], ("a", "b")),
    "dtypes": (["f16"], ["f16"], ("f16",)),
    "models": (["none"], ["none"], ("none",)),
    "workers": (["3"], 3, 3),
    "timeout": (["2.5"], 2.5, 2.5),
    "keep_going": ([], True, True),
    "store": (["/store"], "/store", "/store"),
    "report": (["/report"], "/report", Path("/report")),
    "scheduler": (["tcp://host:8786"], "tcp://host:8786", "tcp://host:8786"),
    "number": (["7"], None, 7),
    "shard": (["1/3"], None, "1/3"),
    "shard_times": (["t.json"], None, Path("t.json")),
    "max_size": (["20MB"], "20MB", 20_000_000),
    "max_spills": (["0"], 0, 0),
    "require_coverage": (["8"], "8", (1, 8)),
    "known_bad": (["flydsl==0.4.1", "linker==LLD 22"], ["flydsl==0.4.1", "linker==LLD 22"], None),
    "require_executed": ([], True, True),
    "execute": ([], True, True),
    "kernels": (["12"], "12", 12),
    "seed": (["3"], 3, 3),
    "emulator": (["/tinygrad"], "/tinygrad", Path("/tinygrad")),
}
VALUES["known_bad"] = (*VALUES["known_bad"][:2], tuple(VALUES["known_bad"][1]))
ONLY_WITH_EXECUTE = ("kernels", "seed", "emulator")
TABLE = {one.key: VALUES[one.name][1] for one in settings() if one.key} | {"package": "theirs"}


def test_every_setting_is_tried() -> None:
    assert [one.name for one in settings()] == list(VALUES)


def test_what_the_table_has_the_command_line_has_and_the_other_way_round() -> None:
    for one in settings():
        assert one.flag
        assert bool(one.key) != bool(one.why_not), "what the hook lacks has a reason"
    for one in settings(HookSettings):
        assert one.key or one.why_not


@pytest.mark.parametrize("name", VALUES)
def test_a_setting_means_the_same_in_both(name: str) -> None:
    words, value, held = VALUES[name]
    one = next(one for one in settings() if one.name == name)
    args = make_parser().parse_args(["build", str(one.flag), *words])
    asked = arguments.asked(args)
    assert asked == dataclasses.replace(BuildSettings(), **{name: held})
    if name in ONLY_WITH_EXECUTE:
        with pytest.raises(InputError, match="--execute"):
            request_of(asked)
        asked = dataclasses.replace(asked, execute=True)
    request_of(asked)
    if one.key:
        found = read_table({"package": "theirs", one.key: value}, Path("/project"))
        assert getattr(found, name) == held
        assert {other.name: getattr(found, other.name) for other in settings() if other.name != name} == {
            other.name: other.default for other in settings() if other.name != name
        }


def test_no_flag_at_all_is_the_default() -> None:
    assert arguments.asked(make_parser().parse_args(["build"])) == BuildSettings()
    assert arguments.asked(make_parser().parse_args(["plan"])) == BuildSettings()
    assert arguments.asked(make_parser().parse_args(["check", "w"])) == BuildSettings()


def test_paths_of_the_table_are_the_projects() -> None:
    table = {"package": "theirs", "report": "report", "store": "store", "source-path": "src"}
    found = read_table(table, Path("/project"))
    assert (found.report, found.store, found.source_path) == (
        Path("/project/report"),
        "/project/store",
        Path("/project/src"),
    )
    for store in ("off", "s3://bucket/x"):
        assert read_table({"package": "theirs", "store": store}, Path("/project")).store == store


def test_every_fault_is_listed_with_its_key_and_what_to_do() -> None:
    table = {
        "tokns": "1..8",
        "shard": "1/2",
        "colour": "red",
        "tokens": 8192,
        "cu-num": ["256"],
        "max-spills": -1,
        "max-size": "big",
        "known-bad": ["gcc==1"],
        "timeout": 0,
        "workers": True,
        "rule": "oldest",
        "keep-going": "yes",
        "require-coverage": "9..1",
    }
    with pytest.raises(InputError) as caught:
        read_table(table, Path("/project"))
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == len(table) + 1
    assert all(line.startswith("pyproject.toml: [tool.aiter-flydsl-prebuild] ") for line in caught.value.problems)
    for words in (
        "has no key 'tokns'; did you mean tokens?",
        "has no key 'shard', which is for the command line alone: a part is no pack",
        "has no key 'colour'; known are source, arch,",
        "tokens must be token counts such as 1..8192, is 8192",
        "cu-num must be a list, each a positive whole number; is ['256']",
        "max-spills must be a whole number, is -1",
        "max-size must be a size such as 20MB, is 'big'",
        "known-bad must be a list, each flydsl==VERSION or linker==TEXT; is ['gcc==1']",
        "timeout must be a positive number of seconds, is 0",
        "workers must be a positive whole number, is True",
        "rule must be one of newest, august, is 'oldest'",
        "keep-going must be true or false, is 'yes'",
        "require-coverage must be token counts such as 1..8192, is '9..1'",
        "needs package: the package of your project",
    ):
        assert words in problems


def test_a_finished_pack_and_how_to_build_one_exclude_each_other() -> None:
    table = {"package": "theirs", "pack": "k.fkpack", "tokens": "1..8", "max-size": "1MB", "report": "r"}
    with pytest.raises(InputError) as caught:
        read_table(table, Path("/project"))
    (problem,) = caught.value.problems
    assert "tokens says how to build kernels, and pack names finished ones" in problem


def tools() -> Any:
    spec = importlib.util.spec_from_file_location("settings_docs", ROOT / "tools" / "settings_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_the_schema_are_those_of_the_settings() -> None:
    """Where this fails: python tools/settings_docs.py"""
    made = tools()
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.BEGIN in page
    assert page == made.page(page)
    assert SCHEMA.read_text(encoding="utf-8") == made.schema()
    for one in settings(HookSettings):
        assert (f"| `{one.key}` |" if one.key else f"* `{one.flag}`: ") in page


WRONG: dict[str, Any] = {
    **{"tokens": "many", "cu-num": [0], "max-spills": -1, "colour": "red", "package": "../x"},
    **{"known-bad": ["gcc==1"], "keep-going": 1},
}


@pytest.mark.parametrize("key", [None, *WRONG])
def test_the_schema_says_what_the_table_takes(tmp_path: Path, key: str | None) -> None:
    """A whole table passes, and one with a wrong value does not: as check-jsonschema sees it, and as the hook does."""
    table = TABLE if key is None else TABLE | {key: WRONG[key]}
    (tmp_path / "table.json").write_text(json.dumps(table))
    command = ["-m", "check_jsonschema", "--schemafile", str(SCHEMA), str(tmp_path / "table.json")]
    run = run_python(command, dict(os.environ))
    assert (run.returncode == 0) == (key is None), run.stdout + run.stderr
    if key is None:
        read_table(table, Path("/project"))
    else:
        with pytest.raises(InputError, match=key):
            read_table(table, Path("/project"))


def test_the_schema_is_for_validate_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool_schema("aiter-flydsl-prebuild") == make_schema()
    assert {"$id", "$schema", "properties"} <= make_schema().keys()
    with pytest.raises(InputError):
        tool_schema("other")
