"""Which of AITER's files decide a kernel: what the store's keys hold of AITER.

Read from the files, nothing is imported. A call passes through wrappers, of which each counts by its own content, and
ends in the modules that make the kernel, which count with all that they import below AITER's folder of FlyDSL kernels.
Touching the kernels of one family so leaves those of others as they are.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...digests import file_digest, files_digest
from .installed import KERNEL_SOURCES, PACKAGE


@functools.cache
def digest(package: Path, passed: Sequence[str], kernels: Sequence[str]) -> str:
    """The digest of the files behind a kernel.

    :param passed: wrappers, below the package; one that this AITER does not have is none.
    :param kernels: the modules that make the kernel.
    """
    return files_digest(package, files(package, passed, kernels))


@functools.cache
def files(package: Path, passed: Sequence[str], kernels: Sequence[str]) -> list[Path]:
    """Those files, sorted."""
    found: set[Path] = set()
    waiting = [package / name for name in kernels if (package / name).is_file()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(package, path)
    return sorted(found | {package / name for name in passed if (package / name).is_file()})


@functools.cache
def watched(package: Path) -> str:
    """The digest of all of AITER's Python files."""
    return files_digest(package, sorted(package.rglob("*.py")))


def _imported(package: Path, path: Path) -> Iterator[Path]:
    """The kernel sources that a file imports, wherever in it."""
    inside = package / KERNEL_SOURCES
    here = [PACKAGE, *path.relative_to(package).parent.parts]
    for node in ast.walk(_parsed(path, file_digest(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            # What is imported may be a module of that package, or a name in it.
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            top, *parts = name.split(".")
            module = package.joinpath(*parts)
            for file in (module.with_suffix(".py"), module / "__init__.py"):
                if top == PACKAGE and parts and file.is_file() and file.is_relative_to(inside):
                    yield file


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, content: str) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
