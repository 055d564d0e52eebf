"""Reach against a walk over every token count, written here on its own."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiter_flydsl_prebuild.dispatch.reach import (
    UNDECODABLE,
    UNKNOWN,
    Reach,
    SkippedReach,
    parse_tokens,
    plan_reach,
    to_json,
)
from aiter_flydsl_prebuild.dispatch.tables import Row, TableFile, Tables, read_tables
from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.model.shape import Shape
from aiter_flydsl_prebuild.model.tokens import without
from aiter_flydsl_prebuild.packs.manifest import LeftOut
from aiter_flydsl_prebuild.sources.planning import unknown_kernels
from processes import ROOT

RULES = ("newest", "august")
V41 = "dsv41_a8w8_blockscale_mxscale_bpreshuffle_tuned_gemm.csv"
Winner = tuple[str, str] | None


def real_tables(pattern: str) -> list[Path]:
    folder = Path(os.environ.get("AITER_TABLES") or ROOT.parent / "shared" / "tables")
    paths = sorted(folder.glob(pattern))
    if not paths:
        pytest.skip(f"no real tables: AITER_TABLES names no folder with {pattern}")
    return paths


# ---- the walk: nothing of the package is used


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def next_power(value: int) -> int:
    power = 1
    while power < value:
        power *= 2
    return power


def walk(by_m: dict[int, Winner], n: int, first: int, last: int, rule: str, per_token: bool) -> Iterator[Winner]:
    for m in range(first, last + 1):
        if m < 16 and rule == "newest":
            fine = next_power(m)
        elif m <= 256:
            fine = round_up(m, 16)
        elif m <= 1024:
            fine = round_up(m, 32)
        elif m <= 4096:
            fine = round_up(m, 64)
        else:
            fine = round_up(m, 128)
        coarse = 8192 if m > 8192 and n > 4096 else next_power(m)
        for candidate in (m, fine, coarse):
            if candidate in by_m:
                yield by_m[candidate]
                break
        else:
            reused = per_token and rule == "newest" and m > max(by_m)
            yield by_m[max(by_m)] if reused else None


def winners_of_plan(entry: dict[str, Any], first: int, last: int) -> list[Winner]:
    """A plan's shape, spread out to one winner per token count; every range is checked on the way."""
    spread: list[Any] = ["missing"] * (last - first + 1)
    groups = [("flydsl", kernel["name"], kernel["tokens"]) for kernel in entry["kernels"]]
    groups += [(other["libtype"], "", other["tokens"]) for other in entry["other"]]
    groups += [("flydsl", one["name"], one["tokens"]) for one in entry["skipped"]]
    for libtype, name, ranges in [*groups, ("", "", entry["uncovered"])]:
        previous = first - 2
        for low, high in ranges:
            assert first <= low <= high <= last
            assert low > previous + 1, "ranges are sorted, disjoint and maximal"
            previous = high
            assert spread[low - first : high - first + 1] == ["missing"] * (high - low + 1), "served twice"
            spread[low - first : high - first + 1] = [(libtype, name) if libtype else None] * (high - low + 1)
    assert "missing" not in spread
    for served in (entry["kernels"], entry["other"]):
        starts = [one["tokens"][0][0] for one in served]
        assert starts == sorted(starts)
    assert len({kernel["name"] for kernel in entry["kernels"]}) == len(entry["kernels"])
    return spread


Key = tuple[str, str, int, int, int, str | None, str | None]


def shapes_of_files(paths: list[Path]) -> dict[Key, dict[int, Winner]]:
    shapes: dict[Key, dict[int, Winner]] = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                block, quant = row.get("w_scale_block"), row.get("q_dtype_w")
                op = "a8w8_bpreshuffle"
                if block is not None:
                    op = "mxscale_bmm" if (row["libtype"], row["kernelId"]) == ("flydsl", "bmm") else "mxscale_2d"
                key = (op, row["gfx"], int(row["cu_num"]), int(row["N"]), int(row["K"]), block, quant)
                name = row["kernelName"] if row["libtype"] == "flydsl" else ""
                shapes.setdefault(key, {})[int(row["M"])] = (row["libtype"], name)
    return shapes


def check_against_walk(paths: list[Path], first: int, last: int, rule: str) -> dict[str, Any]:
    plan = to_json(plan_reach(read_tables(paths), gfx=[], cu_num=[], tokens=(first, last), rule=rule))
    assert (plan["tokens"], plan["rule"]) == ([first, last], rule)
    shapes = shapes_of_files(paths)
    fields = ("op", "gfx", "cu_num", "n", "k", "w_scale_block", "q_dtype_w")
    assert {tuple(entry[field] for field in fields) for entry in plan["shapes"]} == set(shapes)
    assert len(plan["shapes"]) == len(shapes)
    for entry in plan["shapes"]:
        by_m = shapes[tuple(entry[field] for field in fields)]
        expected = list(walk(by_m, entry["n"], first, last, rule, entry["op"] == "a8w8_bpreshuffle"))
        assert winners_of_plan(entry, first, last) == expected
    return plan


