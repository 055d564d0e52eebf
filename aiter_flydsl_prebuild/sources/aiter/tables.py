"""AITER's tuned tables: which files its look-ups read, found without AITER's own merging.

AITER merges in ``aiter/jit/core.py``, AITER_CONFIG.get_config_file and update_config_files: into one folder of the
machine, and where rows conflict it rewrites the files that they came from. Nothing here writes to a table; the rows are
read by :mod:`...dispatch.tables`, and AITER's own reader is handed a private copy.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...arch import gfx_of_cu_num
from ...dispatch import rules
from ...errors import InputError
from .installed import Installed

_FOLDER = "configs"
_MODELS = "configs/model_configs"


@dataclass(frozen=True)
class Family:
    """The tables of one family: the variable that replaces them, the default file's stem, and the ops they serve."""

    variable: str
    stem: str
    ops: tuple[str, ...]


FAMILIES = (
    Family("AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE", "a8w8_bpreshuffle_tuned_gemm", (rules.BPRESHUFFLE,)),
    Family(
        "AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_MXSCALE_BPRESHUFFLE",
        "a8w8_blockscale_mxscale_bpreshuffle_tuned_gemm",
        (rules.MXSCALE_BMM, rules.MXSCALE_2D),
    ),
)


def family_files(aiter: Installed, family: Family, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The files that AITER would merge for a family, in its order; none where it has none.

    The variable's, split at ``:``, those that are not there left out as AITER does; else the default file and the files
    of ``model_configs`` whose name holds the stem and not "untuned".
    """
    if given := environ.get(family.variable):
        files = [Path(part) for part in given.split(os.pathsep) if part]
    else:
        files = [aiter.package / _FOLDER / f"{family.stem}.csv"]
        files += sorted(p for p in (aiter.package / _MODELS).glob(f"*{family.stem}*.csv") if "untuned" not in p.name)
    return [path for path in files if path.is_file()]


def table_files(aiter: Installed, ops: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The files of every family that serves one of ``ops``.

    :raises InputError: there are none.
    """
    wanted = [family for family in FAMILIES if set(family.ops).intersection(ops)]
    files = [path for family in wanted for path in family_files(aiter, family, environ)]
    if not files:
        sought = " and ".join(f"{family.stem}.csv ({family.variable})" for family in wanted)
        raise InputError(f"this AITER has no tuned table for {', '.join(ops)}: looked for {sought}")
    return files


def private_tables(aiter: Installed, folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to set AITER's variables to, so that its own reader gets its tables and merges nothing.

    A variable that names exactly one file is taken as it is (update_config_files), so several are merged into one in
    ``folder``.
    """
    variables = {}
    for family in [*FAMILIES, *other_families(aiter)]:
        files = family_files(aiter, family, environ)
        if len(files) > 1:
            files = [merge(files, folder / f"{family.stem}.csv")]
        if files:
            variables[family.variable] = str(files[0])
    return variables


def other_families(aiter: Installed) -> list[Family]:
    """The families that AITER has beside :data:`FAMILIES`: it merges some of them as soon as a module is imported."""
    try:
        text = (aiter.package / "jit/core.py").read_text(encoding="utf-8")
    except OSError:
        return []
    pairs = re.findall(r'get_config_file\(\s*"(AITER_CONFIG_\w+)",\s*\w+,\s*"(\w+)"', text)
    known = {family.variable for family in FAMILIES}
    return [Family(variable, stem, ()) for variable, stem in pairs if variable not in known]


def merge(files: Sequence[Path], merged: Path) -> Path:
    """Write the rows of several tables to one, as AITER merges them where nothing conflicts.

    A column that a file lacks is filled: gfx from cu_num (:func:`arch.gfx_of_cu_num`), any other with 0 (AITER:
    update_config_files). Conflicts are reported by :func:`dispatch.tables.read_tables`, before.
    """
    rows: list[dict[str, str]] = []
    columns: dict[str, None] = {}
    for path in files:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns |= dict.fromkeys(reader.fieldnames or ())
            rows += reader
    with merged.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns), extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            missing = {name: "0" for name in columns if name not in row}
            if "gfx" in missing:
                missing["gfx"] = gfx_of_cu_num(int(row["cu_num"])) or "0"
            writer.writerow({**row, **missing})
    return merged
