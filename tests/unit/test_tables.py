"""Reading tuned tables: what is accepted, and that every bad input is reported where it is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.dispatch.tables import Row, read_tables
from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.model.shape import Shape
from processes import ROOT

HEADER = "gfx,cu_num,M,N,K,w_scale_block,libtype,kernelId,splitK,us,kernelName"
BMM = "flydsl_bmm_mxfp8_mfma_t16x32x256_w1x2_nb4_sk4_xcd_sps"
BMM1 = "flydsl_bmm_mxfp8_mfma_t16x32x256_w1x2_nb4_sk1"
GOOD = f"gfx950,256,1,512,1024,32x32,flydsl,bmm,4,5.5,{BMM}"
TOKEN_HEADER = "gfx,cu_num,M,N,K,q_dtype_w,libtype,kernelId,splitK,us,kernelName"
PRE = "flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1x0x2_default"
TOKEN_GOOD = f"gfx950,256,1,512,1024,torch.float8_e4m3fn,flydsl,3,0,5.5,{PRE}"


def real_tables() -> list[Path]:
    folder = Path(os.environ.get("AITER_TABLES") or ROOT.parent / "shared" / "tables")
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        pytest.skip("no real tables: AITER_TABLES names no folder with CSV files")
    return paths


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def problems(*paths: Path) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        read_tables(paths)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def one_problem(path: Path, *lines: str) -> str:
    (problem,) = problems(write(path, *lines))
    assert problem.startswith(f"{path}: ")
    return problem.removeprefix(f"{path}: ")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


# ---- what is read


def test_rows_are_typed(table: Path) -> None:
    tables = read_tables([write(table, HEADER, GOOD)])
    shape = Shape("mxscale_bmm", "gfx950", 256, 512, 1024, "32x32", None)
    assert tables.rows == (Row(shape, 1, "flydsl", "bmm", 4, 5.5, BMM, str(table), 2, 2),)
    row = tables.rows[0]
    assert (row.op, row.gfx, row.cu_num, row.n, row.k) == ("mxscale_bmm", "gfx950", 256, 512, 1024)
    assert (row.w_scale_block, row.q_dtype_w) == ("32x32", None)
    (file,) = tables.files
    assert (file.path, file.rows) == (str(table), 1)
    assert file.sha256 == hashlib.sha256(table.read_bytes()).hexdigest()


def test_per_token_table(table: Path) -> None:
    other = "gfx942,80,1,512,1024,torch.int8,asm,7,8,2.5,_ZN5whatever"
    rows = read_tables([write(table, TOKEN_HEADER, TOKEN_GOOD, other)]).rows
    assert [row.op for row in rows] == ["a8w8_bpreshuffle"] * 2
    assert [row.q_dtype_w for row in rows] == ["torch.float8_e4m3fn", "torch.int8"]
    assert [row.w_scale_block for row in rows] == [None, None]


def test_operand_contracts_of_one_table(table: Path) -> None:
    rows = read_tables(
        [
            write(
                table,
                HEADER,
                GOOD,
                "gfx950,256,1,512,1024,32x32,flydsl,18473,10,9.7,flydsl_mxpsh_32x32x256_F8_F8_B16_w0_x4_sk10",
                "gfx950,256,2,512,1024,32x32,triton,0,0,9.7,",
            )
        ]
    ).rows
    assert [row.op for row in rows] == ["mxscale_bmm", "mxscale_2d", "mxscale_2d"]


def test_columns_in_any_order_with_further_ones(table: Path) -> None:
    names, cells = HEADER.split(","), GOOD.split(",")
    shuffled = write(table, ",".join([*names[::-1], "tflops"]), ",".join([*cells[::-1], "nonsense"]))
    (row,) = read_tables([shuffled]).rows
    assert (row.m, row.n, row.k, row.us, row.name) == (1, 512, 1024, 5.5, BMM)


def test_bom_crlf_and_blank_lines(table: Path) -> None:
    table.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n\r\n{GOOD}\r\n   \r\n{GOOD.replace('256,1,', '256,2,')}".encode())
    rows = read_tables([table]).rows
    assert [(row.m, row.row, row.line) for row in rows] == [(1, 3, 3), (2, 5, 5)]


def test_quoted_line_break_makes_row_and_line_differ(table: Path) -> None:
    note = f'{HEADER},note\n{GOOD},"two\nlines"\n{GOOD.replace("256,1,", "256,2,")},\n'
    table.write_text(note)
    assert [(row.row, row.line) for row in read_tables([table]).rows] == [(2, 2), (3, 4)]
    table.write_text(note.replace("256,2,", "256,zwei,"))
    (problem,) = problems(table)
    assert "row 3 (line 4), column M: 'zwei' is not an integer" in problem


def test_unmeasured_rows(table: Path) -> None:
    lines = (HEADER, GOOD.replace("5.5", ""), GOOD.replace("5.5", "nan").replace("256,1,", "256,2,"))
    assert [row.us for row in read_tables([write(table, *lines)]).rows] == [None, None]
    without = [",".join(line.split(",")[:9] + line.split(",")[10:]) for line in lines]
    assert [row.us for row in read_tables([write(table, *without)]).rows] == [None, None]


def test_reference_names(table: Path) -> None:
    line = "gfx950,256,1,512,1024,32x32,flydsl,bmm,1,,refgemm_mxfp8_t16x64_w1x4"
    assert read_tables([write(table, HEADER, line)]).rows[0].op == "mxscale_bmm"


def test_gfx_is_filled_from_cu_num(table: Path) -> None:
    lines = [TOKEN_HEADER, *(TOKEN_GOOD.replace("256", cu) for cu in ("256", "80", "304"))]
    rows = read_tables([write(table, *(line.split(",", 1)[1] for line in lines))]).rows
    assert [row.gfx for row in rows] == ["gfx950", "gfx942", "gfx942"]


def test_files_are_concatenated_in_order_and_left_alone(tmp_path: Path) -> None:
    first = write(tmp_path / "b.csv", HEADER, GOOD)
    second = write(tmp_path / "a.csv", TOKEN_HEADER, TOKEN_GOOD)
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in (first, second)]
    tables = read_tables([first, str(second)])
    assert [file.path for file in tables.files] == [str(first), str(second)]
    assert [row.file for row in tables.rows] == [str(first), str(second)]
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in (first, second)] == before
    assert sorted(tmp_path.iterdir()) == [second, first]


def test_exact_duplicates_are_no_conflict(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", HEADER + ",errRatio", GOOD + ",0.1", GOOD + ",0.2")
    second = write(tmp_path / "b.csv", HEADER, GOOD)
    assert len(read_tables([first, second]).rows) == 3


def test_one_key_of_two_contracts_is_no_conflict(table: Path) -> None:
    two_d = "gfx950,256,1,512,1024,32x32,flydsl,1,10,9.7,flydsl_mxpsh_32x32x256_F8_F8_B16_w0_x4_sk10"
    assert len(read_tables([write(table, HEADER, GOOD, two_d)]).rows) == 2


def test_block_scale_table_without_flydsl(table: Path) -> None:
    header = HEADER.replace("w_scale_block,", "")
    (row,) = read_tables([write(table, header, "gfx950,256,1,512,1024,ck,7,0,1.5,some_ck_kernel")]).rows
    assert (row.op, row.w_scale_block, row.q_dtype_w) == ("a8w8_blockscale", None, None)


def test_names_of_other_libraries_are_not_checked(table: Path) -> None:
    line = TOKEN_GOOD.replace("flydsl,3,0", "ck,3,9").replace(PRE, "anything at all")
    assert read_tables([write(table, TOKEN_HEADER, line)]).rows[0].name == "anything at all"


@pytest.mark.parametrize("name", ["flydsl_new_family_t1", BMM + "_zz"])
def test_flydsl_names_that_nobody_here_knows_are_read(table: Path, name: str) -> None:
    (row,) = read_tables([write(table, HEADER, GOOD.replace(BMM, name))]).rows
    assert (row.op, row.name, row.split_k) == ("mxscale_bmm", name, 4)


# ---- what is refused


def test_no_paths() -> None:
    with pytest.raises(InputError, match="no tuned table was given; name one"):
        read_tables([])


@pytest.mark.parametrize("name", HEADER.split(",")[1:5] + HEADER.split(",")[6:9] + ["kernelName"])
def test_missing_column(table: Path, name: str) -> None:
    at = HEADER.split(",").index(name)
    lines = [",".join(cell for i, cell in enumerate(line.split(",")) if i != at) for line in (HEADER, GOOD)]
    assert one_problem(table, *lines) == f"row 1, column {name}: is missing; add it to the header and to every row"


def test_missing_column_that_tells_the_kind(table: Path) -> None:
    lines = [",".join(line.split(",")[:5] + line.split(",")[6:]) for line in (HEADER, GOOD, GOOD)]
    expected = "row 1, column w_scale_block: is missing and so is q_dtype_w, but row 2 is a FlyDSL row"
    assert one_problem(table, *lines).startswith(expected)


def test_two_kinds_at_once_and_repeated_columns(table: Path) -> None:
    assert "q_dtype_w: is there and w_scale_block too" in one_problem(table, HEADER + ",q_dtype_w", GOOD + ",x")
    assert "row 1, column us: appears 2 times; keep one" in one_problem(table, HEADER + ",us", GOOD + ",1")


@pytest.mark.parametrize("name", ["M", "N", "K", "cu_num"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", "'many' is not an integer; write"),
        ("", "'' is not an integer; write"),
        ("1.5", "'1.5' is not an integer; write"),
        ("1_0", "'1_0' is not an integer; write"),
        ("٣", "'٣' is not an integer; write"),
        ("0", "0 is not positive; write"),
        ("-4", "-4 is not positive; write"),
        ("2147483648", "2147483648 does not fit 32 bits; write"),
    ],
)
def test_bad_numbers(table: Path, name: str, value: str, message: str) -> None:
    cells = GOOD.split(",")
    cells[HEADER.split(",").index(name)] = value
    assert one_problem(table, HEADER, ",".join(cells)).startswith(f"row 2, column {name}: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (BMM, "new_family_t1", "column kernelName: 'new_family_t1' is of no known kernel family"),
        (BMM, "", "column kernelName: is empty; correct the name or remove the row"),
        (BMM, "refgemm_mxfp8_t1x1_w1x1", "column kernelName: not a reference kernel"),
        (BMM, PRE, f"column kernelName: '{PRE}' cannot serve this row, whose operands are those of mxscale_bmm (kern"),
        ("bmm,4", "7,4", f"column kernelName: '{BMM}' cannot serve this row, whose operands are those of mxscale_2d"),
        ("bmm,4", "bmm,2", f"column splitK: 2 contradicts the kernel name '{BMM}', which says 4; correct one"),
        ("bmm,4", "bmm,0", f"column splitK: 0 contradicts the kernel name '{BMM}', which says 4; correct one"),
        ("bmm,4", "bmm,four", "column splitK: 'four' is not an integer; write"),
        ("flydsl,", ",", "column libtype: is empty; write"),
        ("32x32", "32", "column w_scale_block: '32' is not a block; write"),
        ("gfx950", "", "column gfx: '' is not an arch; write one such as gfx950"),
        ("gfx950", "MI355X", "column gfx: 'MI355X' is not an arch; write"),
        ("5.5", "fast", "column us: 'fast' is not a number; write"),
    ],
)
def test_bad_cells(table: Path, old: str, new: str, message: str) -> None:
    assert one_problem(table, HEADER, GOOD.replace(old, new, 1)).startswith(f"row 2, {message}")


def test_split_of_per_token_rows(table: Path) -> None:
    for name, split, good in [(PRE, 0, True), (PRE, 1, True), (PRE, 2, False), (PRE + "_ks4", 4, True)]:
        line = TOKEN_GOOD.replace("flydsl,3,0", f"flydsl,3,{split}").replace(PRE, name)
        if good:
            assert read_tables([write(table, TOKEN_HEADER, line)]).rows[0].split_k == split
        else:
            assert "column splitK: 2 contradicts the kernel name" in one_problem(table, TOKEN_HEADER, line)


def test_cu_num_that_does_not_tell_the_arch(table: Path) -> None:
    lines = [line.split(",", 1)[1] for line in (HEADER, GOOD.replace("256", "120", 1))]
    expected = "row 2, column gfx: is missing, and cu_num 120 does not tell it; add a gfx column"
    assert one_problem(table, *lines) == expected


def test_ragged_rows(table: Path) -> None:
    found = problems(write(table, HEADER, GOOD, GOOD + ",", "gfx950,256,1"))
    assert [problem.removeprefix(f"{table}: ") for problem in found] == [
        "row 3: has 12 fields where the header has 11; add or remove commas",
        "row 4: has 3 fields where the header has 11; add or remove commas",
    ]


def test_conflict_names_both_rows_and_the_one_that_aiter_keeps(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", HEADER, GOOD)
    slower = GOOD.replace(BMM, BMM1).replace("bmm,4,5.5", "bmm,1,6.5")
    second = write(tmp_path / "b.csv", HEADER, slower.replace("256,1,", "256,2,"), slower)
    assert problems(first, second) == (
        f"{second}: row 3, column kernelName: disagrees with row 2 of {first} about mxscale_bmm gfx950/256 M=1 N=512 "
        f"K=1024 32x32; AITER's merge would keep row 2 of {first} (lowest us) and rewrite the files; "
        "remove one of the two",
    )
    faster = write(tmp_path / "c.csv", HEADER, slower.replace("6.5", "4.5"))
    assert f"keep row 2 of {faster} (lowest us)" in problems(first, faster)[0]
    unmeasured = write(tmp_path / "d.csv", HEADER, slower.replace("6.5", ""))
    assert f"keep row 2 of {first} (lowest us)" in problems(unmeasured, first)[0]


def test_conflict_of_three_rows_is_told_against_the_best_so_far(table: Path) -> None:
    other, third = (
        GOOD.replace("t16x32", tile).replace("5.5", us) for tile, us in (("t32x32", "4.5"), ("t64x32", "5"))
    )
    found = problems(write(table, HEADER, GOOD, other, third))
    assert [f"keep row 3 of {table}" in problem for problem in found] == [True, True]
    assert "row 3, column kernelName: disagrees with row 2" in found[0]
    assert "row 4, column kernelName: disagrees with row 3" in found[1]


def test_conflict_in_us_alone(table: Path) -> None:
    found = one_problem(table, HEADER, GOOD, GOOD.replace("5.5", "5.25"))
    assert found.startswith("row 3, column us: disagrees with row 2 of")
    assert f"keep row 3 of {table} (lowest us)" in found


def test_conflict_without_us(tmp_path: Path) -> None:
    def drop(line: str) -> str:
        cells = line.split(",")
        return ",".join(cells[:9] + cells[10:])

    other = drop(GOOD.replace(BMM, BMM1).replace("bmm,4", "bmm,1"))
    path = write(tmp_path / "a.csv", drop(HEADER), drop(GOOD), other)
    assert "there is no us column to choose by, so AITER would raise" in problems(path)[0]
    # AITER fills a us column that one file lacks with 0, which is then the lowest
    lacking = write(tmp_path / "b.csv", drop(HEADER), other)
    measured = write(tmp_path / "c.csv", HEADER, GOOD)
    assert f"keep row 2 of {lacking} (lowest us)" in problems(measured, lacking)[0]


def test_unreadable_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data)
        (problem,) = problems(path)
        return problem.removeprefix(f"{path}: ")

    assert one("empty.csv", b"") == "is empty; a tuned table has a header and rows"
    assert one("blank.csv", b"\n \r\n") == "is empty; a tuned table has a header and rows"
    assert one("header.csv", f"{HEADER}\n\n".encode()) == "has a header and no rows; name a table that was tuned"
    assert one("binary.csv", b"\x7fELF\0\1") == "is binary (it holds NUL bytes), not a CSV table; name the CSV file"
    latin = f"{HEADER}\n{GOOD}\n".encode() + b"gfx950,\xe9"
    assert one("latin1.csv", latin) == "is not UTF-8 (byte 0xe9 in line 3); save it as UTF-8"
    assert one("utf16.csv", HEADER.encode("utf-16")).startswith("is binary")
    assert one("quote.csv", f'{HEADER}\n"gfx950,256\n'.encode()).startswith("row 2: is not CSV from here on (")
    assert "column cu_num: is missing" in problems(write(tmp_path / "text.csv", "just some", "text"))[0]

    assert problems(tmp_path) == (f"{tmp_path}: is a directory, not a table; name the CSV files in it",)
    gone = tmp_path / "gone.csv"
    assert problems(gone) == (f"{gone}: there is no such file; check the path",)

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert problems(gone) == (f"{gone}: cannot be read (Permission denied); check its permissions",)


def test_all_problems_of_all_files_in_one_report(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", HEADER, GOOD.replace("512", "x").replace("bmm,4", "bmm,3"))
    second = write(tmp_path / "b.csv", TOKEN_HEADER, TOKEN_GOOD.replace("1024", "0"))
    gone = tmp_path / "gone.csv"
    assert [problem.split(":")[0] for problem in problems(first, gone, second)] == [
        str(path) for path in (first, first, gone, second)
    ]


@pytest.mark.parametrize("at", range(len(HEADER.split(","))))
def test_an_endless_cell_is_not_repeated(table: Path, at: int) -> None:
    cells = GOOD.split(",")
    cells[at] = "9" * 5000
    if HEADER.split(",")[at] == "us":
        assert read_tables([write(table, HEADER, ",".join(cells))]).rows
    elif HEADER.split(",")[at] not in ("libtype", "kernelId"):
        assert len(one_problem(table, HEADER, ",".join(cells))) < 400


def test_the_report_is_whole(tmp_path: Path, table: Path) -> None:
    many = [GOOD.replace("256,1,", f"256,x{i},") for i in range(250)]
    found = problems(write(table, HEADER, *many), tmp_path / "gone.csv")
    assert len(found) == 251
    assert found[249].startswith(f"{table}: row 251, ")


# ---- the real tables


def test_real_tables_are_read_without_a_problem() -> None:
    tables = read_tables(real_tables())
    assert len(tables.rows) == sum(file.rows for file in tables.files) > 0


def test_tables_of_a_real_checkout_are_read_without_a_problem() -> None:
    source = os.environ.get("AITER_SOURCE", "")
    paths = sorted(Path(source, "aiter", "configs").rglob("*a8w8_bpreshuffle_tuned_gemm*.csv")) if source else []
    if not paths:
        pytest.skip("AITER_SOURCE names no checkout of AITER")
    assert read_tables([path for path in paths if path.read_text().count("\n") > 1]).rows