# ---- the real tables


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("limit", [8192, 32768, 40000])
def test_v41_equals_the_walk(limit: int, rule: str) -> None:
    check_against_walk(real_tables(V41), 1, limit, rule)


@pytest.mark.parametrize("rule", RULES)
def test_per_token_tables_equal_the_walk(rule: str) -> None:
    check_against_walk(real_tables("*a8w8_bpreshuffle*.csv"), 1, 40000, rule)
    check_against_walk(real_tables("*a8w8_bpreshuffle*.csv"), 77, 9000, rule)


def test_v41_numbers() -> None:
    tables = read_tables(real_tables(V41))
    for tokens, kernels in (((1, 8192), 668), ((1, 32768), 723)):
        reach = plan_reach(tables, gfx=["gfx950"], cu_num=[256], tokens=tokens)
        batched = [one for one in reach.shapes if one.shape.op == "mxscale_bmm"]
        two_d = [one for one in reach.shapes if one.shape.op == "mxscale_2d"]
        assert len(batched) == len(two_d) == 18
        assert len({(k.name, s.shape.n, s.shape.k) for s in batched for k in s.kernels}) == kernels
        if tokens == (1, 8192):
            assert min(len(one.kernels) for one in batched) == 29
            assert max(len(one.kernels) for one in batched) == 47
            assert not any(one.uncovered or one.other for one in batched)
        assert reach.distinct_kernels == kernels + sum(len(one.kernels) for one in two_d)


def test_other_libraries_win_token_counts_of_the_real_tables() -> None:
    """68 token counts of 1..8192 would go to a FlyDSL row if rows of other libraries were left out beforehand."""
    paths = real_tables("*a8w8_bpreshuffle*.csv")
    if len(paths) != 5:
        pytest.skip("counted on the five tables of August 2026")
    tables = read_tables(paths)
    flydsl = Tables(tables.files, tuple(row for row in tables.rows if row.libtype == "flydsl"))
    with_all, fewer = (plan_reach(t, gfx=[], cu_num=[], tokens=(1, 8192), rule="august") for t in (tables, flydsl))

    def covered(reach: Reach) -> set[tuple[Shape, int]]:
        return {
            (one.shape, token)
            for one in reach.shapes
            for ranges in (*(kernel.tokens for kernel in one.kernels), *(skipped.tokens for skipped in one.skipped))
            for first, last in ranges
            for token in range(first, last + 1)
        }

    assert len(covered(fewer) - covered(with_all)) == 68


def test_table_without_flydsl_rows_has_nothing_to_plan() -> None:
    (path,) = real_tables("a8w8_blockscale_bpreshuffle_tuned_gemm_qwen3_235b.csv")
    reach = plan_reach(read_tables([path]), gfx=["gfx950"], cu_num=[], tokens=(1, 8192))
    assert (reach.shapes, reach.distinct_kernels) == ((), 0)
    assert reach.skipped_rows["other libtype"] == 87


# ---- made-up tables

HEADER = "gfx,cu_num,M,N,K,w_scale_block,libtype,kernelId,splitK,us,kernelName"
TOKEN_HEADER = "gfx,cu_num,M,N,K,q_dtype_w,libtype,kernelId,splitK,us,kernelName"


def bmm(m: int, tile: int, *, gfx: str = "gfx950", cu: int = 256, n: int = 512) -> str:
    return f"{gfx},{cu},{m},{n},1024,32x32,flydsl,bmm,1,1.5,flydsl_bmm_mxfp8_mfma_t{tile}x32x256_w1x2_nb4_sk1"


def per_token(m: int, libtype: str, tile: int = 16, *, n: int = 512) -> str:
    name = f"flydsl_bpreshuflle_{tile}x64x512_F8_F8_B16_1x1x0x2_default" if libtype == "flydsl" else "x"
    return f"gfx950,256,{m},{n},1024,torch.float8_e4m3fn,{libtype},1,0,1.5,{name}"


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


