"""The memory that a kernel may touch: arrays that end, or begin, at pages that nobody may touch."""

from __future__ import annotations

import bisect
import ctypes
import mmap
from dataclasses import dataclass

import numpy as np

from .faults import AccessError
from .floats import Array

POISON = 0xFF
"""What fresh memory holds: NaN in every format of the operands, and in float32 and bfloat16."""

_ALIGNMENT = 16
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Region:
    """``data`` are the bytes that a kernel may touch: an array, and what completes its last aligned dword.

    ``written`` notes the bytes that were stored to; None for what is read-only.
    """

    name: str
    start: int
    data: Array
    written: Array | None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.data.size


class Memory:
    """All that a kernel may touch, and the checks that it touches nothing else.

    The instructions of this project check every access here. What another instruction did outside would end the
    process, since the pages around each array are protected.
    """

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._starts: list[int] = []

    def place(self, array: Array, name: str, *, writable: bool = False, end: bool = True) -> Array:
        """A copy of ``array`` in guarded memory, at a multiple of 16 bytes, among bytes that are 255.

        With ``end`` its last 16 bytes are the last before a protected page; without, its first byte is the first after
        one.
        """
        page = mmap.PAGESIZE
        size = max(-(-array.nbytes // page), 1) * page
        area = mmap.mmap(-1, size + 2 * page)
        everything = np.frombuffer(area, np.uint8)
        everything[:] = POISON
        start = everything.ctypes.data
        for guard in (start, start + page + size):
            if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        skip = page + (size - -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT if end else 0)
        placed: Array = np.frombuffer(area, array.dtype, array.size, skip).reshape(array.shape)
        placed[...] = array
        data = everything[skip : skip + array.nbytes + -array.nbytes % 4]
        self.add(Region(name, start + skip, data, np.zeros(data.size, bool) if writable else None))
        return placed

    def add(self, region: Region) -> None:
        """Let a kernel touch a region."""
        at = bisect.bisect(self._starts, region.start)
        self._regions.insert(at, region)
        self._starts.insert(at, region.start)

    def remove(self, region: Region) -> None:
        """The inverse of :meth:`add`."""
        at = self._regions.index(region)
        del self._regions[at], self._starts[at]

    def region_of(self, address: int) -> Region:
        """The region that an address lies in.

        :raises AccessError: none.
        """
        at = bisect.bisect(self._starts, address) - 1
        if at < 0 or address >= self._regions[at].end:
            raise AccessError(f"address {address:#x} lies outside every array of the kernel")
        return self._regions[at]

    def load(self, addresses: Array, size: int) -> Array:
        """``size`` bytes at each of ``addresses`` (uint64), [addresses, size].

        :raises AccessError: one of them lies outside.
        """
        region = self._region(addresses, size, "load from")
        if region is not None:
            return _gather(region.data, addresses - np.uint64(region.start), size)
        return np.concatenate([self.load(addresses[i : i + 1], size) for i in range(len(addresses))])

    def store(self, addresses: Array, values: Array) -> None:
        """Store ``values`` (bytes, [addresses, size]).

        :raises AccessError: one of them lies outside, or in memory that the kernel may only read.
        """
        size = values.shape[1]
        region = self._region(addresses, size, "store to")
        if region is None:
            for i in range(len(addresses)):
                self.store(addresses[i : i + 1], values[i : i + 1])
            return
        first = (addresses - np.uint64(region.start)).astype(np.int64)
        if region.written is None:
            raise AccessError(f"a store to {region.name}, which is only to be read, at byte {int(first.min())}")
        index = first[:, None] + np.arange(size)
        region.data[index] = values
        region.written[index] = True

    def _region(self, addresses: Array, size: int, what: str) -> Region | None:
        """The region that all accesses lie in; None where they lie in several."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        at = bisect.bisect(self._starts, low) - 1
        region = self._regions[at] if at >= 0 else None
        if region is not None and high <= region.end:
            return region
        if len(addresses) > 1 and (addresses != addresses[0]).any():
            return None
        raise AccessError(f"{what} {low:#x}..{high:#x}, {self._nearby(low, region)}")

    def _nearby(self, address: int, region: Region | None) -> str:
        if region is not None and address - region.end < 1 << 20:
            return f"{address - region.end} bytes behind the end of {region.name}"
        return "outside every array of the kernel"


def _gather(data: Array, offsets: Array, size: int) -> Array:
    if size % 4 == 0 and not (int(np.bitwise_or.reduce(offsets)) & 3 or data.size & 3):
        index = (offsets >> np.uint64(2)).astype(np.int64)[:, None] + np.arange(size // 4)
        dwords: Array = data.view(np.uint32)[index].view(np.uint8)
        return dwords
    found: Array = data[offsets.astype(np.int64)[:, None] + np.arange(size)]
    return found
