"""The settings of a build, in one place: command line, the hook's table, its documentation and its schema use them.

A field of :class:`BuildSettings` is a flag of ``build`` and a key of ``[tool.aiter-flydsl-prebuild]``, or says why the
table lacks it; :class:`HookSettings` adds what only the hook needs. ``tools/settings_docs.py`` writes the tables in
docs/hook.md and settings.schema.json. scikit-build-core does the same with its settings model.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..dispatch.rules import RULES
from ..errors import InputError
from .setting_kinds import (
    COMPILERS,
    COUNT,
    COUNTS,
    FLAG,
    FOLDER,
    KERNELS,
    NAMES,
    PACKAGE,
    RULE,
    SECONDS,
    SIZE,
    TEXT,
    TOKENS,
    WHOLE,
    Kind,
)

TABLE = "aiter-flydsl-prebuild"
SCHEMA = Path(__file__).with_name("settings.schema.json")

Group = Literal["plan", "build", "gates", "execution", "hook"]


@dataclass(frozen=True)
class Setting:
    """A field: ``flag`` of the command line and ``key`` of the table, each None where ``why_not`` says why."""

    name: str
    kind: Kind
    help: str
    group: Group
    default: Any
    default_text: str
    metavar: str
    flag: str | None
    key: str | None
    required: bool
    why_not: str


def _setting(
    default: Any,
    kind: Kind,
    help: str,
    group: Group,
    *,
    metavar: str = "",
    shown: str = "",
    no_key: str = "",
    no_flag: bool = False,
    required: bool = False,
) -> Any:
    """A field of the settings.

    :param shown: the default in words, where its value does not say it.
    :param no_key: why the table has no such key.
    """
    about = {
        "kind": kind,
        "help": help,
        "group": group,
        "metavar": metavar,
        "shown": shown,
        "no_key": no_key,
        "no_flag": no_flag,
        "required": required,
    }
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True)
class BuildSettings:
    """What to build, how, and what it must pass. Values are checked and parsed; None and empty mean the default."""

    source: str = _setting("reference", TEXT, "reference, aiter, or package.module:Class", "plan", metavar="NAME")
    arch: str = _setting("gfx950", TEXT, "GPU architecture", "plan", metavar="ARCH")
    cu_num: tuple[int, ...] = _setting(
        (), COUNTS, "compute units of the GPU", "plan", metavar="N", shown="all that the tables have"
    )
    tokens: tuple[int, int] = _setting(
        (1, 8192), TOKENS, "token counts", "plan", metavar="FIRST..LAST", shown="1..8192"
    )
    rule: str | None = _setting(
        None, RULE, f"AITER's dispatch rule ({', '.join(RULES)})", "plan", metavar="RULE", shown="that of the source"
    )
    kinds: tuple[str, ...] = _setting(
        (), NAMES, "families of kernels", "plan", metavar="NAME", shown="the source's own choice"
    )
    dtypes: tuple[str, ...] = _setting(
        (), NAMES, "output types of kernels whose tables do not fix them", "plan", metavar="NAME", shown="bfloat16"
    )
    models: tuple[str, ...] = _setting(
        (),
        NAMES,
        "shape lists whose untuned shapes get the heuristic's kernels, or none",
        "plan",
        metavar="NAME",
        shown="all",
    )
    workers: int | None = _setting(
        None, COUNT, "worker processes", "build", metavar="N", shown="by cores and free memory"
    )
    timeout: float = _setting(300.0, SECONDS, "limit for one kernel", "build", metavar="SECONDS", shown="300")
    keep_going: bool = _setting(False, FLAG, "make a wheel without the kernels that failed", "build")
    store: str | None = _setting(
        None,
        TEXT,
        "the kernel store: a folder, an fsspec URL, or off for none",
        "build",
        metavar="WHERE",
        shown="$AITER_FLYDSL_PREBUILD_STORE, else the user's cache",
    )
    report: Path | None = _setting(
        None, FOLDER, "write a report of the build there", "build", metavar="FOLDER", shown="none"
    )
    scheduler: str | None = _setting(
        None, TEXT, "compile on a Dask cluster, as in tcp://host:8786", "build", metavar="ADDRESS", shown="this machine"
    )
    number: int | None = _setting(
        None,
        WHOLE,
        "orders wheels for one FlyDSL: pip takes the highest",
        "build",
        metavar="N",
        shown="the time of SOURCE_DATE_EPOCH, where it is set",
        no_key="the wheel has the project's own version",
    )
    shard: str | None = _setting(
        None,
        TEXT,
        "build part I of N alone, a pack for merge",
        "build",
        metavar="I/N",
        shown="all of it",
        no_key="a part is no pack that a wheel could carry; give `pack` what `merge` made",
    )
    shard_times: Path | None = _setting(
        None,
        FOLDER,
        "measured seconds to balance parts by, one file for all of them",
        "build",
        metavar="FILE",
        shown="estimates",
        no_key="only parts need it",
    )
    max_size: int | None = _setting(
        None, SIZE, "size of the wheel, or of the hook's pack, as in 20MB", "gates", metavar="SIZE", shown="none"
    )
    max_spills: int | None = _setting(
        None, WHOLE, "registers that a kernel may spill", "gates", metavar="N", shown="none"
    )
    require_coverage: tuple[int, int] | None = _setting(
        None, TOKENS, "token counts that every shape must be served for", "gates", metavar="FIRST..LAST", shown="none"
    )
    known_bad: tuple[str, ...] = _setting(
        (),
        COMPILERS,
        "compilers that no kernel may come from: flydsl, linker",
        "gates",
        metavar="WHAT==VERSION",
        shown="none",
    )
    require_executed: bool = _setting(
        False, FLAG, "every kernel was executed when it was built (execute), and computed what it should", "gates"
    )
    execute: bool = _setting(
        False, FLAG, "run kernels on an emulator of the GPU, and compare with a numpy reference", "execution"
    )
    kernels: int | str | None = _setting(
        None,
        KERNELS,
        "how many are executed",
        "execution",
        metavar="N|all",
        shown="as few as cover every tile, pipeline depth and flag of their names",
    )
    seed: int = _setting(0, WHOLE, "of the operands of what is executed", "execution", metavar="S")
    emulator: Path | None = _setting(
        None, FOLDER, "a tinygrad source checkout", "execution", metavar="FOLDER", shown="$TINYGRAD_SOURCE"
    )


@dataclass(frozen=True)
class HookSettings(BuildSettings):
    """``[tool.aiter-flydsl-prebuild]``: the build's settings, and where its pack goes. Paths are absolute."""

    package: str = _setting(
        "",
        PACKAGE,
        "the package of your project that gets the folder `flydsl_kernels`; it must exist",
        "hook",
        no_flag=True,
        required=True,
    )
    pack: Path | None = _setting(
        None,
        FOLDER,
        "a finished pack, or the wheel that `build` or `merge` made, in place of a build: nothing is compiled, torch "
        "and FlyDSL are not needed, and the sdist carries it",
        "hook",
        shown="none",
        no_flag=True,
    )
    source_path: Path = _setting(
        Path(),
        FOLDER,
        "a folder in front of the import path while kernels are built, for kernels in the project itself",
        "hook",
        shown="the project",
        no_flag=True,
    )
    loader: bool = _setting(True, FLAG, "make the loader a requirement of the wheel", "hook", no_flag=True)
    optional: bool = _setting(
        False, FLAG, "where kernels cannot be made, build the wheel without, and warn", "hook", no_flag=True
    )
    editable: bool = _setting(False, FLAG, "compile for editable installs too", "hook", no_flag=True)
    enabled: bool = _setting(True, FLAG, "`false` switches the hook off", "hook", no_flag=True)