row_ms = st.one_of(
    st.integers(1, 40),
    st.integers(0, 17).map(lambda exponent: 1 << exponent),
    st.integers(1, 64).map(lambda x: 16 * x),
    st.integers(1, 80).map(lambda x: 64 * x),
    st.integers(30, 160).map(lambda x: 128 * x),
    st.integers(1, 20000),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ms=st.dictionaries(row_ms, st.tuples(st.sampled_from([16, 32]), st.booleans()), min_size=1, max_size=25),
    n=st.sampled_from([64, 4096, 4097, 8192]),
    first=st.integers(1, 9000),
    count=st.integers(1, 12000),
    rule=st.sampled_from(RULES),
    per_token_table=st.booleans(),
)
def test_random_tables_equal_the_walk(
    tmp_path: Path,
    ms: dict[int, tuple[int, bool]],
    n: int,
    first: int,
    count: int,
    rule: str,
    per_token_table: bool,
) -> None:
    if per_token_table:
        lines = [per_token(m, "ck" if ck else "flydsl", tile, n=n) for m, (tile, ck) in ms.items()]
        path = table(tmp_path / "t.csv", TOKEN_HEADER, *lines)
    else:
        path = table(tmp_path / "t.csv", HEADER, *(bmm(m, tile, n=n) for m, (tile, _) in ms.items()))
    check_against_walk([path], first, first + count - 1, rule)


