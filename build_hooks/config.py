"""A project's ``[tool.aiter-flydsl-prebuild]`` table, read once into one typed object."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiter_flydsl_prebuild.discovery import BUILD_VARIABLE
from aiter_flydsl_prebuild.errors import InputError

TABLE = "aiter-flydsl-prebuild"


@dataclass(frozen=True)
class HookConfig:
    """What the table says.

    Where it is not ``enabled``, nothing is built, and kernels of an earlier build are taken out of the build folder.
    ``package`` is the package of the project that the pack goes into (its ``flydsl_kernels`` folder). ``pack`` names a
    finished pack; without it one is built from ``source`` for ``arch`` and ``tokens``, ``kinds``, ``dtypes`` and
    ``models``, with ``source_path`` in front of the import path, and must pass the gates ``max_size`` (of the pack),
    ``max_spills`` and ``require_coverage``. ``loader`` makes this project a requirement of the wheel. ``optional`` lets
    the wheel be built without kernels where they cannot be made; ``editable`` builds them for editable installs too.
    """

    enabled: bool
    package: str
    pack: Path | None
    source: str
    arch: str
    tokens: str
    cu_num: tuple[int, ...]
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    models: tuple[str, ...]
    max_size: str
    max_spills: int | None
    require_coverage: str
    source_path: Path
    loader: bool
    optional: bool
    editable: bool


# Key -> (type, default); what has no default must be there.
_KEYS: dict[str, tuple[type, Any]] = {
    "enabled": (bool, True),
    "package": (str, None),
    "pack": (str, ""),
    "source": (str, "reference"),
    "arch": (str, "gfx950"),
    "tokens": (str, "1..8192"),
    "cu-num": (list, []),
    "kinds": (list, []),
    "dtypes": (list, []),
    "models": (list, []),
    "max-size": (str, ""),
    "max-spills": (int, -1),
    "require-coverage": (str, ""),
    "source-path": (str, "."),
    "loader": (bool, True),
    "optional": (bool, False),
    "editable": (bool, False),
}


def read_config(project: Path, environ: Mapping[str, str] = os.environ) -> HookConfig | None:
    """The hook's settings for the project in a folder; None where it has no table.

    A project without the table costs one read of its pyproject.toml and nothing more.

    :raises InputError: the table has a key that is not known, or a value of the wrong type; every fault is listed.
    """
    try:
        text = (project / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if TABLE not in text:
        return None
    try:
        table = _loads(text).get("tool", {}).get(TABLE)
    except ValueError:
        return None  # setuptools says so itself, and better
    if table is None:
        return None
    problems = [
        f"pyproject.toml: [tool.{TABLE}] has no key {key!r}; known are {', '.join(_KEYS)}"
        for key in table.keys() - _KEYS
    ]
    values = {key: table.get(key, default) for key, (_, default) in _KEYS.items()}
    for key, (kind, default) in _KEYS.items():
        if key in table and type(table[key]) is not kind:
            problems.append(f"pyproject.toml: [tool.{TABLE}] {key} must be of type {kind.__name__}, is {table[key]!r}")
        elif values[key] is None and default is None:
            problems.append(f"pyproject.toml: [tool.{TABLE}] needs {key}")
    for key, kind in (("cu-num", int), ("kinds", str), ("dtypes", str), ("models", str)):
        if isinstance(values[key], list) and not all(type(value) is kind for value in values[key]):
            what = {int: "integers", str: "strings"}[kind]
            problems.append(f"pyproject.toml: [tool.{TABLE}] {key} must be a list of {what}")
    if isinstance(values["package"], str) and not all(part.isidentifier() for part in values["package"].split(".")):
        problems.append(f"pyproject.toml: [tool.{TABLE}] package {values['package']!r} is not the name of a package")
    if isinstance(pack := values["pack"], str) and not Path(pack).is_absolute() and ".." in Path(pack).parts:
        problems.append(f"pyproject.toml: [tool.{TABLE}] pack {pack!r} leads out of the project")
    if problems:
        raise InputError(problems)
    switch = environ.get(BUILD_VARIABLE, "")
    return HookConfig(
        enabled=switch == "1" or (values["enabled"] and switch != "0"),
        package=values["package"],
        pack=project / values["pack"] if values["pack"] else None,
        source=values["source"],
        arch=values["arch"],
        tokens=values["tokens"],
        cu_num=tuple(values["cu-num"]),
        kinds=tuple(values["kinds"]),
        dtypes=tuple(values["dtypes"]),
        models=tuple(values["models"]),
        max_size=values["max-size"],
        max_spills=None if values["max-spills"] < 0 else values["max-spills"],
        require_coverage=values["require-coverage"],
        source_path=project / values["source-path"],
        loader=values["loader"],
        optional=values["optional"],
        editable=values["editable"],
    )


def _loads(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        # Not a requirement of the loader: only a project with the table comes here.
        try:
            import tomli as tomllib
        except ImportError:
            raise InputError("pyproject.toml cannot be read on this Python without tomli: pip install tomli") from None
    loaded: dict[str, Any] = tomllib.loads(text)
    return loaded
