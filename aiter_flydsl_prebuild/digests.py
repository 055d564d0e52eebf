"""Digests of values, files and of this project's own code, for the keys of the store."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
# What is between a job and its entry in the store, beside its source; all else of this project changes no kernel.
_COMPILING = (
    *("flydsl/cache.py", "packs/manifest.py", "packs/codeobject.py", "builder/compiling.py", "builder/packing.py"),
    *("model/job.py", "model/shape.py", "sources/__init__.py", "sources/base.py"),
)


def digest(value: Any) -> str:
    """The sha256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@functools.cache
def file_digest(path: Path) -> str:
    """The sha256 of a file; read once in a process."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_digest(root: Path, files: Iterable[Path]) -> str:
    """A digest of files below a folder, by path and content."""
    return digest({path.relative_to(root).as_posix(): file_digest(path) for path in files})


@functools.cache
def own_code() -> str:
    """A digest of all of this project's code."""
    return files_digest(_PACKAGE, sorted(_PACKAGE.rglob("*.py")))


@functools.cache
def compiling_code(source: type) -> str:
    """A digest of this project's code that a compile passes through.

    :param source: the class of the kernels' source, of which this project's part counts with its whole package.
    """
    sources = _PACKAGE / "sources"
    packages = {Path(inspect.getfile(base)).parent for base in source.__mro__ if base.__module__ != "builtins"}
    files = {path for package in packages if package.parent == sources for path in package.rglob("*.py")}
    return files_digest(_PACKAGE, sorted(files | {_PACKAGE / name for name in _COMPILING}))
