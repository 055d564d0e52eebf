"""The reference kernel: y = x @ w.T with MXFP8 operands, for gfx950, one FlyDSL source for every configuration.

Operands, all behind pointers to bytes aligned to 16 (AITER's raw-scale contract):

=========  =======================  ====================================================================================
operand    shape, type              layout
=========  =======================  ====================================================================================
y          [M, N] bfloat16          row-major
x          [M, K] float8_e4m3fn     row-major
x_scale    [M, K/32] E8M0           row-major; one power of two per 32 neighbours along K
w          [N, K] float8_e4m3fn     shuffled (16, 16): every 16 rows are cut into pieces of 16 bytes along K, and the
                                    first pieces of all 16 rows come first, then their second pieces, and so on: byte
                                    (n, k) is at ``(n//16)*16*K + (k//16)*256 + (n%16)*16 + k%16``
w_scale    [ceil(N/32), K/32] E8M0  row-major; one power of two per 32 x 32 block
=========  =======================  ====================================================================================

M is a run-time argument; N, K and the configuration are compiled in.

How K is walked. One MFMA multiplies 128 values of K, of which lane l holds 32 of row l % 16 as two runs of 16: run c
at positions ``64c + 16(l//16)``. The scale of its slot b (32 positions) comes from lane ``l%16 + 16b``, out of a byte
of a register that the instruction selects. The order of K is free as long as both operands and both scales agree. So
512 values of K are done in four steps, and step j puts block 4b + j into slot b: the dword of four scales that lane
group b loads once then serves all four steps by byte select. What K leaves over is done in natural order, 128 at a
time, with each group's scale byte shifted down, and a last 64 with the second run zero.

Bounds. Every access goes through a buffer descriptor that starts at the workgroup's tile (64-bit base) and ends where
the tile's valid rows end: reads past it give zero, writes past it are dropped. Columns of y past N would land in the
next row, so those get an offset past the end. Scales are read as aligned dwords. Where K is an odd multiple of 64 their
rows start at odd multiples of 2; then two dwords make one, and the last one of x_scale or w_scale may cover two bytes
behind the array, which are not used: an aligned dword never crosses into another page.
"""

from __future__ import annotations

import functools
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import range_constexpr
from flydsl.expr.typing import Vector as Vec

from ...dispatch.reference_names import Config, check_shape

PAST_THE_END = 1 << 30
"""A byte offset beyond every descriptor of y: the grammar's limits keep a tile of y below it."""


