"""A real AITER for the tests that want one: the checkout that AITER_SOURCE names, copied, and few of its rows."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.sources.aiter import installed, needs, tables
from processes import ROOT, run_python

PAGE = ROOT / "docs" / "aiter-maintainers.md"


def source() -> Path:
    """The checkout."""
    return Path(os.environ["AITER_SOURCE"]).resolve()


def python() -> str:
    """The interpreter of an environment that fits it: AITER_PYTHON, which test.sh makes.

    Its FlyDSL is the one that this AITER pins, which need not be the one that the other tests run with.
    """
    found = os.environ.get("AITER_PYTHON", sys.executable)
    pin = needs.pinned_flydsl(installed.Installed(source() / "aiter"))
    if pin not in (None, _ask(found, "'flydsl==' + importlib.metadata.version('flydsl')")):
        pytest.skip(f"{found} has not the FlyDSL that this AITER pins ({pin}): bash test.sh makes AITER_PYTHON")
    return found


def packages() -> list[str]:
    """The folders that have what AITER imports, for an environment with another FlyDSL."""
    found = os.environ.get("AITER_PYTHON", sys.executable)
    ask = "chr(10).join({sysconfig.get_path('purelib'), sysconfig.get_path('platlib')})"
    return _ask(found, ask).splitlines()


def _ask(python: str, value: str) -> str:
    """An expression's value in an environment that has what AITER imports; skips where it has not."""
    modules = ", ".join(name for name in needs.IMPORTED if name != needs.FLYDSL)
    done = run_python(
        ["-c", f"import importlib.metadata, sysconfig, {modules}; print({value})"], dict(os.environ), python
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"{python} has not all that AITER imports ({said}): bash test.sh makes AITER_PYTHON")
    return done.stdout.strip()


def git_checkout(folder: Path, *, changed: bool) -> None:
    """Clone it into ``folder``, empty or not there; ``changed`` as docs/aiter-maintainers.md says."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(source()), str(folder)], check=True)
    if changed:
        diffs = "".join(re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
        subprocess.run(["git", "apply"], cwd=folder, input=diffs, text=True, check=True)


def small_table(folder: Path) -> Path:
    """The rows of one small gfx950 shape with FlyDSL kernels of both per-token families, up to 4096 tokens."""
    aiter = installed.Installed(source() / "aiter")
    merged = tables.merge(tables.family_files(aiter, tables.FAMILIES[0], {}), folder / "all.csv")
    with merged.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gfx"] == "gfx950"]
    shapes: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        shapes.setdefault((row["N"], row["K"]), []).append(row)
    chosen = min(
        (found for found in shapes.values() if any("8w_" in row["kernelName"] for row in found)),
        key=lambda found: len({row["kernelName"] for row in found}),
    )
    table = folder / "few.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row for row in chosen if row["libtype"] != "flydsl" or int(row["M"]) in (1, 64, 2048, 4096))
    return table
