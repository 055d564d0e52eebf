"""Reading AITER's tuned tables: CSV files in, typed rows out, every problem of every file in one report.

AITER merges the files of one family in order (aiter/jit/core.py, AITER_CONFIG.update_config_files), and where two rows
share a key it rewrites the files on disk and raises. Here the same conflict is a problem in the report, and nothing is
ever written to a table's file.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from ..arch import gfx_of_cu_num
from ..errors import InputError
from ..model.shape import Shape
from . import rules

_REQUIRED: Final = ("cu_num", "M", "N", "K", "libtype", "kernelId", "splitK", "kernelName")
_SCALE_BLOCK: Final = "w_scale_block"
_QUANT_DTYPE: Final = "q_dtype_w"
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_BLOCK: Final = re.compile(r"[1-9][0-9]*x[1-9][0-9]*")
_GFX: Final = re.compile(r"gfx[0-9a-f]+")
_INT32_MAX: Final = 2**31 - 1
_LONGEST_CELL: Final = 200
"""No cell that means anything is longer, and a report should not repeat one that is."""

_Found = tuple[tuple[str, str], ...]
"""Problems of one row: (column, what is wrong and what to do)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table. ``m`` is in tokens, ``us`` in microseconds (None where the row was not measured).

    ``row`` counts as a spreadsheet does, the header being row 1; ``line`` is the line of ``file`` where the row
    begins, which differs only below a field that holds line breaks.
    """

    shape: Shape
    m: int
    libtype: str
    kernel_id: str
    split_k: int
    us: float | None
    name: str
    file: str
    row: int
    line: int

    @property
    def op(self) -> str:
        return self.shape.op

    @property
    def gfx(self) -> str:
        return self.shape.gfx

    @property
    def cu_num(self) -> int:
        return self.shape.cu_num

    @property
    def n(self) -> int:
        return self.shape.n

    @property
    def k(self) -> int:
        return self.shape.k

    @property
    def w_scale_block(self) -> str | None:
        return self.shape.w_scale_block

    @property
    def q_dtype_w(self) -> str | None:
        return self.shape.q_dtype_w


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file that was read: its path as given, the SHA-256 of its bytes in hex, and how many rows it holds."""

    path: str
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Tables:
    """The files in the order given, and their rows in that order, exact duplicates included."""

    files: tuple[TableFile, ...]
    rows: tuple[Row, ...]


def read_tables(paths: Sequence[Path | str]) -> Tables:
    """Read tuned tables of any mix of ops.

    A table with a ``w_scale_block`` column is an mxscale table, one with ``q_dtype_w`` a per-token table, one with
    neither a block-scale table, which may hold no FlyDSL row. Columns may come in any order and further ones are
    ignored. Rows of FlyDSL kernels whose names are not known here are read; the plan skips them. ``gfx`` may be missing
    where cu_num tells it (AITER fills it in the same way), and ``us`` may be missing.

    Raises InputError with one line per problem, of all files.
    """
    if not paths:
        raise InputError("no tuned table was given; name one or more CSV files")
    memo = _Memos()
    reports: list[_Report] = []
    files: list[TableFile] = []
    rows: list[Row] = []
    measured: dict[str, bool] = {}
    for path in map(Path, paths):
        report = _Report(str(path))
        reports.append(report)
        data = _bytes_of(path, report)
        if data is None:
            continue
        before = len(rows)
        measured[report.file] = _read_rows(data, report, memo, rows)
        files.append(TableFile(report.file, hashlib.sha256(data).hexdigest(), len(rows) - before))
    _check_conflicts(rows, measured, {report.file: report for report in reports})
    problems = [line for report in reports for line in report.lines()]
    if problems:
        raise InputError(problems)
    return Tables(tuple(files), tuple(rows))


