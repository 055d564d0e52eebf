"""Write the reference family's tuned table, tuned_configs/reference_mxfp8_tuned_gemm.csv.

    python tools/make_reference_table.py [--check]

Nothing was measured: the names come from a rule of thumb and the measured columns stay empty. The rule: of the tiles
below, the largest one that still gives every compute unit a workgroup, else the one that gives the most; a tile is at
most as high as M rounded up to a power of two, since what lies above is computed for nothing. So few tokens get low,
narrow tiles (every unit streams its own columns of w) and many get large ones (each byte loaded serves more products).

With --check nothing is written; exit status 1 says that the file is not what this script writes.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIGS = Path(__file__).resolve().parent.parent / "tuned_configs"
MODEL = CONFIGS / "deepseek_v4_1.toml"
TABLE = CONFIGS / "reference_mxfp8_tuned_gemm.csv"

GFX, CU_NUM = "gfx950", 256
COLUMNS = (
    *("gfx", "cu_num", "M", "N", "K", "w_scale_block", "libtype", "kernelId", "splitK", "us", "kernelName"),
    *("tflops", "bw", "errRatio"),
)

# (tile M, tile N, waves along M, waves along N, depth), large to small.
TILES = (
    (256, 128, 4, 2, 1),
    (128, 128, 2, 2, 1),
    (128, 64, 2, 2, 2),
    (64, 128, 2, 4, 2),
    (64, 64, 2, 2, 2),
    (32, 128, 2, 4, 4),
    (64, 32, 2, 2, 4),
    (32, 64, 2, 2, 4),
    (16, 128, 1, 4, 4),
    (32, 32, 1, 2, 4),
    (16, 64, 1, 4, 4),
    (32, 16, 2, 1, 4),
    (16, 32, 1, 2, 4),
    (16, 16, 1, 1, 4),
)


def token_rows(limit: int) -> list[int]:
    """The values of M: powers of two, which serve every token count up to ``limit``, and from 48 on halfway between."""
    powers = [1 << i for i in range(limit.bit_length())]
    return sorted([m for m in powers if m <= limit] + [3 * p // 2 for p in powers if 32 <= p < limit])


def workgroups(m: int, n: int, tile: tuple[int, ...]) -> int:
    """How many workgroups a tile makes of y [m, n]."""
    return -(-m // tile[0]) * -(-n // tile[1])


def kernel_name(m: int, n: int) -> str:
    """The kernel for ``m`` tokens and a weight of ``n`` rows, by the rule above."""
    power = 1 << (m - 1).bit_length()
    tiles = [tile for tile in TILES if tile[0] <= max(power, 16)]
    full = [tile for tile in tiles if workgroups(m, n, tile) >= CU_NUM]
    tile_m, tile_n, waves_m, waves_n, depth = full[0] if full else max(tiles, key=lambda tile: workgroups(m, n, tile))
    suffix = "" if depth == 1 else f"_d{depth}"
    return f"refgemm_mxfp8_t{tile_m}x{tile_n}_w{waves_m}x{waves_n}{suffix}"


def table_text() -> str:
    """The whole table as CSV."""
    model = tomllib.loads(MODEL.read_text(encoding="utf-8"))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for shape in model["shapes"]:
        n, k = shape["n"], shape["k"]
        for m in token_rows(model["token_limit"]):
            fixed = (GFX, CU_NUM, m, n, k, model["w_scale_block"], "flydsl", "bmm", 0)
            writer.writerow((*fixed, "", kernel_name(m, n), "", "", ""))
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file differs")
    check = parser.parse_args().check
    text = table_text()
    if not check:
        TABLE.write_text(text, encoding="utf-8")
        return 0
    if TABLE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TABLE.name} is not what {Path(__file__).name} writes: run it again", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