# What goes with a finished pack; all else says how to make one.
_WITH_PACK = ("hook", "gates")
_ALSO_WITH_PACK = ("report",)


def settings(model: type[BuildSettings] = BuildSettings, *groups: Group) -> tuple[Setting, ...]:
    """The settings of a model, in their order; those of some groups alone where groups are named."""
    found = []
    for field in dataclasses.fields(model):
        about = field.metadata
        if groups and about["group"] not in groups:
            continue
        spelled = field.name.replace("_", "-")
        found.append(
            Setting(
                name=field.name,
                kind=about["kind"],
                help=about["help"],
                group=about["group"],
                default=field.default,
                default_text=about["shown"] or _spelled(field.default),
                metavar=about["metavar"],
                flag=None if about["no_flag"] else f"--{spelled}",
                key=None if about["no_key"] else spelled,
                required=about["required"],
                why_not=about["no_key"],
            )
        )
    return tuple(found)


def setting(name: str) -> Setting:
    """One setting of a build."""
    return next(one for one in settings() if one.name == name)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- the hook's table ------------------------------------------------------------------------------------------------


def read_table(table: Mapping[str, Any], project: Path) -> HookSettings:
    """The settings of a project in a folder.

    :raises InputError: keys are unknown or missing, or values wrong; all of them are listed.
    """
    known = {one.key: one for one in settings(HookSettings) if one.key}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in table.items():
        if key not in known:
            problems.append(_unknown(key))
            continue
        try:
            values[known[key].name] = known[key].kind.from_table(value)
        except InputError as error:
            problems.append(f"{key} {error}")
    problems += [f"needs {one.key}: {one.help}" for one in known.values() if one.required and one.key not in table]
    problems += _contradictions(table, known)
    if problems:
        raise InputError(f"pyproject.toml: [tool.{TABLE}] {problem}" for problem in problems)
    for name, path in {"source_path": Path(), **values}.items():
        if isinstance(path, Path):
            values[name] = project / path
    store = values.get("store")
    if store not in (None, "off") and "://" not in store:
        values["store"] = str(project / Path(store).expanduser())
    return HookSettings(**values)