class _Report:
    """The problems of one file, all of them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, what: str, row: int = 0, line: int = 0, column: str = "") -> None:
        where = f"{self.file}: "
        if row:
            where += f"row {row}"
            where += f" (line {line})" if line != row else ""
            where += f", column {column}: " if column else ": "
        self._found.append((row, " ".join((where + what).splitlines())))

    def lines(self) -> Iterator[str]:
        for _, text in sorted(self._found, key=lambda found: found[0]):
            yield text


def _bytes_of(path: Path, report: _Report) -> bytes | None:
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        report.add("is a directory, not a table; name the CSV files in it")
    except FileNotFoundError:
        report.add("there is no such file; check the path")
    except OSError as error:
        report.add(f"cannot be read ({error.strerror or error}); check its permissions")
    else:
        if not data.strip():
            report.add("is empty; a tuned table has a header and rows")
        elif b"\0" in data:
            report.add("is binary (it holds NUL bytes), not a CSV table; name the CSV file")
        else:
            return data
    return None


_K = TypeVar("_K")
_V = TypeVar("_V")


class _Memo(dict[_K, _V], Generic[_K, _V]):
    """A dict that computes what it lacks: tables repeat themselves, so most cells are checked once."""

    def __init__(self, compute: Callable[[_K], _V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _K) -> _V:
        value = self[key] = self._compute(key)
        return value


def _shown(cell: str) -> str:
    return repr(cell) if len(cell) <= _LONGEST_CELL else f"{cell[:40]!r}... ({len(cell)} characters)"


class _Memos:
    """What is known about cells that were met before, over all files."""

    def __init__(self) -> None:
        self.kernel_names: _Memo[str, rules.KernelName | str | None] = _Memo(_kernel_name)
        self.integers: _Memo[str, int | str] = _Memo(_positive)
        # (op, gfx or None, cu_num, N, K, w_scale_block or q_dtype_w) as written
        self.shapes: _Memo[tuple[str, str | None, str, str, str, str], tuple[Shape | None, _Found]] = _Memo(_shape)
        # (op, libtype, splitK, kernelName) as written
        self.kernels: _Memo[tuple[str, str, str, str], tuple[int, _Found]] = _Memo(self._kernel)

    def _kernel(self, key: tuple[str, str, str, str]) -> tuple[int, _Found]:
        """The splitK of a row, and what is wrong with it and with the row's kernel."""
        op, libtype, split_text, name = key
        found: list[tuple[str, str]] = []
        split = 0
        if _INTEGER.fullmatch(split_text):
            split = int(split_text)
        else:
            found.append(("splitK", f"{_shown(split_text)} is not an integer; write the split as a whole number"))
        if not libtype:
            found.append(("libtype", "is empty; write the library that runs the row, such as flydsl or ck"))
        if libtype == rules.FLYDSL:
            parsed = self.kernel_names[name]
            if parsed is None:
                pass
            elif isinstance(parsed, str):
                found.append(("kernelName", f"{parsed}; correct the name or remove the row"))
            elif op not in rules.ops_of_family(parsed.family):
                found.append(
                    (
                        "kernelName",
                        f"{name!r} cannot serve this row, whose operands are those of {op}"
                        f"{_why_op(op)}; correct the row or move it to a table of its own kind",
                    )
                )
            elif not found and split not in parsed.split_k_column:
                fits = " or ".join(map(str, sorted(set(parsed.split_k_column))))
                found.append(
                    (
                        "splitK",
                        f"{split} contradicts the kernel name {name!r}, which says {fits}; correct one of the two",
                    )
                )
        return split, tuple(found)


def _why_op(op: str) -> str:
    if op == rules.MXSCALE_BMM:
        return ' (kernelId is "bmm")'
    return ' (kernelId is not "bmm")' if op == rules.MXSCALE_2D else ""


def _kernel_name(name: str) -> rules.KernelName | str | None:
    """What the name says, what is wrong with it, or None where a newer AITER may know it: the plan skips such rows."""
    if not name:
        return "is empty"
    if len(name) > _LONGEST_CELL:
        return f"{_shown(name)} is longer than any kernel name"
    try:
        return rules.parse_kernel_name(name)
    except ValueError as error:
        return None if name.startswith(rules.FLYDSL_PREFIX) else str(error)


