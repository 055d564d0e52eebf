"""What instructions do, against numpy models of the ISA's text: those of this project, and those left to tinygrad.

The second kind are all that the compiled kernels of this project and of AITER's per-token and MXFP8 ops use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

if not os.environ.get("TINYGRAD_SOURCE"):
    pytest.skip("TINYGRAD_SOURCE does not name a tinygrad checkout", allow_module_level=True)
np = pytest.importorskip("numpy")
pytest.importorskip("msgpack")

from aiter_flydsl_prebuild.execution.faults import AccessError, ExecutionError, UnknownInstruction  # noqa: E402
from aiter_flydsl_prebuild.execution.floats import E4M3, E5M2, bf16, e8m0  # noqa: E402
from aiter_flydsl_prebuild.execution.registers import EXEC, M0, SCC, VCC  # noqa: E402
from bench import LANES, Bench, emulator, f32  # noqa: E402

WAIT = bytes.fromhex("00008cbf")  # s_waitcnt vmcnt(0) lgkmcnt(0)
BARRIER = bytes.fromhex("00008abf")
U32 = np.uint32
POISON = 0xFFFFFFFF


@pytest.fixture(scope="module")
def tinygrad() -> Any:
    return emulator()


@pytest.fixture(scope="module")
def ins(tinygrad: Any) -> Any:
    import importlib

    return importlib.import_module("tinygrad.runtime.autogen.amd.cdna.ins")


@pytest.fixture(scope="module")
def regs(tinygrad: Any) -> Any:
    import importlib

    return importlib.import_module("tinygrad.renderer.amd.dsl")


@pytest.fixture
def bench(tinygrad: Any) -> Bench:
    return Bench(tinygrad)


def words(count: int = 64, seed: int = 0) -> Any:
    """Random dwords, the extreme ones among them."""
    found = np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint64).astype(U32)
    found[:8] = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 0x10000]
    return found


def floats(seed: int = 0) -> Any:
    """Random float32 values of any size: zeros, subnormals, infinities and NaN among them."""
    random = np.random.default_rng(seed)
    values = (random.standard_normal(64) * np.exp2(random.uniform(-40, 40, 64))).astype(np.float32)
    values[:10] = [0, -0.0, 1e-40, -1e-42, np.inf, -np.inf, np.nan, 3.4e38, 1.00390625, 1.01171875]
    return values


# ---- left to tinygrad ------------------------------------------------------------------------------------------------


def s32(a: Any) -> Any:
    return a.astype(U32).view(np.int32).astype(np.int64)


def u64(a: Any) -> Any:
    return a.astype(np.uint64)


VECTOR: dict[str, Callable[[Any, Any, Any], Any]] = {
    "v_add_u32_e32": lambda a, b, c: a + b,
    "v_subrev_u32_e32": lambda a, b, c: b - a,
    "v_sub_u32_e32": lambda a, b, c: a - b,
    "v_min_u32_e32": lambda a, b, c: np.minimum(a, b),
    "v_add3_u32_e64": lambda a, b, c: a + b + c,
    "v_add_u16_e32": lambda a, b, c: (a + b) & U32(0xFFFF),
    "v_sub_u16_e32": lambda a, b, c: (a - b) & U32(0xFFFF),
    "v_mul_lo_u16_e32": lambda a, b, c: ((a & U32(0xFFFF)) * (b & U32(0xFFFF))) & U32(0xFFFF),
    "v_lshrrev_b16_e32": lambda a, b, c: (b & U32(0xFFFF)) >> (a & U32(15)),
    "v_and_b32_e32": lambda a, b, c: a & b,
    "v_or_b32_e32": lambda a, b, c: a | b,
    "v_xor_b32_e32": lambda a, b, c: a ^ b,
    "v_lshlrev_b32_e32": lambda a, b, c: b << (a & 31),
    "v_lshrrev_b32_e32": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32_e32": lambda a, b, c: s32(b) >> (a & 31),
    "v_mul_u32_u24_e32": lambda a, b, c: u64(a & 0xFFFFFF) * u64(b & 0xFFFFFF),
    "v_mul_lo_u32": lambda a, b, c: u64(a) * u64(b),
    "v_mul_hi_u32": lambda a, b, c: u64(a) * u64(b) >> np.uint64(32),
    "v_mad_u32_u24_e64": lambda a, b, c: u64(a & 0xFFFFFF) * u64(b & 0xFFFFFF) + u64(c),
    "v_lshl_add_u32_e64": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32_e64": lambda a, b, c: (a + b) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_bfe_u32_e64": lambda a, b, c: a >> (b & 31) & ((np.uint64(1) << u64(c & 31)) - np.uint64(1)),
    "v_alignbit_b32_e64": lambda a, b, c: (u64(a) << np.uint64(32) | u64(b)) >> u64(c & 31),
}
SCALAR: dict[str, tuple[Callable[[int, int], int], Callable[[int, int], bool] | None]] = {
    "s_add_u32": (lambda a, b: a + b, lambda a, b: a + b > 0xFFFFFFFF),
    "s_add_i32": (lambda a, b: a + b, None),
    "s_sub_i32": (lambda a, b: a - b, None),
    "s_sub_u32": (lambda a, b: a - b, lambda a, b: b > a),
    "s_addc_u32": (lambda a, b: a + b + 1, lambda a, b: a + b + 1 > 0xFFFFFFFF),
    "s_subb_u32": (lambda a, b: a - b - 1, lambda a, b: b + 1 > a),
    "s_and_b32": (lambda a, b: a & b, lambda a, b: bool(a & b)),
    "s_andn2_b32": (lambda a, b: a & ~b, lambda a, b: bool(a & ~b & 0xFFFFFFFF)),
    "s_lshl2_add_u32": (lambda a, b: (a << 2) + b, None),
    "s_lshl3_add_u32": (lambda a, b: (a << 3) + b, None),
    "s_bfe_u32": (lambda a, b: a >> (b & 31) & ((1 << (b >> 16 & 127)) - 1), None),
    "s_or_b32": (lambda a, b: a | b, lambda a, b: bool(a | b)),
    "s_xor_b32": (lambda a, b: a ^ b, lambda a, b: bool(a ^ b)),
    "s_lshl_b32": (lambda a, b: a << (b & 31), lambda a, b: bool(a << (b & 31) & 0xFFFFFFFF)),
    "s_lshr_b32": (lambda a, b: a >> (b & 31), lambda a, b: bool(a >> (b & 31))),
    "s_ashr_i32": (lambda a, b: signed(a) >> (b & 31), lambda a, b: bool(signed(a) >> (b & 31))),
    "s_mul_i32": (lambda a, b: a * b, None),
    "s_mul_hi_u32": (lambda a, b: a * b >> 32, None),
    "s_mul_hi_i32": (lambda a, b: signed(a) * signed(b) >> 32, None),
    "s_min_i32": (lambda a, b: min(signed(a), signed(b)), lambda a, b: signed(a) < signed(b)),
    "s_cselect_b32": (lambda a, b: a, None),
}
PAIRS = ((5, 3), (0xFFFFFFFF, 1), (0x80000000, 0x7FFFFFFF), (0, 0), (3, 0xFFFFFFFE), (0x12345678, 35))


def signed(a: int) -> int:
    return a - (a >> 31 << 32)


@pytest.mark.parametrize("name", VECTOR)
def test_a_vector_instruction(name: str, bench: Bench, ins: Any, regs: Any) -> None:
    a, b, c = (words(seed=seed) for seed in range(3))
    np.random.default_rng(9).shuffle(c)
    bench.wave.vector[1:4] = a, b, c
    bench.wave.set_mask(EXEC, 0xFFFF0000FFFFFFFF)
    sources = (regs.v[1], regs.v[2], regs.v[3])[: 3 if ins.__dict__[name].args[0].name in THREE else 2]
    wave = bench.run(getattr(ins, name)(regs.v[4], *sources))
    with np.errstate(all="ignore"):
        expected = VECTOR[name](a, b, c).astype(np.uint64) & np.uint64(0xFFFFFFFF)
    assert np.array_equal(wave.vector[4], np.where(LANES // 16 == 2, POISON, expected))


THREE = {
    *("V_MAD_U32_U24_E64", "V_LSHL_ADD_U32_E64", "V_ADD_LSHL_U32_E64", "V_LSHL_OR_B32", "V_AND_OR_B32", "V_OR3_B32"),
    *("V_ADD3_U32_E64", "V_BFE_U32_E64", "V_ALIGNBIT_B32_E64"),
}


def sdwa(target: int, first: int, second: int, **fields: int) -> bytes:
    """``v_mul_u32_u24`` of selected bytes and words, LLVM's encoding of VOP2 in SDWA."""
    places = {"dst_sel": 40, "src0_sel": 48, "s0": 55, "src1_sel": 56, "s1": 63}
    word = 8 << 25 | target << 17 | second << 9 | 249 | first << 32
    word |= sum(value << places[name] for name, value in {"dst_sel": 6, **fields}.items())
    return word.to_bytes(8, "little")


