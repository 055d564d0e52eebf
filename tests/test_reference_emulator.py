"""The reference kernels' numbers: real compiled binaries on a CPU emulator against a numpy product with block scales.

Runs where TINYGRAD_SOURCE names a tinygrad checkout, and CC a clang of version 19 or newer. Every tile of the tuned
table runs at two N and, of the K below, two; with REFERENCE_EMULATOR=all at all of them.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiter_flydsl_prebuild.builder.toolchain import Toolchain
from aiter_flydsl_prebuild.sources.reference.grammar import Config, parse
from conftest import HERE, flydsl_environment

if not os.environ.get("TINYGRAD_SOURCE"):
    pytest.skip("TINYGRAD_SOURCE does not name a tinygrad checkout", allow_module_level=True)
for module in ("flydsl", "torch", "msgpack", "elftools"):
    pytest.importorskip(module)
np = pytest.importorskip("numpy")

from emulator import E4M3, AccessError, CodeObject, Memory, e8m0, embedded_code_objects  # noqa: E402

if TYPE_CHECKING:
    from numpy import ndarray

Job = tuple[str, int, int]

# Runs of 512 only; with one, two or three steps of 128 behind them, or none before; and the odd multiples of 64.
KS = (1024, 128, 384, 640, 512, 1152, 576, 64, 1984)

with (HERE.parent / "tuned_configs" / "reference_mxfp8_tuned_gemm.csv").open(encoding="utf-8") as table:
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
        [sys.executable, str(HERE / "compile_reference.py")],
        input=json.dumps(jobs),
        env=flydsl_environment(toolchain, tmp_path_factory.mktemp("reference")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    images = [embedded_code_objects(Path(result["entry"])) for result in json.loads(run.stdout)]
    assert all(len(image) == 1 for image in images)
    return {job: image[0] for job, image in zip(jobs, images, strict=True)}


class Problem:
    """Random operands: every finite e4m3 value, block scales from 2**-7 to 2**3; w is not shuffled."""

    def __init__(self, m: int, n: int, k: int) -> None:
        self.m, self.n, self.k = m, n, k
        random = np.random.default_rng([m, n, k])
        finite = np.flatnonzero(np.isfinite(E4M3)).astype(np.uint8)
        self.x = random.choice(finite, (m, k))
        self.w = random.choice(finite, (n, k))
        self.x_scale = random.integers(120, 131, (m, k // 32), dtype=np.uint8)
        self.w_scale = random.integers(120, 131, (-(-n // 32), k // 32), dtype=np.uint8)

    def shuffled_w(self) -> ndarray:
        """w in the layout (16, 16): of 16 rows, all first 16 bytes, then all second 16 bytes, and so on."""
        pieces = self.w.reshape(self.n // 16, 16, self.k // 16, 16)
        return np.ascontiguousarray(pieces.swapaxes(1, 2)).reshape(self.n, self.k)

    def worst(self, y: ndarray) -> float:
        """The largest error of ``y`` (bfloat16 bits), in units of what rounding and the order of summation allow."""
        x = E4M3[self.x] * np.repeat(e8m0(self.x_scale), 32, axis=1)
        block_rows = np.repeat(e8m0(self.w_scale), 32, axis=0)[: self.n]
        w = E4M3[self.w] * np.repeat(block_rows, 32, axis=1)
        exact = x @ w.T
        # Half a unit in bfloat16's last of 8 bits, and float32 sums in any order.
        allowed = np.abs(exact) * 2.0**-8 + np.abs(x) @ np.abs(w).T * 2.0**-20
        got = (y.astype(np.uint32) << 16).view(np.float32)
        return float(np.max(np.nan_to_num(np.abs(got - exact) / allowed, nan=np.inf)))


def run(image: bytes, config: Config, problem: Problem, *, end: bool = True, rows_told: int | None = None) -> ndarray:
    """y as the kernel leaves it, in bfloat16 bits; what it does not write stays NaN."""
    memory = Memory()
    m, n = problem.m, problem.n
    y = memory.place(np.full((m, n), 0xFFFF, np.uint16), writable=True, end=end)
    inputs = (problem.x, problem.x_scale, problem.shuffled_w(), problem.w_scale)
    placed = [memory.place(array, end=end) for array in inputs]
    told = m if rows_told is None else rows_told
    grid = (-(-told // config.tile_m), -(-n // config.tile_n))
    CodeObject(image).run(memory, grid, [y, *placed, told])
    result: ndarray = y.copy()
    return result


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_tile_computes_the_scaled_product(config: Config, kernels: dict[Job, bytes]) -> None:
    for job in JOBS[config]:
        for m in (1, config.tile_m - 1, config.tile_m, config.tile_m + 5):
            problem = Problem(m, *job[1:])
            worst = [problem.worst(run(kernels[job], config, problem, end=end)) for end in (True, False)]
            assert max(worst) <= 1, (job, m, worst)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_kernel_spills_nothing_and_uses_no_lds(config: Config, kernels: dict[Job, bytes]) -> None:
    for job in JOBS[config]:
        (metadata,) = CodeObject(kernels[job]).kernels.values()
        for figure in (".vgpr_spill_count", ".sgpr_spill_count", ".private_segment_fixed_size"):
            assert metadata[figure] == 0, (job, figure)
        assert metadata[".group_segment_fixed_size"] == 0


# ---- the checks, checked ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probe(kernels: dict[Job, bytes]) -> tuple[Problem, ndarray]:
    """A problem and the right answer to it, from the kernel."""
    problem = Problem(37, *PROBE[1:])
    y = run(kernels[PROBE], parse(PROBE[0]), problem)
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
        return np.ascontiguousarray(halves[:, :, :, [0, 2, 1, 3]]).reshape(a.shape)

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


@pytest.mark.parametrize("bit", [11, 12, 59, 60], ids=["w", "x", "w-high", "x-high"])
def test_a_kernel_with_another_byte_select_is_seen(bit: int, probe: tuple[Problem, ndarray], kernels: Any) -> None:
    """One bit of op_sel (11, 12) or op_sel_hi (59, 60) of the first scaled MFMA flipped."""
    image = bytearray(kernels[PROBE])
    words = [int.from_bytes(image[i : i + 16], "little") for i in range(0, len(image) - 16, 4)]
    first = next(
        i for i, word in enumerate(words) if word >> 16 & 0xFFFF == 0xD3AC and word >> 87 & 0x1FF == 0b110100111
    )
    image[4 * first : 4 * first + 16] = (words[first] ^ 1 << bit).to_bytes(16, "little")
    assert probe[0].worst(run(bytes(image), parse(PROBE[0]), probe[0])) > 1


def test_a_row_too_many_is_seen(probe: tuple[Problem, ndarray], kernels: dict[Job, bytes]) -> None:
    with pytest.raises(AccessError):
        run(kernels[PROBE], parse(PROBE[0]), probe[0], rows_told=probe[0].m + 1)
