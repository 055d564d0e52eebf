"""Putting tables and launchers in front of a FlyDSL that has just been imported."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from . import launchers, lookup
from .hook import LAUNCHERS_SUFFIX, LOOKUP_SUFFIX

_logger = logging.getLogger("aiter_flydsl_prebuild")

_enabled: list[str] = []
"""The stamps in use in this process."""

libraries: list[launchers.Launchers] = []
"""The libraries of launchers in use in this process."""


def enable(jit: Any, stamps: Callable[[], list[str]]) -> None:
    """Read what is there under some stamps and let FlyDSL use it. Never raises; what is wrong is one line of log."""
    try:
        found = [stamp for stamp in stamps() if stamp not in _enabled]
        if not found:
            return
        _enabled.extend(found)
        problems = [_enable_lookup(jit, found), _enable_launchers(found)]
    except Exception as error:  # The host program's import of FlyDSL is worth more than what this saves.
        problems = [f"tables and launchers are not used: {type(error).__name__}: {error}"]
    for problem in filter(None, problems):
        _logger.warning("aiter-flydsl-prebuild: %s", problem)


def _enable_lookup(jit: Any, stamps: list[str]) -> str | None:
    mode = lookup.mode_of(os.environ)
    wrong = None
    if mode is None:
        wrong = (
            f"{lookup.VARIABLE}={os.environ.get(lookup.VARIABLE)}: not one of {', '.join(lookup.MODES)}; taken as off"
        )
        mode = "off"
    if mode == "off":
        return wrong
    tables = []
    for stamp in stamps:
        try:
            with open(stamp + LOOKUP_SUFFIX, encoding="utf-8") as file:
                table = lookup.Table(file.read())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            wrong = f"{stamp + LOOKUP_SUFFIX}: a damaged table is not used: {error}"
            continue
        # Code is compared as this interpreter compiles it.
        if table.abi == sys.implementation.cache_tag:
            tables.append(table)
    if not tables:
        return wrong
    if not lookup.known(jit):
        return "look-up tables are not used: this FlyDSL's compiler/jit_function.py is not one that is known here"
    found = lookup.Lookup(tables, mode)
    found.install(jit)
    found.prepare(jit)
    return wrong


def _enable_launchers(stamps: list[str]) -> str | None:
    if os.environ.get(launchers.VARIABLE, "").strip().lower() in ("0", "off"):
        return None
    found = [
        launchers.Launchers(path)
        for path in (stamp + LAUNCHERS_SUFFIX for stamp in stamps)
        if os.path.isfile(path) and os.path.isfile(f"{path}.json")
    ]
    if not found:
        return None
    libraries.extend(found)
    return launchers.install(sys.modules["flydsl.compiler.jit_executor"], found)