def test_24_bit_multiplication_of_selected_bytes_and_words(bench: Bench) -> None:
    a, b = words(seed=1), words(seed=2)
    bench.wave.vector[1:3] = a, b
    bench.wave.scalar[5] = 0xFF000003
    wave = bench.run(
        sdwa(3, 1, 2, src0_sel=5, src1_sel=6),
        sdwa(4, 1, 2, src0_sel=2, src1_sel=4),
        sdwa(5, 1, 5, src0_sel=4, src1_sel=6, s1=1),
    )
    assert np.array_equal(wave.vector[3], (u64(a >> U32(16)) * u64(b & U32(0xFFFFFF))).astype(U32))
    assert np.array_equal(wave.vector[4], (a >> U32(16) & U32(255)) * (b & U32(0xFFFF)))
    assert np.array_equal(wave.vector[5], (a & U32(0xFFFF)) * U32(3))
    with pytest.raises(UnknownInstruction, match="v_mul_u32_u24"):
        bench.run(sdwa(3, 1, 2, dst_sel=4, src0_sel=5, src1_sel=6))


@pytest.mark.parametrize("name", SCALAR)
def test_a_scalar_instruction(name: str, tinygrad: Any, ins: Any, regs: Any) -> None:
    result, carry = SCALAR[name]
    for a, b in PAIRS:
        bench = Bench(tinygrad)
        bench.wave.scalar[4:6] = a, b
        bench.wave.scalar[SCC] = 1
        wave = bench.run(getattr(ins, name)(regs.s[6], regs.s[4], regs.s[5]))
        assert int(wave.scalar[6]) == result(a, b) & 0xFFFFFFFF
        if carry is not None:
            assert bool(wave.scalar[SCC]) == carry(a, b), (a, b)


