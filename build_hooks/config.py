"""A project's ``[tool.aiter-flydsl-prebuild]`` table, found and read."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_flydsl_prebuild.discovery import BUILD_VARIABLE
from aiter_flydsl_prebuild.errors import InputError

if TYPE_CHECKING:
    from aiter_flydsl_prebuild.builder.settings import HookSettings

_TABLE = "aiter-flydsl-prebuild"
_STORE_VARIABLE = "AITER_FLYDSL_PREBUILD_STORE"


def read_config(project: Path, environ: Mapping[str, str] = os.environ) -> HookSettings | None:
    """The hook's settings for the project in a folder; None where it has no table.

    A project without the table costs one read of its pyproject.toml and nothing more. The environment is of the machine
    that builds, and has the last word: BUILD_VARIABLE over ``enabled``, the store's variable over ``store``.

    :raises InputError: the table has a key that is not known, or a wrong value; every fault is listed.
    """
    try:
        text = (project / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if _TABLE not in text:
        return None
    try:
        table = _loads(text).get("tool", {}).get(_TABLE)
    except ValueError:
        return None  # setuptools says so itself, and better
    if table is None:
        return None
    from aiter_flydsl_prebuild.builder.settings import read_table

    found = read_table(table, project)
    switch = environ.get(BUILD_VARIABLE, "")
    return replace(
        found,
        enabled=switch == "1" or (found.enabled and switch != "0"),
        store=environ.get(_STORE_VARIABLE) or found.store,
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
