"""Names of the reference kernels: ``refgemm_mxfp8_t<M>x<N>_w<m>x<n>[_d<s>]``.

``t`` is the tile of one workgroup (rows of x by columns of y), ``w`` its waves along M and along N, ``d`` (depth, left
out where it is 1) how many steps of 128 along K a wave loads before it multiplies the first of them. No such name is
one of AITER's, whose FlyDSL kernels all start with ``flydsl_``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "refgemm_mxfp8"
MFMA_EDGE = 16
"""Rows and columns of the matrix that one ``v_mfma_scale_f32_16x16x128_f8f6f4`` computes."""
MAX_WAVES = 8
MAX_REGISTERS = 232
"""Most vector registers of a lane, out of 256, for the sums and for two rounds of operands, in use and on their way."""
DEPTHS = (1, 2, 4)
MAX_EXTENT = 1 << 18
"""Largest N and K: the widest tile that the registers allow, 1280, then spans less than 2**30 bytes of y, x and w."""

_NAME = re.compile(PREFIX + r"_t([1-9]\d*)x([1-9]\d*)_w([1-9]\d*)x([1-9]\d*)(?:_d([1-9]\d*))?", re.ASCII)
_FORM = f"{PREFIX}_t<M>x<N>_w<m>x<n>[_d<s>]"


@dataclass(frozen=True, order=True)
class Config:
    """What the name of one reference kernel says. Raises ValueError if it is outside the family."""

    tile_m: int
    tile_n: int
    waves_m: int
    waves_n: int
    depth: int = 1

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise ValueError(f"not a reference kernel: {self.name}: {problem}")

    def _problem(self) -> str | None:
        if min(self.tile_m, self.tile_n, self.waves_m, self.waves_n) < 1:
            return "tile and waves must be positive"
        if self.waves_m * self.waves_n > MAX_WAVES:
            return f"{self.waves_m * self.waves_n} waves, at most {MAX_WAVES} are allowed"
        if self.tile_m % (MFMA_EDGE * self.waves_m):
            return f"tile M {self.tile_m} is not a multiple of {MFMA_EDGE} x {self.waves_m} waves"
        if self.tile_n % (MFMA_EDGE * self.waves_n):
            return f"tile N {self.tile_n} is not a multiple of {MFMA_EDGE} x {self.waves_n} waves"
        if self.depth not in DEPTHS:
            return f"depth {self.depth} is not one of {', '.join(map(str, DEPTHS))}"
        registers = 4 * self.mfma_m * self.mfma_n + 16 * (self.mfma_m + self.mfma_n) * self.depth
        if registers > MAX_REGISTERS:
            return f"{registers} registers for sums and operands, at most {MAX_REGISTERS} are allowed"
        return None

    @property
    def name(self) -> str:
        """The kernel's name; ``parse(config.name) == config``."""
        depth = "" if self.depth == 1 else f"_d{self.depth}"
        return f"{PREFIX}_t{self.tile_m}x{self.tile_n}_w{self.waves_m}x{self.waves_n}{depth}"

    @property
    def mfma_m(self) -> int:
        """16-row blocks of x per wave."""
        return self.tile_m // (MFMA_EDGE * self.waves_m)

    @property
    def mfma_n(self) -> int:
        """16-column blocks of y per wave."""
        return self.tile_n // (MFMA_EDGE * self.waves_n)

    @property
    def threads(self) -> int:
        """Work-items of one workgroup."""
        return 64 * self.waves_m * self.waves_n


def parse(name: str) -> Config:
    """The configuration that ``name`` spells.

    Raises ValueError, with one line that says what is wrong, if it is no reference kernel.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"not a reference kernel: {name}: expected {_FORM}")
    config = Config(*(int(g) if g else 1 for g in match.groups()))
    if config.name != name:
        raise ValueError(f"not a reference kernel: {name}: written {config.name}")
    return config


def check_shape(n: int, k: int) -> None:
    """Raise ValueError unless the family can do a weight of ``n`` rows by ``k`` columns."""
    if n < 1 or n % MFMA_EDGE or n > MAX_EXTENT:
        raise ValueError(f"N must be a multiple of {MFMA_EDGE} from {MFMA_EDGE} to {MAX_EXTENT}, not {n}")
    if k < 1 or k % 64 or k > MAX_EXTENT:
        raise ValueError(f"K must be a multiple of 64 from 64 to {MAX_EXTENT}, not {k}")