@pytest.mark.parametrize("table", [0xF0, 0xCA, 0x96, 0x1B])
def test_bitop3_is_a_truth_table(table: int, bench: Bench, ins: Any, regs: Any) -> None:
    a, b, c = (words(seed=seed) for seed in range(3))
    bench.wave.vector[1:4] = a, b, c
    fields = {"omod": table >> 6, "abs": table >> 3 & 7, "neg": table & 7}
    wave = bench.run(ins.v_bitop3_b32(regs.v[4], regs.v[1], regs.v[2], regs.v[3], **fields))
    expected = sum(
        (table >> ((a >> U32(i) & 1) << 2 | (b >> U32(i) & 1) << 1 | (c >> U32(i) & 1)) & 1).astype(U32) << U32(i)
        for i in range(32)
    )
    assert np.array_equal(wave.vector[4], expected)


def test_bfloat16_pairs_round_to_nearest_even(bench: Bench, ins: Any, regs: Any) -> None:
    a, b = floats(1), floats(2)
    bench.wave.vector[1:3] = f32(a), f32(b)
    wave = bench.run(ins.v_cvt_pk_bf16_f32(regs.v[3], regs.v[1], regs.v[2]))
    for half, values in ((wave.vector[3] & 0xFFFF, a), (wave.vector[3] >> 16, b)):
        bits = f32(values).astype(np.uint64)
        rounded = bits + 0x7FFF + (bits >> np.uint64(16) & 1) >> np.uint64(16)
        got = half.astype(np.uint64)
        nan = np.isnan(values)
        assert np.array_equal(got[~nan], rounded[~nan])
        assert np.isnan(bf16(got[nan].astype(np.uint16))).all()


def test_multiplication_keeps_subnormals(bench: Bench, ins: Any, regs: Any) -> None:
    a, b = floats(3), floats(4)
    a[20:30], b[20:30] = 1e-30, 3e-12
    bench.wave.vector[1:3] = f32(a), f32(b)
    wave = bench.run(ins.v_mul_f32_e32(regs.v[3], regs.v[1], regs.v[2]))
    with np.errstate(all="ignore"):
        expected = a * b
    got = wave.vector[3].view(np.float32)
    assert np.array_equal(got, expected, equal_nan=True)