def _positive(text: str) -> int | str:
    """The number, or what is wrong with it."""
    if not _INTEGER.fullmatch(text):
        return f"{_shown(text)} is not an integer; write a whole number above 0"
    value = int(text)
    if value <= 0:
        return f"{value} is not positive; write a whole number above 0"
    return value if value <= _INT32_MAX else f"{value} does not fit 32 bits; write a smaller number"


def _shape(key: tuple[str, str | None, str, str, str, str]) -> tuple[Shape | None, _Found]:
    """The shape that a row's cells spell, or what is wrong with them."""
    op, gfx, cu_text, n_text, k_text, scale = key
    found: list[tuple[str, str]] = []
    numbers: list[int] = []
    for column, text in (("cu_num", cu_text), ("N", n_text), ("K", k_text)):
        value = _positive(text)
        if isinstance(value, int):
            numbers.append(value)
        else:
            found.append((column, value))
    block = quant = None
    if op == rules.BPRESHUFFLE:
        quant = sys.intern(scale)
        if not scale:
            found.append((_QUANT_DTYPE, "is empty; write the weight's dtype, such as torch.float8_e4m3fn"))
    elif op != rules.BLOCKSCALE:
        block = sys.intern(scale)
        if not _BLOCK.fullmatch(scale):
            found.append((_SCALE_BLOCK, f"{_shown(scale)} is not a block; write rows x columns, such as 32x32"))
    if gfx is None:
        if not found:
            gfx = gfx_of_cu_num(numbers[0])
            if gfx is None:
                found.append(("gfx", f"is missing, and cu_num {cu_text} does not tell it; add a gfx column"))
    elif not _GFX.fullmatch(gfx):
        found.append(("gfx", f"{_shown(gfx)} is not an arch; write one such as gfx950"))
    if found or gfx is None:
        return None, tuple(found)
    cu_num, n, k = numbers
    return Shape(op, sys.intern(gfx), cu_num, n, k, block, quant), ()


def _records(data: bytes, report: _Report) -> Iterator[tuple[int, int, list[str]]]:
    """(row, line, cells) of every record that is not blank, the header first. Ends early, reported, at bad text."""
    # Decoded piece by piece: the text of a large table is never there as a whole.
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    row = line = 0
    while True:
        row, line = row + 1, reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report.add(f"is not CSV from here on ({error}); repair the quotes or name another file", row, line)
            return
        except UnicodeDecodeError:
            report.add(_not_utf8(data))
            return
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield row, line, cells


def _not_utf8(data: bytes) -> str:
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f"is not UTF-8 (byte 0x{data[error.start]:02x} in line {line}); save it as UTF-8"
    return "is not UTF-8; save it as UTF-8"