def _unknown(key: str) -> str:
    for one in settings(HookSettings):
        if key == one.name.replace("_", "-"):
            return f"has no key {key!r}, which is for the command line alone: {one.why_not}"
    keys = [one.key for one in settings(HookSettings) if one.key]
    near = difflib.get_close_matches(key, keys, 1)
    return f"has no key {key!r}; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(keys)}")


def _contradictions(table: Mapping[str, Any], known: Mapping[str, Setting]) -> list[str]:
    pack = table.get("pack")
    if not isinstance(pack, str):
        return []
    found = []
    if not Path(pack).is_absolute() and ".." in Path(pack).parts:
        found.append(f"pack {pack!r} leads out of the project, so that an sdist cannot carry it; move it inside")
    for key in table:
        if key in known and known[key].group not in _WITH_PACK and key not in _ALSO_WITH_PACK:
            found.append(f"{key} says how to build kernels, and pack names finished ones; remove one of the two")
    return found


# ---- schema and documentation ----------------------------------------------------------------------------------------


def make_schema() -> dict[str, Any]:
    """The JSON schema of the table, as plugins of validate-pyproject give it."""
    properties = {}
    for one in settings(HookSettings):
        if one.key:
            about = one.kind.to_schema() | {"description": _sentence(one.help)}
            if isinstance(one.default, (str, bool)) and not one.required:
                about["default"] = one.default
            properties[one.key] = about
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://pypi.org/project/aiter-flydsl-prebuild/settings.schema.json",
        "title": f"[tool.{TABLE}]",
        "description": "FlyDSL kernels that setuptools builds into the wheel of a project.",
        "type": "object",
        "additionalProperties": False,
        "required": [one.key for one in settings(HookSettings) if one.required],
        "properties": properties,
    }


def tool_schema(tool: str) -> dict[str, Any]:
    """The schema for validate-pyproject (entry point ``validate_pyproject.tool_schema``)."""
    if tool != TABLE:
        raise InputError(f"no schema for [tool.{tool}], only for [tool.{TABLE}]")
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


def docs_table() -> str:
    """The tables of docs/hook.md: the hook's own keys, those that ``build`` has as flags, and the flags left out."""
    hook = [one for one in settings(HookSettings) if one.group == "hook"]
    lines = [*_rows(hook), "", "These are the flags of `build` ([commands.md](commands.md)), without the dashes:", ""]
    lines += [*_rows(one for one in settings() if one.key), "", "There is no key for these flags:", ""]
    lines += [f"* `{one.flag}`: {one.why_not}." for one in settings() if not one.key]
    return "\n".join(lines) + "\n"


def _rows(found: Iterable[Setting]) -> list[str]:
    lines = ["| key | value | meaning | default |", "| --- | --- | --- | --- |"]
    for one in found:
        words = f"list, each {one.kind.words}" if one.kind.many else one.kind.words
        default = "required" if one.required else one.default_text
        lines.append(f"| `{one.key}` | {words} | {one.help} | {default} |")
    return lines


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
