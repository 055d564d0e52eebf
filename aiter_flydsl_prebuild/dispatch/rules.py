"""AITER's dispatch rules, kept in this one place: which table row serves a token count, and what kernel names mean.

Two states of AITER are known, by the names in :data:`RULES`:

* ``august`` is ROCm/aiter e4048607 (2026-08-22);
* ``newest`` is what single newer files showed in autumn 2026.

They differ in the padding of token counts below 16 (:func:`m_candidates`) and in what the per-token look-up does above
its table (:func:`reuses_largest_row`). Each function names the AITER file and function that it restates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ..model.tokens import Range
from . import reference_names as grammar

RULES: Final = ("newest", "august")

MAX_TOKENS: Final = 1 << 30
"""Largest token count that can be planned: beyond it AITER's next power of two overflows a C++ int."""

MXSCALE_BMM: Final = "mxscale_bmm"
MXSCALE_2D: Final = "mxscale_2d"
BPRESHUFFLE: Final = "a8w8_bpreshuffle"
OPS: Final = (MXSCALE_BMM, MXSCALE_2D, BPRESHUFFLE)
"""The operand contracts that FlyDSL kernels are planned for.

``mxscale_bmm``: raw e8m0 scales, the batched GEMM run with B = 1. ``mxscale_2d``: pre-shuffled e8m0 scales.
``a8w8_bpreshuffle``: one fp32 scale per token and per channel.
"""

BLOCKSCALE: Final = "a8w8_blockscale"
"""The op of AITER's fp32 block-scale tables, which hold no FlyDSL kernel that this project knows; never planned."""

FLYDSL: Final = "flydsl"
"""The libtype of the rows that name a FlyDSL kernel."""

FLYDSL_PREFIX: Final = "flydsl_"
"""How the name of every FlyDSL kernel of AITER begins, those of families that are not known here included."""

# AITER: csrc/py_itfs_cu/gemm_common.cu, getPaddedM with gl = 0. (largest M, multiple that M is padded to).
_FINE_STEPS: Final = ((256, 16), (1024, 32), (4096, 64), (MAX_TOKENS, 128))
# The same with gl = 1: above this M, for N above the other limit, M is padded down to it.
_COARSE_M: Final = 8192
_COARSE_N: Final = 4096
# Only in the newest: below this M the fine padding is the next power of two.
_SMALL_M: Final = 16


def op_of_mxscale_row(libtype: str, kernel_id: str) -> str:
    """The operand contract of a row of an mxscale table.

    The batched GEMM sees the rows with libtype flydsl and kernelId "bmm"; the 2D GEMM sees all others, whatever their
    libtype. AITER (newest): aiter/ops/gemm_op_a8w8.py, _load_mxscale_bpreshuffle_tuned.
    """
    return MXSCALE_BMM if libtype == FLYDSL and kernel_id == "bmm" else MXSCALE_2D


def check_rule(rule: str) -> None:
    """Raise ValueError unless ``rule`` is one of :data:`RULES`."""
    if rule not in RULES:
        raise ValueError(f"unknown dispatch rule {rule!r}; known: {', '.join(RULES)}")


def reuses_largest_row(op: str, rule: str) -> bool:
    """Whether a token count above the largest M of a shape, for which no candidate hit, takes that largest row.

    The row may be of any libtype; a miss below the largest M stays a miss. AITER (newest): aiter/ops/gemm_op_a8w8.py,
    the per-token dispatch. FlyDSL calls above 65,536 rows (PRESHUFFLE_M_MAX) are cut there into chunks, but the row is
    looked up before that with the whole token count and every chunk runs its kernel, so chunks change no look-up.
    """
    return op == BPRESHUFFLE and rule == "newest"


def m_candidates(m: int, n: int, rule: str = "newest") -> tuple[int, ...]:
    """The M values under which AITER looks for the row of ``m`` tokens and a weight of ``n`` rows; the first hit wins.

    They are ``m`` itself, its fine and its coarse padding, without repetitions. AITER: aiter/ops/gemm_op_a8w8.py (the
    loop over None, 0 and 1) and csrc/py_itfs_cu/gemm_common.cu, getPaddedM.

    Raises ValueError for an ``m`` outside 1..:data:`MAX_TOKENS` and for an unknown rule.
    """
    check_rule(rule)
    if not 1 <= m <= MAX_TOKENS:
        raise ValueError(f"a token count must lie in 1..{MAX_TOKENS}, not {m}")
    return tuple(dict.fromkeys((m, padded_m(m, n, 0, rule), padded_m(m, n, 1, rule))))