def _read_rows(data: bytes, report: _Report, memo: _Memos, rows: list[Row]) -> bool:
    """Append the file's rows to ``rows``; report what is wrong. Returns whether the file has a us column."""
    records = _records(data, report)
    header_at, header_line, header = next(records, (0, 0, []))
    if not header:
        return False
    column = {name: index for index, name in enumerate(header)}
    problems = [(name, "is missing; add it to the header and to every row") for name in _REQUIRED if name not in column]
    problems += [(name, f"appears {header.count(name)} times; keep one") for name in column if header.count(name) > 1]
    if _SCALE_BLOCK in column and _QUANT_DTYPE in column:
        problems.append((_QUANT_DTYPE, f"is there and {_SCALE_BLOCK} too; a table is of one kind, keep one of the two"))
    if problems:
        for name, what in problems:
            report.add(what, header_at, header_line, name)
        return "us" in column

    at_cu, at_m, at_n, at_k, at_libtype, at_id, at_split, at_name = (column[name] for name in _REQUIRED)
    at_gfx, at_us = column.get("gfx"), column.get("us")
    at_scale = column.get(_SCALE_BLOCK, column.get(_QUANT_DTYPE))
    mxscale = _SCALE_BLOCK in column
    table_op = rules.BPRESHUFFLE if _QUANT_DTYPE in column else rules.BLOCKSCALE
    width, file = len(header), report.file
    shapes, integers, kernels, op_of_row = memo.shapes, memo.integers, memo.kernels, rules.op_of_mxscale_row
    undecided = any_row = False

    for row, line, cells in records:
        any_row = True
        if len(cells) != width:
            report.add(f"has {len(cells)} fields where the header has {width}; add or remove commas", row, line)
            continue
        libtype = cells[at_libtype]
        op = op_of_row(libtype, cells[at_id]) if mxscale else table_op
        if op == rules.BLOCKSCALE and libtype == rules.FLYDSL:
            if not undecided:
                what = (
                    f"is missing and so is {_QUANT_DTYPE}, but row {row} is a FlyDSL row, whose operands one of them "
                    "tells; add the one that the table is keyed by"
                )
                report.add(what, header_at, header_line, _SCALE_BLOCK)
            undecided = True
            continue
        shape, found = shapes[
            op,
            None if at_gfx is None else cells[at_gfx],
            cells[at_cu],
            cells[at_n],
            cells[at_k],
            "" if at_scale is None else cells[at_scale],
        ]
        m = integers[cells[at_m]]
        split_k, more = kernels[op, libtype, cells[at_split], cells[at_name]]
        us: float | None = None
        if at_us is not None and cells[at_us]:
            try:
                us = float(cells[at_us])
            except ValueError:
                more += (("us", f"{_shown(cells[at_us])} is not a number; write microseconds or leave it empty"),)
            if us is not None and math.isnan(us):
                us = None
        if shape is None or isinstance(m, str) or found or more:
            if isinstance(m, str):
                found = (("M", m), *found)
            for name, what in found + more:
                report.add(what, row, line, name)
            continue
        intern = sys.intern
        rows.append(
            Row(shape, m, intern(libtype), intern(cells[at_id]), split_k, us, intern(cells[at_name]), file, row, line)
        )
    if not any_row and not report:
        report.add("has a header and no rows; name a table that was tuned")
    return at_us is not None


def _check_conflicts(rows: list[Row], measured: dict[str, bool], reports: dict[str, _Report]) -> None:
    """Report rows that share shape and M and do not agree. An exact repetition is no conflict.

    AITER's merge keeps the row with the lowest us, the first of several, and raises all the same; a us column that
    only some of the files have counts as 0 in the others, and where no file has one AITER raises without choosing.
    """
    # AITER merges per family of tables, so that only files of the same op count here.
    op_measured: _Memo[str, bool] = _Memo(lambda op: any(measured[row.file] for row in rows if row.op == op))

    def rank(row: Row) -> float:
        if not measured[row.file]:
            return 0.0
        return math.inf if row.us is None else row.us

    by_shape: dict[Shape, dict[int, Row]] = {}
    last_shape: Shape | None = None
    by_m: dict[int, Row] = {}
    for row in rows:
        if row.shape is not last_shape:
            last_shape = row.shape
            by_m = by_shape.setdefault(last_shape, {})
        other = by_m.setdefault(row.m, row)
        if other is row:
            continue
        pairs = (
            ("kernelName", row.name, other.name),
            ("libtype", row.libtype, other.libtype),
            ("kernelId", row.kernel_id, other.kernel_id),
            ("splitK", row.split_k, other.split_k),
            ("us", row.us, other.us),
        )
        column = next((column for column, mine, its in pairs if mine != its), None)
        if column is None:
            continue
        kept = row if rank(row) < rank(other) else other
        if op_measured[row.op]:
            fate = f"AITER's merge would keep row {kept.row} of {kept.file} (lowest us) and rewrite the files"
        else:
            fate = "there is no us column to choose by, so AITER would raise"
        reports[row.file].add(
            f"disagrees with row {other.row} of {other.file} about {_key_text(row)}; {fate}; remove one of the two",
            row.row,
            row.line,
            column,
        )
        by_m[row.m] = kept


def _key_text(row: Row) -> str:
    shape = row.shape
    scale = shape.w_scale_block or shape.q_dtype_w
    return f"{shape.op} {shape.gfx}/{shape.cu_num} M={row.m} N={shape.n} K={shape.k}{f' {scale}' if scale else ''}"
