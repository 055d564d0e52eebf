"""The LDS of a workgroup, and the instructions that read and write it.

AMD, "CDNA3 Instruction Set Architecture": Local Data Share, DS instructions. The transposing reads of CDNA4 are
not modelled.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .faults import AccessError, UnknownInstruction
from .floats import Array
from .memory import POISON as POISON_BYTE
from .registers import LANES, POISON, Wave
from .scalar import Execute, bits

if TYPE_CHECKING:
    from .machine import Workgroup

_READ = re.compile(r"DS_READ_(?:B(32|64|96|128)|(U|I)(8|16)(_D16)?(_HI)?)", re.ASCII)
_WRITE = re.compile(r"DS_WRITE_B(8|16|32|64|96|128)(_D16_HI)?", re.ASCII)
_TWO = re.compile(r"DS_(READ|WRITE)2(ST64)?_B(32|64)", re.ASCII)


class Lds:
    """Bytes that hold NaN at first. An access outside is an error, though the hardware would let it pass."""

    def __init__(self, size: int) -> None:
        self._bytes = np.full(-(-size // 16) * 16, POISON_BYTE, np.uint8)
        self._size = size
        self._numbers = itertools.count()
        self._coming: dict[int, tuple[Array, Callable[[], None]]] = {}
        self._awaited = np.zeros(len(self._bytes), np.uint8)
        self.races: list[str] = []
        """Instructions that touched bytes which a load in flight was about to write."""
        self.now = ""
        """The instruction that is being executed."""

    def check(self, addresses: Array, size: int, name: str) -> None:
        """Raise AccessError unless ``size`` bytes at all of ``addresses`` lie inside."""
        if len(addresses) and (int(addresses.max()) + size > self._size or int(addresses.min()) < 0):
            raise AccessError(
                f"{name.lower()} of LDS {int(addresses.min()):#x}..{int(addresses.max()) + size:#x}, "
                f"of which the workgroup has {self._size:#x}"
            )

    def read(self, addresses: Array, size: int) -> Array:
        """``size`` bytes at each address, [addresses, size]."""
        index = addresses[:, None] + np.arange(size)
        self._settle(index)
        values: Array = self._bytes[index]
        return values

    def write(self, addresses: Array, values: Array) -> None:
        """Store bytes [addresses, size]; where two lanes write the same, the higher lane wins."""
        index = addresses[:, None] + np.arange(values.shape[1])
        self._settle(index)
        self._bytes[index] = values

    def expect(self, addresses: Array, values: Array) -> Callable[[], None]:
        """Bytes that a load brings from memory: what is returned lets them arrive, and does nothing a second time."""
        index = addresses[:, None] + np.arange(values.shape[1])
        self._awaited[index] += 1
        number = next(self._numbers)

        def arrive() -> None:
            if self._coming.pop(number, None) is not None:
                self._awaited[index] -= 1
                self._bytes[index] = values

        self._coming[number] = index, arrive
        return arrive

    def _settle(self, index: Array) -> None:
        """Note an access that does not wait for a load in flight, and let that load arrive first.

        On a GPU the access sees either what was there before or what is coming: a race, though the kernel may always
        have won it so far.
        """
        if not self._coming or not self._awaited[index].any():
            return
        touched = np.zeros(len(self._bytes), bool)
        touched[index] = True
        late = [arrive for coming, arrive in self._coming.values() if touched[coming].any()]
        self.races.append(self.now)
        for arrive in late:
            arrive()


def access(word: int, name: str) -> Execute:
    """One DS instruction.

    :raises UnknownInstruction: it is none that is modelled.
    """
    if bits(word, 16, 16):
        raise UnknownInstruction(f"{name.lower()} of the global data share is not modelled")
    if match := _TWO.fullmatch(name):
        return _two(word, name, match)
    if match := _READ.fullmatch(name):
        return _read(word, name, match)
    if match := _WRITE.fullmatch(name):
        return _write(word, name, match)
    if name in ("DS_BPERMUTE_B32", "DS_PERMUTE_B32"):
        return _permute(word, forward=name == "DS_PERMUTE_B32")
    raise UnknownInstruction(f"{name.lower()} is not modelled")


def _addresses(wave: Wave, word: int, active: Array, offset: int) -> Array:
    addresses: Array = wave.vector[bits(word, 39, 32)][active].astype(np.int64) + offset
    return addresses


def _arrive(wave: Wave, target: Array, active: Array, values: Array) -> None:
    """Have ``values`` [registers, active lanes] arrive when the operation is waited for."""
    target[:, active] = POISON

    def finish() -> None:
        target[:, active] = values

    wave.local.append((False, finish))


def _done() -> None:
    """A write: its counter goes down, and nothing else happens."""


def _read(word: int, name: str, match: re.Match[str]) -> Execute:
    wide, sign, narrow, half, high = match.groups()
    size = int(wide or narrow) // 8
    registers, offset = -(-size // 4), bits(word, 15, 0)
    data, accumulators = bits(word, 63, 56), bits(word, 25, 25)
    kind = {1: {"U": np.uint8, "I": np.int8}, 2: {"U": np.uint16, "I": np.int16}}

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        addresses = _addresses(wave, word, active, offset)
        group.lds.check(addresses, size, name)
        values = group.lds.read(addresses, size)
        target = wave.file(accumulators)[data : data + registers]
        if wide:
            _arrive(wave, target, active, values.view(np.uint32).T)
            return
        narrowed = values.view(kind[size][sign])[:, 0].astype(np.int32).view(np.uint32)
        if half:
            old = target[0, active]
            low_half, high_half = np.uint32(0xFFFF), np.uint32(0xFFFF0000)
            narrowed = old & low_half | narrowed << np.uint32(16) if high else old & high_half | narrowed & low_half
        _arrive(wave, target, active, narrowed[None])

    return execute


def _write(word: int, name: str, match: re.Match[str]) -> Execute:
    size, high = int(match[1]) // 8, bool(match[2])
    registers, offset = -(-size // 4), bits(word, 15, 0)
    data, accumulators = bits(word, 47, 40), bits(word, 25, 25)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        addresses = _addresses(wave, word, active, offset)
        group.lds.check(addresses, size, name)
        values = wave.file(accumulators)[data : data + registers, active]
        if high:
            values = values >> np.uint32(16)
        group.lds.write(addresses, np.ascontiguousarray(values.T).view(np.uint8)[:, :size])
        wave.local.append((False, _done))

    return execute


def _two(word: int, name: str, match: re.Match[str]) -> Execute:
    """Two accesses with offsets in units of their size, or of 64 times that."""
    size = int(match[3]) // 8
    unit = size * (64 if match[2] else 1)
    offsets = (bits(word, 7, 0) * unit, bits(word, 15, 8) * unit)
    registers, accumulators = size // 4, bits(word, 25, 25)
    sources, target = (bits(word, 47, 40), bits(word, 55, 48)), bits(word, 63, 56)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        file = wave.file(accumulators)
        places = [_addresses(wave, word, active, offset) for offset in offsets]
        for place in places:
            group.lds.check(place, size, name)
        if match[1] == "READ":
            values = np.concatenate([group.lds.read(place, size).view(np.uint32).T for place in places])
            _arrive(wave, file[target : target + 2 * registers], active, values)
            return
        for place, source in zip(places, sources, strict=True):
            values = np.ascontiguousarray(file[source : source + registers, active].T).view(np.uint8)
            group.lds.write(place, values)
        wave.local.append((False, _done))

    return execute


def _permute(word: int, *, forward: bool) -> Execute:
    """Data between lanes, by byte addresses of lanes: each lane fetches (bpermute) or sends (permute)."""
    offset = bits(word, 15, 0)
    address, data, target = bits(word, 39, 32), bits(word, 47, 40), bits(word, 63, 56)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        lanes = (wave.vector[address].astype(np.int64) + offset >> 2) % LANES
        values = np.where(active, wave.vector[data], 0).astype(np.uint32)
        if forward:
            moved = np.zeros(LANES, np.uint32)
            moved[lanes[active]] = values[active]
        else:
            moved = values[lanes]
        _arrive(wave, wave.vector[target : target + 1], active, moved[active][None])

    return execute