def test_mixed_multiply_add_rounds_once_to_float16(bench: Bench, ins: Any, regs: Any) -> None:
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(64).astype(np.float32) * 30 for _ in range(2))
    bench.wave.vector[1:3] = f32(a), f32(b)
    bench.wave.vector[4] = 0xABCD1234
    wave = bench.run(ins.v_mad_mixlo_f16(regs.v[4], regs.v[1], regs.v[2], 0, opsel_hi=0, opsel_hi2=0))
    exact = a.astype(np.float64) * b
    assert np.array_equal(wave.vector[4] & 0xFFFF, exact.astype(np.float16).view(np.uint16))


def test_comparisons_write_a_lane_mask(bench: Bench, ins: Any, regs: Any) -> None:
    a, b = words(seed=6), words(seed=7)
    bench.wave.vector[1:3] = a, b
    bench.wave.set_mask(EXEC, 0x00FFFFFFFFFFFFFF)
    wave = bench.run(
        ins.v_cmp_gt_u32_e32(regs.v[1], regs.v[2]), ins.v_cmp_gt_i32_e64(regs.s[8:9], regs.v[1], regs.v[2])
    )
    bits = 1 << LANES[:56].astype(object)
    assert wave.mask(VCC) == int(sum(bits[(a > b)[:56]]))
    assert wave.mask(8) == int(sum(bits[(s32(a) > s32(b))[:56]]))


