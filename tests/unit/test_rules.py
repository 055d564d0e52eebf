"""AITER's rules: the padding of token counts, the grammars of kernel names, the operand contracts."""

from __future__ import annotations

import csv
import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_flydsl_prebuild.dispatch import rules

BMM = "flydsl_bmm_mxfp8_mfma_t16x32x256_w1x2_nb4_sk4"


def aiter_source() -> Path:
    path = os.environ.get("AITER_SOURCE", "")
    if not path or not Path(path, "aiter", "configs").is_dir():
        pytest.skip("AITER_SOURCE names no checkout of AITER")
    return Path(path)


@pytest.mark.parametrize(
    ("m", "n", "newest", "august"),
    [
        (1, 512, (1,), (1, 16)),
        (2, 512, (2,), (2, 16)),
        (3, 512, (3, 4), (3, 16, 4)),
        (8, 512, (8,), (8, 16)),
        (9, 512, (9, 16), (9, 16)),
        (15, 512, (15, 16), (15, 16)),
        (16, 512, (16,), (16,)),
        (17, 512, (17, 32), (17, 32)),
        (33, 512, (33, 48, 64), (33, 48, 64)),
        (256, 512, (256,), (256,)),
        (257, 512, (257, 288, 512), (257, 288, 512)),
        (1024, 512, (1024,), (1024,)),
        (1025, 512, (1025, 1088, 2048), (1025, 1088, 2048)),
        (4096, 512, (4096,), (4096,)),
        (4097, 512, (4097, 4224, 8192), (4097, 4224, 8192)),
        (8192, 8192, (8192,), (8192,)),
        (8193, 4096, (8193, 8320, 16384), (8193, 8320, 16384)),
        (8193, 4097, (8193, 8320, 8192), (8193, 8320, 8192)),
        (16384, 4097, (16384, 8192), (16384, 8192)),
        (rules.MAX_TOKENS, 1, (rules.MAX_TOKENS,), (rules.MAX_TOKENS,)),
    ],
)
def test_candidates_at_every_boundary(m: int, n: int, newest: tuple[int, ...], august: tuple[int, ...]) -> None:
    assert rules.m_candidates(m, n) == rules.m_candidates(m, n, "newest") == newest
    assert rules.m_candidates(m, n, "august") == august


def test_candidates_refuse_what_aiter_never_sees() -> None:
    for m in (0, -1, rules.MAX_TOKENS + 1):
        with pytest.raises(ValueError, match="token count must lie in 1"):
            rules.m_candidates(m, 512)
    with pytest.raises(ValueError, match="unknown dispatch rule 'oldest'; known: newest, august"):
        rules.m_candidates(1, 512, "oldest")
    with pytest.raises(ValueError, match="unknown dispatch rule"):
        rules.served_ranges(1, 512, "oldest")


@given(
    row_m=st.one_of(
        st.integers(1, 40000), st.integers(0, 20).map(lambda e: 1 << e), st.integers(1, 600).map(lambda x: 16 * x)
    ),
    m=st.integers(1, 70000),
    n=st.sampled_from([1, 4096, 4097, 8192]),
    rule=st.sampled_from(rules.RULES),
)
def test_served_ranges_invert_candidates(row_m: int, m: int, n: int, rule: str) -> None:
    tokens = {m, row_m}
    for first, last in rules.served_ranges(row_m, n, rule):
        tokens |= {first - 1, first, last, last + 1}
    for token in tokens:
        if 1 <= token <= rules.MAX_TOKENS:
            served = any(first <= token <= last for first, last in rules.served_ranges(row_m, n, rule))
            assert served == (row_m in rules.m_candidates(token, n, rule))


@given(m=st.integers(1, 70000), n=st.integers(1, 20000), rule=st.sampled_from(rules.RULES))
def test_padding_n_pads_alike(m: int, n: int, rule: str) -> None:
    assert rules.m_candidates(m, rules.padding_n(n), rule) == rules.m_candidates(m, n, rule)


@pytest.mark.parametrize(
    ("name", "family", "split", "column"),
    [
        (BMM, "flydsl_bmm_mxfp8_mfma", 4, {4}),
        (BMM + "_bd2_nt_xcd_sps", "flydsl_bmm_mxfp8_mfma", 4, {4}),
        (BMM + "_xcd4", "flydsl_bmm_mxfp8_mfma", 4, {4}),
        ("flydsl_mxpsh_32x32x256_F8_F8_B16_w0_x4_sk10", "flydsl_mxpsh", 10, {10}),
        ("flydsl_mxpsh_32x128x128_F8_F8_B16_w0_x0", "flydsl_mxpsh", 1, {0, 1}),
        ("flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1x0x2_default", "flydsl_bpreshuflle", 1, {0, 1}),
        ("flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1", "flydsl_bpreshuflle", 1, {0, 1}),
        ("flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1x0x2_default_ks4", "flydsl_bpreshuflle", 4, {0, 4}),
        ("flydsl_bpreshuffle_8w_128x256x128_F8_F8_B16_2x4", "flydsl_bpreshuffle_8w", 1, {0, 1}),
        ("flydsl_bpreshuffle_wmma_t16x64x256_mw1_nw4_nb3_sk2_cm1_cn1", "flydsl_bpreshuffle_wmma", 2, {0, 2}),
        (
            "flydsl_mxfp8_128_bpreshuffle_compute_wmma_t256x256x128_mw2_nw2_nb2_sk1_cm2_cn4_ps2",
            "flydsl_mxfp8_128_bpreshuffle",
            1,
            {1},
        ),
        ("refgemm_mxfp8_t16x64_w1x4", "refgemm_mxfp8", 1, {0, 1}),
    ],
)
def test_names_of_every_family(name: str, family: str, split: int, column: set[int]) -> None:
    parsed = rules.parse_kernel_name(name)
    assert (parsed.family, parsed.split_k, set(parsed.split_k_column)) == (family, split, column)
    assert parsed.decodable
    assert set(rules.ops_of_family(family)) <= set(rules.OPS)