def padded_m(m: int, n: int, level: int, rule: str = "newest") -> int:
    """``m`` padded finely (``level`` 0) or coarsely (1), for a weight of ``n`` rows.

    AITER: csrc/py_itfs_cu/gemm_common.cu, getPaddedM(M, N, K, gl); its K has no effect. Arguments are not checked.
    """
    if level == 1:
        return _COARSE_M if m > _COARSE_M and n > _COARSE_N else 1 << (m - 1).bit_length()
    if rule == "newest" and m < _SMALL_M:
        return 1 << (m - 1).bit_length()
    for limit, step in _FINE_STEPS:
        if m <= limit:
            return (m + step - 1) // step * step
    return m


def padding_n(n: int) -> int:
    """A stand-in for ``n`` that pads alike; it takes two values only, so that results can be shared between shapes."""
    return _COARSE_N if n <= _COARSE_N else _COARSE_N + 1


def served_ranges(row_m: int, n: int, rule: str = "newest") -> tuple[Range, ...]:
    """The token ranges that have ``row_m`` among their candidates: the inverse of :func:`m_candidates`.

    One range per way of getting there (as itself, by fine, by coarse padding), not merged and not sorted, so that
    within the pieces that all their ends cut out, every candidate is the same row or none.
    """
    check_rule(rule)
    ranges = [(row_m, row_m)]
    power_of_two = row_m & (row_m - 1) == 0
    low = 1
    if rule == "newest":
        low = _SMALL_M
        if power_of_two and row_m <= _SMALL_M:
            ranges.append((row_m // 2 + 1, min(row_m, _SMALL_M - 1)))
    for limit, step in _FINE_STEPS:
        if row_m % step == 0 and low <= row_m <= limit:
            ranges.append((max(low, row_m - step + 1), row_m))
        low = limit + 1
    if power_of_two and not (n > _COARSE_N and row_m > _COARSE_M):
        ranges.append((row_m // 2 + 1, row_m))
    if n > _COARSE_N and row_m == _COARSE_M:
        ranges.append((_COARSE_M + 1, MAX_TOKENS))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class KernelName:
    """What a FlyDSL kernel name says, as far as planning needs it.

    ``family`` is the name's prefix. ``split_k`` is the number of parts K is split into. ``split_k_column`` holds the
    values that a table's splitK column may have beside this name. ``decodable`` is False for names that AITER's tables
    hold but its dispatch no longer understands: it runs the ck library for them, so there is nothing to compile.
    """

    family: str
    split_k: int
    split_k_column: tuple[int, ...]
    decodable: bool = True


# How the splitK column relates to the split in the name, per family; the real tables show it. "same": the column
# repeats it (AITER's own check of saved batched rows insists on that). "unused": the tuner writes 0 whatever the name
# says, and the dispatch reads the name only.
_SAME: Final = "same"
_UNUSED: Final = "unused"

_TILE = r"[0-9]+x[0-9]+x[0-9]+"
_DTYPES = r"[A-Z0-9]+_[A-Z0-9]+_[A-Z0-9]+"
_WMMA = rf"t{_TILE}_mw[0-9]+_nw[0-9]+_nb[0-9]+_sk(?P<split>[0-9]+)_cm[0-9]+_cn[0-9]+"


@dataclass(frozen=True, slots=True)
class _Grammar:
    prefix: str
    pattern: re.Pattern[str]
    column: str
    ops: tuple[str, ...]


# Longest prefix first: one prefix can be the beginning of another. Where each grammar is decoded in AITER:
#   flydsl_bmm_mxfp8_mfma            aiter/ops/flydsl/batched_gemm_a8w8_gfx950.py (newest)
#   flydsl_mxpsh                     aiter/ops/flydsl/gemm_tune/flydsl_gemm_mxscale_preshuffle_common.py (newest)
#   flydsl_mxfp8_128_bpreshuffle_…   aiter/ops/flydsl/mxfp8_128_bpreshuffle_gemm_gfx1250.py (both; suffixes: newest)
#   flydsl_bpreshuflle               aiter/ops/gemm_op_a8w8.py, _parse_flydsl_kernel_name (both; _ks<n>: newest)
#   flydsl_bpreshuffle_8w            aiter/ops/flydsl/gemm_a8w8_bpreshuffle_8wave.py (both)
#   flydsl_bpreshuffle_wmma          aiter/ops/flydsl/bpreshuffle_gemm_gfx1250.py (both)
_GRAMMARS: Final = (
    _Grammar(
        "flydsl_bmm_mxfp8_mfma_",
        re.compile(
            rf"t{_TILE}_w[0-9]+x[0-9]+_nb[0-9]+_sk(?P<split>[0-9]+)(?:_bd[0-9]+)?(?:_nt)?(?:_xcd[0-9]*)?(?:_sps)?"
        ),
        _SAME,
        (MXSCALE_BMM,),
    ),
    _Grammar(
        "flydsl_mxpsh_",
        re.compile(rf"{_TILE}_{_DTYPES}_w[0-9]+(?:_x[0-9]+)?(?:_sk(?P<split>[0-9]+))?"),
        _SAME,
        (MXSCALE_2D,),
    ),
    _Grammar(
        "flydsl_mxfp8_128_bpreshuffle_",
        re.compile(rf"(?:compute_)?wmma_{_WMMA}(?:_fsk)?(?:_apre)?(?:_ps[0-9]+)?"),
        _SAME,
        (MXSCALE_2D,),
    ),
    _Grammar("flydsl_bpreshuffle_wmma_", re.compile(_WMMA), _UNUSED, (BPRESHUFFLE,)),
    _Grammar("flydsl_bpreshuffle_8w_", re.compile(rf"{_TILE}_{_DTYPES}_[0-9]+x[0-9]+"), _UNUSED, (BPRESHUFFLE,)),
    _Grammar(
        "flydsl_bpreshuflle_",
        re.compile(
            rf"{_TILE}_{_DTYPES}_[0-9]+x[0-9]+(?:x[0-9]+){{0,2}}"
            r"(?:_(?!ks[0-9]+$)[A-Za-z][A-Za-z0-9]*)?(?:_ks(?P<split>[0-9]+))?"
        ),
        _UNUSED,
        (BPRESHUFFLE,),
    ),
)
# Five numbers after the dtypes: written by tuners of early 2026 and still in tables, decoded by neither state.
_UNDECODABLE: Final = re.compile(rf"flydsl_bpreshuflle_{_TILE}_{_DTYPES}_[0-9]+(?:x[0-9]+){{4}}_[A-Za-z][A-Za-z0-9]*")
_REFERENCE_PREFIX: Final = "refgemm_mxfp8_"


def parse_kernel_name(name: str) -> KernelName:
    """Take a FlyDSL kernel name apart.

    Raises ValueError for a name outside all known grammars, saying whether the prefix or what follows it is unknown.
    """
    if name.startswith(_REFERENCE_PREFIX):
        grammar.parse(name)
        return KernelName(_REFERENCE_PREFIX.rstrip("_"), 1, (0, 1))
    for known in _GRAMMARS:
        if not name.startswith(known.prefix):
            continue
        family = known.prefix.rstrip("_")
        match = known.pattern.fullmatch(name, len(known.prefix))
        if match is not None:
            named = match.groupdict().get("split")
            split = 1 if named is None else int(named)
            # A name of the "same" kind that leaves the split out means no split; 0 and 1 both say so.
            column = (split,) if known.column == _SAME and named is not None else (0, split)
            return KernelName(family, split, column)
        if _UNDECODABLE.fullmatch(name):
            return KernelName(family, 1, (0, 1), decodable=False)
        raise ValueError(f"{name!r} begins like a kernel of the family {family} but does not go on like one")
    prefixes = ", ".join([known.prefix for known in _GRAMMARS] + [_REFERENCE_PREFIX])
    raise ValueError(f"{name!r} is of no known kernel family (the known ones begin with {prefixes})")


def ops_of_family(family: str) -> tuple[str, ...]:
    """The operand contracts that a family's kernels can serve. The reference family is this project's: any."""
    for known in _GRAMMARS:
        if known.prefix.rstrip("_") == family:
            return known.ops
    return OPS