def test_selects_by_a_lane_mask(bench: Bench, ins: Any, regs: Any) -> None:
    a, b = words(seed=8), words(seed=9)
    bench.wave.vector[1:3] = a, b
    bench.wave.set_mask(VCC, 0xF0F0F0F0F0F0F0F0)
    wave = bench.run(ins.v_cndmask_b32_e32(regs.v[3], regs.v[1], regs.v[2]))
    assert np.array_equal(wave.vector[3], np.where(LANES // 4 % 2 == 1, b, a))


def test_the_first_active_lane(bench: Bench, ins: Any, regs: Any) -> None:
    bench.wave.vector[1] = LANES + 100
    bench.wave.set_mask(EXEC, 0xFF00)
    word = 0x7E000500 | 5 << 17 | 257  # the target is a scalar register
    wave = bench.run(word.to_bytes(4, "little"))
    assert wave.scalar[5] == 108


# ---- matrices --------------------------------------------------------------------------------------------------------

KINDS = {
    "16x16x32_fp8_fp8": (16, 32, 1, E4M3, E4M3),
    "16x16x32_bf8_fp8": (16, 32, 1, E5M2, E4M3),
    "32x32x16_fp8_fp8": (32, 16, 1, E4M3, E4M3),
    "16x16x128_f8f6f4": (16, 128, 2, E4M3, E4M3),
    "32x32x64_f8f6f4": (32, 64, 2, E4M3, E4M3),
}


def element(edge: int, depth: int, runs: int, lane: int, index: int) -> tuple[int, int]:
    """The row, and the place along K, of an element that a lane holds."""
    groups = 64 // edge
    length = depth // groups // runs
    run, within = divmod(index, length)
    return lane % edge, (run * groups + lane // edge) * length + within


def result(edge: int, lane: int, register: int) -> tuple[int, int]:
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4 if edge == 32 else 4 * (
        lane // 16
    ) + register, lane % edge


def fill(bench: Bench, first: int, accumulators: bool, edge: int, depth: int, runs: int, table: Any, seed: int) -> Any:
    """Random bytes in registers; the matrix [edge, depth] that they are."""
    codes = np.random.default_rng(seed).choice(
        np.flatnonzero(np.isfinite(table)).astype(np.uint8), (64, depth * edge // 64)
    )
    registers = codes.view(U32).T
    bench.wave.file(accumulators)[first : first + len(registers)] = registers
    matrix = np.zeros((edge, depth))
    for lane in range(64):
        for index in range(codes.shape[1]):
            matrix[element(edge, depth, runs, lane, index)] = table[codes[lane, index]]
    return matrix


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accumulators", [False, True])
def test_a_matrix_product(kind: str, accumulators: bool, bench: Bench, ins: Any, regs: Any) -> None:
    edge, depth, runs, a_table, b_table = KINDS[kind]
    a = fill(bench, 8, accumulators, edge, depth, runs, a_table, 1)
    b = fill(bench, 24, accumulators, edge, depth, runs, b_table, 2)
    count = edge * edge // 64
    c = np.random.default_rng(3).standard_normal((count, 64)).astype(np.float32) * 1000
    bench.wave.file(accumulators)[64 : 64 + count] = c.view(U32)
    size = depth * edge // 256
    make = getattr(ins, f"v_mfma_f32_{kind}")
    wave = bench.run(
        make(
            *(
                regs.v[128 : 128 + count - 1],
                regs.v[8 : 8 + size - 1],
                regs.v[24 : 24 + size - 1],
                regs.v[64 : 64 + count - 1],
            ),
            acc_cd=int(accumulators),
            acc=3 * accumulators,
        )
    )
    got = wave.file(accumulators)[128 : 128 + count].view(np.float32)
    product = a @ b.T
    for lane in range(64):
        for register in range(count):
            exact = product[result(edge, lane, register)] + float(c[register, lane])
            assert got[register, lane] == np.float32(exact)


def test_a_scaled_matrix_product(bench: Bench, ins: Any, regs: Any) -> None:
    """The scale of block b of row r is a byte of lane r + 16 b; which byte, op_sel and op_sel_hi say."""
    a, b = (fill(bench, first, False, 16, 128, 2, E4M3, first) for first in (8, 24))
    scales = np.random.default_rng(4).integers(118, 134, (2, 64, 4), dtype=np.uint8)
    for register, one in zip((40, 41), scales, strict=True):
        bench.wave.vector[register] = one.view(U32)[:, 0]
    bench.wave.vector[64:68] = 0
    for a_byte, b_byte in ((0, 0), (1, 2), (3, 1), (2, 3)):
        word = 0xD3AC << 16 | (a_byte & 1) << 11 | (b_byte & 1) << 12 | (a_byte >> 1) << 59 | (b_byte >> 1) << 60
        word |= (256 + 40) << 32 | (256 + 41) << 41
        main = 0xD3AD << 16 | 1 << 11 | 68 | (256 + 8) << 32 | (256 + 24) << 41 | (256 + 64) << 50
        word |= main << 64
        wave = bench.run(word.to_bytes(16, "little"))
        scaled = []
        for matrix, one, byte in ((a, scales[0], a_byte), (b, scales[1], b_byte)):
            factors = e8m0(one[:, byte].reshape(4, 16).T)
            scaled.append(matrix * np.repeat(factors, 32, axis=1))
        product = scaled[0] @ scaled[1].T
        got = wave.vector[68:72].view(np.float32)
        for lane in range(64):
            for register in range(4):
                assert got[register, lane] == np.float32(product[result(16, lane, register)])


def test_an_mfma_behind_another_instruction_is_none_of_16_bytes(bench: Bench, ins: Any, regs: Any) -> None:
    """tinygrad takes 8 bytes and an MFMA behind them for a scaled MFMA."""
    bench.wave.vector[8:32] = 0
    bench.wave.vector[2] = 7
    wave = bench.run(
        ins.v_and_or_b32(regs.v[1], regs.v[2], regs.v[2], regs.v[2]),
        ins.v_mfma_f32_16x16x128_f8f6f4(regs.v[64:67], regs.v[8:15], regs.v[24:31], 0),
    )
    assert (wave.vector[1] == 7).all()
    assert (wave.vector[64:68] == 0).all()


def test_accumulation_registers_move(bench: Bench, ins: Any, regs: Any) -> None:
    bench.wave.vector[1] = LANES
    wave = bench.run(ins.v_accvgpr_write(regs.v[9], regs.v[1]), ins.v_accvgpr_read(regs.v[2], regs.v[9]))
    assert np.array_equal(wave.accumulator[9], LANES)
    assert np.array_equal(wave.vector[2], LANES)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_buffer_loads_are_zero_out_of_range_dword_by_dword(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(np.arange(1, 71, dtype=U32))
    bench.descriptor(8, array)
    bench.wave.vector[1] = LANES * 8
    bench.wave.scalar[3] = 4
    wave = bench.run(ins.buffer_load_dwordx4(regs.v[4:7], regs.v[1], regs.s[8:11], regs.s[3], offen=1, offset=16), WAIT)
    dwords = 5 + 2 * LANES + np.arange(4)[:, None]
    assert np.array_equal(wave.vector[4:8], np.where(dwords < 70, dwords + 1, 0))


def test_a_load_arrives_when_it_is_waited_for(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(np.arange(64, dtype=U32))
    bench.descriptor(8, array)
    bench.wave.vector[1] = LANES * 4
    bench.wave.scalar[3] = 0
    load = [ins.buffer_load_dword(regs.v[2 + i], regs.v[1], regs.s[8:11], regs.s[3], offen=1) for i in range(2)]
    add = [ins.v_mov_b32_e32(regs.v[6 + i], regs.v[2 + i]) for i in range(2)]
    wave = bench.run(*load, ins.s_waitcnt(simm16=0xF71), *add)  # vmcnt(1)
    assert np.array_equal(wave.vector[6], LANES)
    assert (wave.vector[7] == POISON).all()


def test_narrow_loads(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(np.arange(200, dtype=np.uint8) + 100)
    bench.descriptor(8, array, 150)
    bench.wave.vector[1] = LANES * 3
    bench.wave.scalar[3] = 0
    bench.wave.vector[4:8] = 0x11112222
    names = ("ubyte", "sbyte", "ushort", "sshort", "short_d16", "short_d16_hi")
    make = [
        getattr(ins, f"buffer_load_{name}")(regs.v[2 + i], regs.v[1], regs.s[8:11], regs.s[3], offen=1)
        for i, name in enumerate(names)
    ]
    wave = bench.run(*make, WAIT)
    at = LANES * 3
    byte = np.where(at < 150, np.append(array, np.zeros(99, np.uint8))[at], 0).astype(np.uint8)
    short = np.where(at + 2 <= 150, byte | array[np.minimum(at + 1, 199)].astype(np.uint16) << 8, 0).astype(np.uint16)
    assert np.array_equal(wave.vector[2], byte)
    assert np.array_equal(wave.vector[3].view(np.int32), byte.view(np.int8))
    assert np.array_equal(wave.vector[4], short)
    assert np.array_equal(wave.vector[5].view(np.int32), short.view(np.int16))
    assert np.array_equal(wave.vector[6], short.astype(U32) | U32(0x11110000))
    assert np.array_equal(wave.vector[7], short.astype(U32) << U32(16) | U32(0x2222))


def test_stores_out_of_range_are_dropped_and_others_must_be_allowed(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(np.zeros(40, np.uint16), "y", writable=True)
    bench.descriptor(8, array)
    bench.wave.vector[1] = LANES * 2
    bench.wave.vector[2] = LANES + 0x70000
    bench.wave.scalar[3] = 0
    store = ins.buffer_store_short(regs.v[2], regs.v[1], regs.s[8:11], regs.s[3], offen=1)
    bench.run(store)
    assert np.array_equal(array, LANES[:40])
    other = bench.place(np.zeros(64, np.uint16), "x")
    bench.descriptor(8, other)
    with pytest.raises(AccessError, match="a store to x, which is only to be read"):
        bench.run(store)
    bench.descriptor(8, array, 82)
    with pytest.raises(AccessError, match="0 bytes behind the end of y"):
        bench.run(store)


@pytest.mark.parametrize(("name", "size"), [("dword", 4), ("dwordx4", 16), ("ubyte", 1)])
def test_loads_to_lds(name: str, size: int, bench: Bench, ins: Any, regs: Any) -> None:
    """Lane l's bytes go to M0 + offset + l times the size; out of range, zeros."""
    array = bench.place(np.arange(60 * 16, dtype=np.uint16).astype(np.uint8))
    bench.descriptor(8, array, 50 * size)
    bench.wave.vector[1] = LANES * size
    bench.wave.scalar[3] = 0
    bench.wave.scalar[M0] = 256
    data = regs.v[0:3] if size == 16 else regs.v[0]
    load = getattr(ins, f"buffer_load_{name}")(data, regs.v[1], regs.s[8:11], regs.s[3], offen=1, lds=1)
    each = max(size, 4)
    bench.run(load, WAIT)
    got = bench.group.lds.read(256 + LANES * each, size)
    expected = np.zeros((64, size), np.uint8)
    expected[:50] = array[: 50 * size].reshape(50, size)
    assert np.array_equal(got, expected)
    assert bench.group.lds.races == []


def test_a_read_that_does_not_wait_for_a_load_to_lds_is_a_race(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(np.arange(64, dtype=U32))
    bench.descriptor(8, array)
    bench.wave.vector[1] = LANES * 4
    bench.wave.scalar[3] = 0
    bench.wave.scalar[M0] = 0
    load = ins.buffer_load_dword(regs.v[0], regs.v[1], regs.s[8:11], regs.s[3], offen=1, lds=1)
    bench.run(load, ins.ds_read_b32(regs.v[2], regs.v[1]), WAIT)
    (race,) = bench.group.lds.races
    assert "ds_read_b32" in race


def test_lds_beyond_its_end(bench: Bench, ins: Any, regs: Any) -> None:
    bench.wave.vector[1] = 4096 - 12
    with pytest.raises(AccessError, match="of which the workgroup has 0x1000"):
        bench.run(ins.ds_read_b128(regs.v[2:5], regs.v[1]))


@pytest.mark.parametrize("size", [8, 16, 32, 64, 96, 128])
def test_lds_writes_and_reads(size: int, bench: Bench, ins: Any, regs: Any) -> None:
    count = max(size // 32, 1)
    data = words(64 * count, 3).reshape(count, 64)
    bench.wave.vector[1] = LANES[::-1] * 16
    bench.wave.vector[8 : 8 + count] = data
    source = regs.v[8 : 8 + count - 1] if count > 1 else regs.v[8]
    target = regs.v[16 : 16 + count - 1] if count > 1 else regs.v[16]
    read = f"ds_read_{'u' if size < 32 else 'b'}{size}"
    wave = bench.run(
        getattr(ins, f"ds_write_b{size}")(regs.v[0], regs.v[1], source, offset0=32),
        getattr(ins, read)(target, regs.v[1], offset0=32),
        WAIT,
    )
    assert np.array_equal(wave.vector[16 : 16 + count], data & U32((1 << min(size, 32)) - 1))


def test_lds_pairs(bench: Bench, ins: Any, regs: Any) -> None:
    bench.wave.vector[1] = LANES * 8
    bench.wave.vector[2:4] = words(seed=1), words(seed=2)
    wave = bench.run(
        ins.ds_write2_b32(regs.v[0], regs.v[1], regs.v[2], regs.v[3], offset0=0, offset1=1),
        ins.ds_read2st64_b32(regs.v[6:7], regs.v[1], offset0=0, offset1=1),
        ins.ds_read2_b64(regs.v[8:11], regs.v[1], offset0=0, offset1=1),
        WAIT,
    )
    pairs = np.stack([wave.vector[2], wave.vector[3]])
    assert np.array_equal(wave.vector[6], pairs[0])
    assert np.array_equal(wave.vector[7][:32], pairs[0][32:])
    assert np.array_equal(wave.vector[8:10], pairs)
    assert np.array_equal(wave.vector[10:12, :-1], pairs[:, 1:])


def test_lanes_exchange(bench: Bench, ins: Any, regs: Any) -> None:
    bench.wave.vector[1] = (LANES * 7 % 64) * 4
    bench.wave.vector[2] = LANES
    wave = bench.run(
        ins.ds_bpermute_b32(regs.v[3], regs.v[1], regs.v[2]), ins.ds_permute_b32(regs.v[4], regs.v[1], regs.v[2]), WAIT
    )
    assert np.array_equal(wave.vector[3], LANES * 7 % 64)
    assert np.array_equal(wave.vector[4][LANES * 7 % 64], LANES)


def test_scalar_loads(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(words(32))
    bench.wave.set_mask(4, array.ctypes.data)
    wave = bench.run(ins.s_load_dwordx4(regs.s[8:11], regs.s[4:5], offset=16, imm=1), WAIT)
    assert np.array_equal(wave.scalar[8:12], array[4:8])
    with pytest.raises(AccessError, match="0 bytes behind the end of array"):
        bench.run(ins.s_load_dwordx2(regs.s[8:9], regs.s[4:5], offset=128, imm=1))


def test_global_memory_and_its_atomics(bench: Bench, ins: Any, regs: Any) -> None:
    array = bench.place(np.arange(16, dtype=U32), "counters", writable=True)
    bench.wave.set_mask(4, array.ctypes.data)
    bench.wave.vector[1] = LANES % 4 * 4
    bench.wave.vector[2] = 1
    wave = bench.run(
        ins.global_atomic_add(regs.v[3], regs.v[1], regs.v[2], regs.s[4:5], sc0=1),
        ins.global_load_dword(regs.v[4], regs.v[1], saddr=regs.s[4:5], offset=16),
        WAIT,
        ins.global_store_short(addr=regs.v[1], data=regs.v[2], saddr=regs.s[4:5], offset=34),
    )
    assert np.array_equal(wave.vector[3], LANES % 4 + LANES // 4)
    assert np.array_equal(array[:4], np.arange(4) + 16)
    assert np.array_equal(wave.vector[4], 4 + LANES % 4)
    assert np.array_equal(array[8:12], np.arange(8, 12) | 1 << 16)


def test_scratch_belongs_to_a_lane(tinygrad: Any, ins: Any, regs: Any) -> None:
    bench = Bench(tinygrad)
    bench.waves[0].scratch = np.full((64, 32), 0xFF, np.uint8)
    bench.wave.scalar[30] = 4
    bench.wave.vector[2:4] = words(seed=1), words(seed=2)
    wave = bench.run(
        ins.scratch_store_dwordx2(addr=regs.v[0], data=regs.v[2:3], saddr=regs.s[30], offset=8),
        ins.scratch_load_dword(regs.v[5], regs.v[0], saddr=regs.s[30], offset=12),
        WAIT,
    )
    assert np.array_equal(wave.vector[5], wave.vector[3])


# ---- control ---------------------------------------------------------------------------------------------------------


def test_waves_meet_at_a_barrier(tinygrad: Any, ins: Any, regs: Any) -> None:
    """Each wave writes its number, and reads its neighbour's: with a barrier, and without one."""
    for barrier, right in ((BARRIER, True), (b"", False)):
        bench = Bench(tinygrad, waves=2)
        for number, wave in enumerate(bench.waves):
            wave.vector[1] = number * 256 + LANES * 4
            wave.vector[2] = number
            wave.vector[3] = (1 - number) * 256 + LANES * 4
        bench.run(
            ins.ds_write_b32(regs.v[0], regs.v[1], regs.v[2]),
            WAIT,
            barrier,
            ins.ds_read_b32(regs.v[4], regs.v[3]),
            WAIT,
        )
        assert [bool((wave.vector[4] == 1 - number).all()) for number, wave in enumerate(bench.waves)] == [right, True]


def test_loops_and_branches(bench: Bench, ins: Any, regs: Any) -> None:
    wave = bench.run(
        ins.s_movk_i32(regs.s[4], 5),
        ins.s_movk_i32(regs.s[5], 0),
        ins.s_addk_i32(regs.s[5], 3),
        ins.s_addk_i32(regs.s[4], -1 & 0xFFFF),
        ins.s_cmp_lg_u32(regs.s[4], 0),
        ins.s_cbranch_scc1(simm16=-4 & 0xFFFF),
    )
    assert wave.scalar[5] == 15


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("s_trap(simm16=2)", "s_trap"),
        ("buffer_load_format_x(v[1], v[2], s[8:11], s[3])", "buffer_load_format_x"),
        ("ds_add_u32(v[0], v[1], v[2])", "ds_add_u32"),
        ("v_mfma_i32_16x16x64_i8(v[8:11], v[16:19], v[20:23], v[8:11])", "v_mfma_i32_16x16x64_i8"),
        ("flat_load_dword(v[1], v[2:3])", "FLAT"),
        ("s_setreg_b32(s[3], 1)", "s_setreg_b32"),
    ],
)
def test_what_is_not_modelled_has_a_name(make: str, said: str, bench: Bench, ins: Any, regs: Any) -> None:
    instruction = eval(f"ins.{make}", {"ins": ins, "v": regs.v, "s": regs.s})
    with pytest.raises(UnknownInstruction, match="(?i)offset 0x0.*" + said):
        bench.run(instruction)


def test_a_jump_out_of_the_code(bench: Bench, ins: Any) -> None:
    with pytest.raises(ExecutionError, match="jumps out of its code object"):
        bench.run(ins.s_branch(simm16=0x7000))