def test_json_of_a_small_plan(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", HEADER, bmm(1, 16), bmm(4, 32), bmm(8, 16), bmm(16, 16), bmm(64, 32))
    plan = to_json(plan_reach(read_tables([path]), gfx=["gfx950"], cu_num=[256], tokens=(1, 100)))
    name = "flydsl_bmm_mxfp8_mfma_t{}x32x256_w1x2_nb4_sk1"
    assert json.loads(json.dumps(plan)) == {
        "tokens": [1, 100],
        "rule": "newest",
        "shapes": [
            {
                "op": "mxscale_bmm",
                "gfx": "gfx950",
                "cu_num": 256,
                "n": 512,
                "k": 1024,
                "w_scale_block": "32x32",
                "q_dtype_w": None,
                "kernels": [
                    {"name": name.format(16), "tokens": [[1, 1], [5, 16]]},
                    {"name": name.format(32), "tokens": [[3, 4], [33, 64]]},
                ],
                "other": [],
                "uncovered": [[2, 2], [17, 32], [65, 100]],
                "skipped": [],
            }
        ],
        "distinct_kernels": 2,
        "undecodable": [],
        "unknown": [],
        "skipped_rows": {
            "other gfx": 0,
            "other cu_num": 0,
            "other libtype": 0,
            "duplicate": 0,
            "unreachable": 0,
        },
    }


def test_skipped_rows_are_counted_by_reason(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.csv",
        HEADER,
        bmm(1, 16),
        bmm(1, 16),
        bmm(4096, 16),
        bmm(1, 16, cu=128),
        bmm(1, 16, gfx="gfx942", cu=304),
        bmm(2, 16, gfx="gfx942", cu=304),
    )
    tokens = table(tmp_path / "b.csv", TOKEN_HEADER, per_token(1, "ck"), per_token(1024, "ck"))
    reach = plan_reach(read_tables([path, tokens]), gfx=["gfx950"], cu_num=[256], tokens=(1, 16))
    assert reach.skipped_rows == {
        "other gfx": 2,
        "other cu_num": 1,
        "other libtype": 2,
        "duplicate": 1,
        "unreachable": 1,
    }
    (ck,) = (one for one in reach.shapes if one.shape.op == "a8w8_bpreshuffle")
    assert [(other.libtype, other.tokens) for other in ck.other] == [("ck", ((1, 1),))]
    assert ck.kernels == ()


def test_largest_row_is_reused_above_the_per_token_table_in_the_newest(tmp_path: Path) -> None:
    lines = (per_token(16, "flydsl"), per_token(64, "flydsl", 32))
    tables = read_tables([table(tmp_path / "t.csv", TOKEN_HEADER, *lines)])
    newest = plan_reach(tables, gfx=[], cu_num=[], tokens=(1, 100_000)).shapes[0]
    assert newest.uncovered == ((1, 8), (17, 32))
    assert newest.kernels[-1].tokens == ((33, 100_000),)
    august = plan_reach(tables, gfx=[], cu_num=[], tokens=(1, 100_000), rule="august").shapes[0]
    assert august.uncovered == ((17, 32), (65, 100_000))


def test_undecodable_names_are_told(tmp_path: Path) -> None:
    name = "flydsl_bpreshuflle_112x128x256_F8_F8_B16_2x0x1x0x4_default"
    line = per_token(1, "flydsl").rsplit(",", 1)[0] + f",{name}"
    reach = plan_reach(read_tables([table(tmp_path / "t.csv", TOKEN_HEADER, line)]), gfx=[], cu_num=[], tokens=(1, 1))
    assert list(reach.skipped(UNDECODABLE)) == [name]
    assert reach.shapes[0].skipped == (SkippedReach(name, ((1, 1),), UNDECODABLE),)
    assert (reach.shapes[0].kernels, reach.distinct_kernels) == ((), 0)


@pytest.mark.parametrize("name", ["flydsl_new_family_t16x64", "flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1x0x2_new_x2"])
def test_kernels_that_nobody_here_knows_are_skipped_by_name(name: str, tmp_path: Path) -> None:
    lines = per_token(1, "flydsl"), per_token(2, "flydsl").rsplit(",", 1)[0] + f",{name}"
    tables = read_tables([table(tmp_path / "t.csv", TOKEN_HEADER, *lines)])
    reach = plan_reach(tables, gfx=[], cu_num=[], tokens=(1, 2))
    assert reach.distinct_kernels == 1
    assert reach.shapes[0].skipped == (SkippedReach(name, ((2, 2),), UNKNOWN),)
    (left_out,) = unknown_kernels(reach)
    assert left_out == LeftOut("a8w8_bpreshuffle", 1, 1, "no kernel family known here has such names", (name,))
    assert name in str(left_out)


def test_ranges_without_others() -> None:
    assert without(((1, 10),), ()) == ((1, 10),)
    assert without(((1, 10), (20, 30)), ((1, 2), (5, 6), (10, 25))) == ((3, 4), (7, 9), (26, 30))
    assert without(((1, 10),), ((1, 10),)) == ()


def test_every_cu_num_of_an_arch_is_planned_by_default(tmp_path: Path) -> None:
    tables = read_tables([table(tmp_path / "t.csv", HEADER, bmm(1, 16), bmm(1, 16, cu=128), bmm(1, 32, gfx="gfx942"))])
    reach = plan_reach(tables, gfx=["gfx950"], cu_num=[], tokens=(1, 1))
    assert [(one.shape.gfx, one.shape.cu_num) for one in reach.shapes] == [("gfx950", 128), ("gfx950", 256)]
    assert reach.distinct_kernels == 1


def test_filter_that_leaves_nothing_lists_what_there_is(tmp_path: Path) -> None:
    lines = (bmm(1, 16), bmm(1, 16, gfx="gfx942", cu=304))
    tables = read_tables([table(tmp_path / "t.csv", HEADER, *lines)])
    there = "the tables hold gfx942 with cu_num 304, gfx950 with cu_num 256"
    for gfx, cu_num, expected in [
        (["gfx1250"], [], [f"no row is for gfx1250; {there}"]),
        (["gfx950", "gfx1250"], [], [f"no row is for gfx1250; {there}"]),
        (["gfx950:sramecc+:xnack-"], [], [f"no row is for gfx950:sramecc+:xnack-; {there}"]),
        ([], [80], [f"no row is for cu_num 80; {there}"]),
        (
            ["gfx950"],
            [304],
            [f"no row is for gfx950 with cu_num 304; {there}"],
        ),
        (["gfx950"], [256, 304], [f"no row of gfx950 is for cu_num 304; {there}"]),
        (["gfx950", "gfx1250"], [304], [f"no row is for gfx950 or gfx1250 with cu_num 304; {there}"]),
    ]:
        with pytest.raises(InputError) as caught:
            plan_reach(tables, gfx=gfx, cu_num=cu_num, tokens=(1, 1))
        assert list(caught.value.problems) == expected


def test_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    a = table(tmp_path / "a.csv", HEADER, bmm(16, 16), bmm(1, 16, n=8192))
    b = table(tmp_path / "b.csv", HEADER, bmm(32, 32), bmm(2, 16, n=256))
    first, second = (plan_reach(read_tables(p), gfx=[], cu_num=[], tokens=(1, 64)) for p in ((a, b), (b, a)))
    assert first == second


def test_unknown_rule_and_bad_tokens() -> None:
    shape = Shape("mxscale_bmm", "gfx950", 256, 512, 1024, "32x32", None)
    name = "flydsl_bmm_mxfp8_mfma_t16x32x256_w1x2_nb4_sk1"
    tables = Tables((TableFile("t", "", 1),), (Row(shape, 1, "flydsl", "bmm", 1, None, name, "t", 2, 2),))
    with pytest.raises(ValueError, match="unknown dispatch rule"):
        plan_reach(tables, gfx=[], cu_num=[], tokens=(1, 1), rule="september")
    for tokens in ((0, 1), (2, 1), (1, 1 << 31)):
        with pytest.raises(InputError, match="is not within 1"):
            plan_reach(tables, gfx=[], cu_num=[], tokens=tokens)


@pytest.mark.parametrize(
    ("text", "expected"), [("1..8192", (1, 8192)), ("512", (1, 512)), ("7..7", (7, 7)), (" 1..2 ", (1, 2))]
)
def test_parse_tokens(text: str, expected: tuple[int, int]) -> None:
    assert parse_tokens(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "1-8", "1..", "..8", "1...8", "1..8..9", "-1..8", "1.5", "8..1", "0..5", "0", "9" * 12, "9" * 5000],
)
def test_parse_tokens_refuses(text: str) -> None:
    with pytest.raises(InputError, match=r"token range .*; write for example 1\.\.8192") as caught:
        parse_tokens(text)
    assert len(caught.value.problems) == 1