@functools.cache
def launcher(config: Config, n: int, k: int) -> Any:
    """The ``flyc.jit`` function of one configuration and weight shape.

    It takes (y, x, x_scale, w, w_scale, m, stream): pointers made by
    ``flyc.from_c_void_p(fx.Uint8, address, assumed_align=16)``, an int and an ``fx.Stream``.
    Raises ValueError if the family cannot do ``n`` by ``k``.
    """
    check_shape(n, k)
    # Only scalars from here on: FlyDSL up to 0.4.2 keys on the ints and bools that a kernel closes over, not on objects
    tile_m, tile_n, waves_m, depth = config.tile_m, config.tile_n, config.waves_m, config.depth
    mfma_m, mfma_n, threads = config.mfma_m, config.mfma_n, config.threads
    scale_cols = k // 32
    scale_bytes = -(-n // 32) * scale_cols
    aligned_scales = scale_cols % 4 == 0
    rounds, rest, half = k // 512, k % 512 // 128, k % 128 == 64
    ragged_n = n % tile_n != 0
    # Two neighbouring 16-column blocks share a row of w_scale if a wave starts at a multiple of 32.
    blocks_per_scale = 2 if mfma_n % 2 == 0 else 1

    @flyc.kernel  # type: ignore[untyped-decorator]
    def refgemm_mxfp8_kernel(
        y: fx.Pointer, x: fx.Pointer, x_scale: fx.Pointer, w: fx.Pointer, w_scale: fx.Pointer, m: fx.Int32
    ) -> None:
        thread = fx.Int32(fx.thread_idx.x)
        lane = thread & 63
        row = lane & 15
        group = lane >> 4
        wave = thread >> 6
        wave_m = wave % waves_m
        wave_n = wave // waves_m
        m_tile = fx.Int32(fx.block_idx.x) * tile_m
        n_tile = fx.Int32(fx.block_idx.y) * tile_n

        rows_left = m - m_tile
        rows = (rows_left < tile_m).select(rows_left, fx.Int32(tile_m))
        cols_left = n - n_tile
        cols = (cols_left < tile_n).select(cols_left, fx.Int32(tile_n))

        y_tile = fx.rocdl.make_buffer_ptr(y + fx.Int64(m_tile) * (2 * n), num_records_bytes=fx.Int64(rows) * (2 * n))
        x_tile = fx.rocdl.make_buffer_ptr(x + fx.Int64(m_tile) * k, num_records_bytes=fx.Int64(rows) * k)
        w_tile = fx.rocdl.make_buffer_ptr(w + fx.Int64(n_tile) * k, num_records_bytes=fx.Int64(cols) * k)
        xs_tile = fx.rocdl.make_buffer_ptr(
            x_scale + fx.Int64(m_tile) * scale_cols, num_records_bytes=fx.Int64((rows * scale_cols + 3) & -4)
        )
        ws_all = fx.rocdl.make_buffer_ptr(w_scale, num_records_bytes=fx.Int64(-(-scale_bytes // 4) * 4))

        wave_row = wave_m * (16 * mfma_m)
        wave_col = wave_n * (16 * mfma_n)
        x_row = (wave_row + row) * k
        xs_row = (wave_row + row) * scale_cols
        w_row = wave_col * k + row * 16
        ws_row = [((n_tile + wave_col + 16 * j) >> 5) * scale_cols for j in range(0, mfma_n, blocks_per_scale)]

        # w is operand A and x is B: a lane then ends up with four neighbouring columns of one row of y.
        atoms = [
            fx.make_mma_atom(
                fx.rocdl.cdna4.MFMA_Scale(16, 16, 128, fx.Float8E4M3FN, fx.Float8E4M3FN, opsel_a=byte, opsel_b=byte)
            )
            for byte in range(4)
        ]
        sums = [[fx.make_rmem_tensor(4, fx.Float32) for _ in range(mfma_n)] for _ in range(mfma_m)]
        for i in range_constexpr(mfma_m):
            for j in range_constexpr(mfma_n):
                sums[i][j].store(Vec.filled(4, 0.0, fx.Float32))

        def operand(tile: Any, first: Any, second: Any) -> Any:
            fragment = fx.make_rmem_tensor(8, fx.Int32)
            pieces = [(tile + at).load(Vec[fx.Int32, 4]) for at in (first, second) if at is not None]
            words = [piece[i] for piece in pieces for i in range(4)]
            fragment.store(Vec.from_elements(words + [fx.Int32(0)] * (8 - len(words)), fx.Int32))
            return fragment

        def operands(at: Any, second: Any) -> tuple[list[Any], list[Any]]:
            """One step's A and B: 16 bytes of every row from K = ``at`` on, 16 from ``second`` on (None: zeros)."""
            a, b = [], []
            for j in range_constexpr(mfma_n):
                block = w_row + j * 16 * k
                a.append(operand(w_tile, block + at * 16, None if second is None else block + second * 16))
            for i in range_constexpr(mfma_m):
                block = x_row + i * 16 * k
                b.append(operand(x_tile, block + at, None if second is None else block + second))
            return a, b

        def scale_word(tile: Any, at: Any, count: int) -> Any:
            """``count`` (4 or 2) neighbouring scales in the low bytes of a word."""
            if fx.const_expr(aligned_scales):
                return (tile + at).load(fx.Int32)
            low = (tile + (at & -4)).load(fx.Int32)
            high = (tile + ((at + (count - 1)) & -4)).load(fx.Int32)
            return ((at & 2) == 0).select(low, ((low >> 16) & 0xFFFF) | (high << 16))

        def scales(at: Any, count: int = 4) -> tuple[list[Any], list[Any]]:
            a = [scale_word(ws_all, r + at, count) for r in ws_row]
            b = [scale_word(xs_tile, xs_row + i * 16 * scale_cols + at, count) for i in range(mfma_m)]
            return a, b

        def own_byte(words: list[Any], groups: int) -> list[Any]:
            """Each lane group's scale in the lowest byte; of the groups from ``groups`` on, a zero."""
            return [(group < groups).select(word >> (group * 8), fx.Int32(0)) for word in words]

        def multiply(byte: int, a: list[Any], b: list[Any], a_scales: list[Any], b_scales: list[Any]) -> None:
            for i in range_constexpr(mfma_m):
                for j in range_constexpr(mfma_n):
                    d = sums[i][j]
                    fx.gemm(atoms[byte], d, a[j], b[i], d, scale_a=a_scales[j // blocks_per_scale], scale_b=b_scales[i])

        # Where a lane's first run starts in 512 values of K taken in four steps, and in 128 taken in natural order.
        strided = (group >> 1) * 128 + (group & 1) * 16
        natural = group * 16

        for round_ in range(rounds):
            a_words, b_words = scales(fx.Int32(round_) * 16 + group * 4)
            for first in range_constexpr(0, 4, depth):
                loaded = []
                for step in range_constexpr(first, first + depth):
                    at = fx.Int32(round_) * 512 + 32 * step + strided
                    loaded.append(operands(at, at + 256))
                # No load sinks to right before its use, and none of a later step rises above this one.
                fx.rocdl.sched_barrier(0)
                for step in range_constexpr(depth):
                    a, b = loaded[step]
                    multiply(first + step, a, b, a_words, b_words)
        for step in range_constexpr(rest):
            at = natural + (rounds * 512 + step * 128)
            a, b = operands(at, at + 64)
            fx.rocdl.sched_barrier(0)
            a_words, b_words = scales(fx.Int32(rounds * 16 + step * 4))
            multiply(0, a, b, own_byte(a_words, 4), own_byte(b_words, 4))
        if fx.const_expr(half):
            a, b = operands(natural + (k - 64), None)
            fx.rocdl.sched_barrier(0)
            a_words, b_words = scales(fx.Int32(scale_cols - 2), 2)
            multiply(0, a, b, own_byte(a_words, 2), own_byte(b_words, 2))

        for i in range_constexpr(mfma_m):
            for j in range_constexpr(mfma_n):
                column = n_tile + wave_col + j * 16
                offset = (wave_row + i * 16 + row) * (2 * n) + (column + group * 4) * 2
                if fx.const_expr(ragged_n):
                    offset = (column < n).select(offset, fx.Int32(PAST_THE_END))
                (y_tile + offset).store(sums[i][j].load().to(fx.BFloat16))

    @flyc.jit  # type: ignore[untyped-decorator]
    def refgemm_mxfp8(
        y: fx.Pointer,
        x: fx.Pointer,
        x_scale: fx.Pointer,
        w: fx.Pointer,
        w_scale: fx.Pointer,
        m: fx.Int32,
        stream: fx.Stream,
    ) -> None:
        refgemm_mxfp8_kernel(y, x, x_scale, w, w_scale, m).launch(
            grid=((m + (tile_m - 1)) // tile_m, -(-n // tile_n), 1), block=(threads, 1, 1), stream=stream
        )

    return refgemm_mxfp8
