"""The reference kernels' numbers: real compiled binaries on a CPU emulator against a numpy product with block scales.

Runs where TINYGRAD_SOURCE names a tinygrad checkout, and CC a clang of version 19 or newer. Every tile of the tuned
table runs at two N and, of the K below, two; with REFERENCE_EMULATOR=all at all of them.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiter_flydsl_prebuild.dispatch.reference_names import Config, parse
from aiter_flydsl_prebuild.flydsl import cache as flydsl_cache
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain
from aiter_flydsl_prebuild.packs.codeobject import embedded_code_objects, read_code_object
from processes import ROOT, SUPPORT, flydsl_environment

if not os.environ.get("TINYGRAD_SOURCE"):
    pytest.skip("TINYGRAD_SOURCE does not name a tinygrad checkout", allow_module_level=True)
for module in ("flydsl", "torch", "msgpack", "elftools"):
    pytest.importorskip(module)
np = pytest.importorskip("numpy")

from aiter_flydsl_prebuild.execution import gemm  # noqa: E402
from aiter_flydsl_prebuild.execution.faults import AccessError, ExecutionError  # noqa: E402
from aiter_flydsl_prebuild.execution.floats import E4M3, bf16  # noqa: E402
from aiter_flydsl_prebuild.execution.image import Image  # noqa: E402
from aiter_flydsl_prebuild.execution.machine import Launch, Machine, all_workgroups  # noqa: E402
from aiter_flydsl_prebuild.execution.memory import Memory  # noqa: E402
from aiter_flydsl_prebuild.execution.program import Program  # noqa: E402
from bench import emulator  # noqa: E402

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from numpy import ndarray

    from aiter_flydsl_prebuild.execution.tinygrad import Emulator

Job = tuple[str, int, int]

# Runs of 512 only; with one, two or three steps of 128 behind them, or none before; and the odd multiples of 64.
KS = (1024, 128, 384, 640, 512, 1152, 576, 64, 1984)

with (ROOT / "tuned_configs" / "reference_mxfp8_tuned_gemm.csv").open(encoding="utf-8") as table:
    CONFIGS = sorted({parse(row["kernelName"]) for row in csv.DictReader(table)})


def jobs_of(number: int, config: Config) -> list[Job]:
    """The kernels that are run for one configuration: N a multiple of the tile and not, and values of K."""
    ns = (2 * config.tile_n, config.tile_n + 16 if config.tile_n > 16 else 48)
    if os.environ.get("REFERENCE_EMULATOR") == "all":
        return [(config.name, n, k) for n, k in itertools.product(ns, KS)]
    return [(config.name, n, KS[(2 * number + i) % len(KS)]) for i, n in enumerate(ns)]


# The kernel that the checks themselves are checked with: every step, a scale word per row, a ragged N.
PROBE: Job = ("refgemm_mxfp8_t32x32_w1x2_d4", 48, 1152)
JOBS = {config: jobs_of(number, config) for number, config in enumerate(CONFIGS)}


@pytest.fixture(scope="module")
def kernels(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[Job, bytes]:
    """The code objects that FlyDSL makes, by name, N and K."""
    jobs = sorted({PROBE, *itertools.chain(*JOBS.values())})
    run = subprocess.run(
        [sys.executable, str(SUPPORT / "compile_reference.py")],
        input=json.dumps(jobs),
        env=flydsl_environment(toolchain, tmp_path_factory.mktemp("reference")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    texts = [flydsl_cache.decode_entry(Path(result["entry"]).read_bytes()).ir_text for result in json.loads(run.stdout)]
    images = [embedded_code_objects(text) for text in texts]
    assert all(len(image) == 1 for image in images)
    return {job: image[0][1] for job, image in zip(jobs, images, strict=True)}


@pytest.fixture(scope="module")
def tinygrad() -> Emulator:
    return emulator()


class Problem:
    """Random operands: every finite e4m3 value, block scales from 2**-7 to 2**3; w is not shuffled."""

    def __init__(self, m: int, n: int, k: int) -> None:
        self.m, self.n, self.k = m, n, k
        random = np.random.default_rng([m, n, k])
        self.x, self.w = gemm.fp8(random, m, k), gemm.fp8(random, n, k)
        self.x_scale = gemm.block_scales(random, m, k // 32)
        self.w_scale = gemm.block_scales(random, -(-n // 32), k // 32)

    def worst(self, y: ndarray) -> float:
        """The largest error of ``y`` (bfloat16 bits), in units of what rounding and the order of summation allow."""
        x = gemm.scaled_rows(self.x, self.x_scale, 32)
        w = gemm.scaled_blocks(self.w, self.w_scale, 32, 32)
        everything = slice(None)
        return gemm.Product(x, w, self.k, "bfloat16")(everything, everything).worst(bf16(y))


def run(
    program: Program, config: Config, problem: Problem, *, end: bool = True, rows_told: int | None = None
) -> ndarray:
    """y as the kernel leaves it, in bfloat16 bits; what it does not write stays NaN."""
    memory = Memory()
    m, n = problem.m, problem.n
    y = memory.place(np.full((m, n), 0xFFFF, np.uint16), "y", writable=True, end=end)
    inputs = {
        "x": problem.x,
        "x_scale": problem.x_scale,
        "w": gemm.shuffled(problem.w),
        "w_scale": problem.w_scale,
    }
    placed = [memory.place(array, name, end=end) for name, array in inputs.items()]
    told = m if rows_told is None else rows_told
    arguments = [array.ctypes.data.to_bytes(8, "little") for array in (y, *placed)] + [told.to_bytes(4, "little")]
    grid = (-(-told // config.tile_m), -(-n // config.tile_n), 1)
    (name,) = program.image.names
    launch = Launch(name, grid, (config.threads, 1, 1), 0, tuple(arguments))
    Machine(program, launch, memory).run(all_workgroups(grid))
    result: ndarray = y.copy()
    return result


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_tile_computes_the_scaled_product(config: Config, kernels: dict[Job, bytes], tinygrad: Emulator) -> None:
    for job in JOBS[config]:
        program = Program(Image(kernels[job]), tinygrad)
        for m in (1, config.tile_m - 1, config.tile_m, config.tile_m + 5):
            problem = Problem(m, *job[1:])
            worst = [problem.worst(run(program, config, problem, end=end)) for end in (True, False)]
            assert max(worst) <= 1, (job, m, worst)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_kernel_spills_nothing_and_uses_no_lds(config: Config, kernels: dict[Job, bytes]) -> None:
    for job in JOBS[config]:
        (facts,) = read_code_object(kernels[job])
        assert (facts.vgpr_spills, facts.sgpr_spills, facts.scratch, facts.lds) == (0, 0, 0, 0), job


# ---- the checks, checked ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probe(kernels: dict[Job, bytes], tinygrad: Emulator) -> tuple[Problem, ndarray]:
    """A problem and the right answer to it, from the kernel."""
    problem = Problem(37, *PROBE[1:])
    y = run(Program(Image(kernels[PROBE]), tinygrad), parse(PROBE[0]), problem)
    assert problem.worst(y) <= 1
    return problem, y


def other(problem: Problem, **changes: Any) -> Problem:
    changed = Problem(problem.m, problem.n, problem.k)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def test_a_wrong_scale_is_seen(probe: tuple[Problem, ndarray]) -> None:
    problem, y = probe
    for name in ("x_scale", "w_scale"):
        scales = getattr(problem, name)
        one_off = scales.copy()
        one_off[-1, -1] += 1
        words = scales.reshape(len(scales), -1, 4)
        for wrong in (one_off, np.roll(scales, 1, axis=0), np.roll(words, 1, axis=2).reshape(scales.shape)):
            assert other(problem, **{name: wrong}).worst(y) > 1


def test_a_wrong_order_along_k_is_seen(probe: tuple[Problem, ndarray]) -> None:
    """Both operands permuted alike: the unscaled product is the same, so only the scales can tell."""
    problem, y = probe

    def runs_swapped(a: ndarray) -> ndarray:
        halves = a.reshape(len(a), -1, 2, 4, 16)  # within each 128, run c of lane group g for run g of lane group c
        swapped: ndarray = np.ascontiguousarray(halves[:, :, :, [0, 2, 1, 3]]).reshape(a.shape)
        return swapped

    wrong = other(problem, x=runs_swapped(problem.x), w=runs_swapped(problem.w))
    unscaled = [E4M3[p.x] @ E4M3[p.w].T for p in (problem, wrong)]
    assert np.array_equal(*unscaled)
    assert wrong.worst(y) > 1


def test_a_wrong_value_is_seen(probe: tuple[Problem, ndarray]) -> None:
    problem, y = probe
    wrong = y.copy()
    wrong[-1, -1] ^= 2
    assert problem.worst(wrong) > 1
    wrong[-1, -1] = 0xFFFF  # never written
    assert problem.worst(wrong) > 1


def altered(image: bytes, tinygrad: Emulator, name: str, bit: int, *, last: bool = False) -> Program:
    """The kernel with one bit of its first, or last, instruction called ``name`` flipped."""
    program = Program(Image(image), tinygrad)
    descriptor = program.image.kernel(*program.image.names)
    at, found = descriptor.entry, []
    while True:
        decoded = tinygrad.decode(at)
        if decoded.name == name:
            found.append(at - program.image.start)
        if decoded.name == "S_ENDPGM":
            break
        at += decoded.size
    program.image.memory[found[-1 if last else 0] + bit // 8] ^= 1 << bit % 8
    return program


MFMA = "V_MFMA_SCALE_F32_16X16X128_F8F6F4"


@pytest.mark.parametrize(
    ("name", "bit"),
    [
        *((MFMA, bit) for bit in (11, 12, 59, 60)),  # op_sel and op_sel_hi: which byte of a scale register
        *((MFMA, bit) for bit in (64 + 32, 64 + 41, 64 + 58, 64 + 0)),  # A, B, C, D
        ("BUFFER_LOAD_DWORDX4", 4),  # the offset
        ("BUFFER_LOAD_DWORDX4", 12),  # whether a register is added
        ("BUFFER_STORE_DWORDX2", 40),  # what is stored
        ("V_CVT_PK_BF16_F32", 32),
        ("S_WAITCNT", 1),
    ],
)
def test_a_flipped_bit_is_seen(
    name: str, bit: int, probe: tuple[Problem, ndarray], kernels: dict[Job, bytes], tinygrad: Emulator
) -> None:
    program = altered(kernels[PROBE], tinygrad, name, bit, last=name == "S_WAITCNT")
    with contextlib.suppress(ExecutionError):  # seen too
        assert probe[0].worst(run(program, parse(PROBE[0]), probe[0])) > 1


def test_a_row_too_many_is_seen(probe: tuple[Problem, ndarray], kernels: dict[Job, bytes], tinygrad: Emulator) -> None:
    program = Program(Image(kernels[PROBE]), tinygrad)
    with pytest.raises(AccessError):
        run(program, parse(PROBE[0]), probe[0], rows_told=probe[0].m + 1)