def test_five_part_names_are_known_but_not_decodable() -> None:
    parsed = rules.parse_kernel_name("flydsl_bpreshuflle_112x128x256_F8_F8_B16_2x0x1x0x4_default")
    assert parsed.family == "flydsl_bpreshuflle"
    assert not parsed.decodable


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "no known kernel family"),
        ("flydsl_gemm2_abf16_wbf16_bf16_t16x64x64", "no known kernel family"),
        ("gemm_" + BMM, "no known kernel family"),
        (BMM + "_", "begins like a kernel of the family flydsl_bmm_mxfp8_mfma"),
        (BMM + "\n", "does not go on like one"),
        (BMM + "_sps_xcd", "does not go on like one"),
        (BMM.replace("t16", "t\N{ARABIC-INDIC DIGIT ONE}6"), "does not go on like one"),
        ("flydsl_mxpsh_32x32_F8_F8_B16_w0", "does not go on like one"),
        ("flydsl_bpreshuffle_8w_128x256x128_F8_F8_B16_2", "does not go on like one"),
        ("flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1x0x2x3x4_default", "does not go on like one"),
        ("refgemm_mxfp8_t16", "not a reference kernel"),
    ],
)
def test_names_outside_every_grammar(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rules.parse_kernel_name(name)


def test_operand_contract_of_mxscale_rows() -> None:
    assert rules.op_of_mxscale_row("flydsl", "bmm") == "mxscale_bmm"
    assert rules.op_of_mxscale_row("flydsl", "25824") == "mxscale_2d"
    assert rules.op_of_mxscale_row("triton", "bmm") == "mxscale_2d"
    assert rules.op_of_mxscale_row("opus", "7") == "mxscale_2d"


def test_only_the_newest_per_token_dispatch_reuses_the_largest_row() -> None:
    reusing = [(op, rule) for op in rules.OPS for rule in rules.RULES if rules.reuses_largest_row(op, rule)]
    assert reusing == [("a8w8_bpreshuffle", "newest")]


@pytest.fixture(scope="module")
def real_padding(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int, int], int]:
    """getPaddedM of the real file, compiled as it stands: (M, N, granularity) -> padded M."""
    source = aiter_source() / "csrc" / "py_itfs_cu" / "gemm_common.cu"
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("padding") / "padding.so"
    subprocess.run([compiler, "-x", "c++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    function = ctypes.CDLL(str(library)).getPaddedM
    return lambda m, n, level: int(function(m, n, 1, level))


def test_padding_is_that_of_the_real_source(real_padding: Callable[[int, int, int], int]) -> None:
    rule = "newest" if real_padding(3, 512, 0) == 4 else "august"
    for n in (1, 4096, 4097, 65536):
        for m in [*range(1, 40001), 65535, 65536, 65537, rules.MAX_TOKENS]:
            expected = tuple(dict.fromkeys((m, real_padding(m, n, 0), real_padding(m, n, 1))))
            assert rules.m_candidates(m, n, rule) == expected


def real_flydsl_rows() -> Iterator[tuple[Path, dict[str, str]]]:
    configs = aiter_source() / "aiter" / "configs"
    for path in sorted(configs.rglob("*bpreshuffle*tuned_gemm*.csv")):
        if "untuned" in path.name:
            continue
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["libtype"] == "flydsl":
                    yield path, row


def test_grammars_accept_the_real_configs() -> None:
    rows = list(real_flydsl_rows())
    assert rows
    for path, row in rows:
        parsed = rules.parse_kernel_name(row["kernelName"])
        assert int(row["splitK"]) in parsed.split_k_column, (path.name, row)


def test_decodable_is_what_the_real_dispatch_decodes() -> None:
    """The dispatch's own pattern, lifted out of its source, tells which preshuffle names it understands."""
    text = (aiter_source() / "aiter" / "ops" / "gemm_op_a8w8.py").read_text(encoding="utf-8")
    literals = re.search(r"re\.match\(\s*((?:r\"[^\"]*\"\s*)+),\s*kernel_name", text)
    assert literals is not None
    pattern = re.compile("".join(re.findall(r"r\"([^\"]*)\"", literals[1])))
    names = {row["kernelName"] for _, row in real_flydsl_rows()}
    names = {name for name in names if name.startswith("flydsl_bpreshuflle_")}
    assert names
    for name in names:
        assert rules.parse_kernel_name(name).decodable == bool(pattern.match(name)), name
