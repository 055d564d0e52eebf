"""Vector memory: buffer and global loads, stores and the atomics that kernels count with.

AMD, "CDNA3 Instruction Set Architecture": Vector Memory Buffer Instructions (addressing, range checking, Memory Buffer
Load to LDS), Flat Memory Instructions. gfx950 adds loads of three and four dwords to LDS (LLVM, SIInstrInfo and
"User Guide for AMDGPU Backend").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .faults import AccessError, UnknownInstruction
from .floats import Array
from .registers import LANES, M0, POISON, Wave
from .scalar import Execute, bits

if TYPE_CHECKING:
    from .machine import Workgroup

_ACCESS = re.compile(r"(?:BUFFER|GLOBAL)_(LOAD|STORE)_(?:DWORD(?:X([234]))?|(U|S)?(BYTE|SHORT)(_D16)?(_HI)?)", re.ASCII)
_LDS_ACCESS = re.compile(r"(?:BUFFER)_LOAD_(?:DWORD(?:X([34]))?|(U|S)(BYTE|SHORT))", re.ASCII)


@dataclass(frozen=True)
class Width:
    """What moves between memory and registers for one lane: ``size`` bytes, and how less than a dword is extended."""

    store: bool
    size: int
    signed: bool = False
    half: bool = False
    high: bool = False

    @property
    def registers(self) -> int:
        """Registers per lane."""
        return -(-self.size // 4)

    def extended(self, values: Array) -> Array:
        """Loaded bytes [lanes, size] as registers [registers, lanes]."""
        if self.size % 4 == 0:
            dwords: Array = np.ascontiguousarray(values).view(np.uint32).T
            return dwords
        kind = {(1, False): np.uint8, (1, True): np.int8, (2, False): np.uint16, (2, True): np.int16}
        narrow = np.ascontiguousarray(values).view(kind[self.size, self.signed])[:, 0]
        extended: Array = narrow.astype(np.int32).view(np.uint32)[None]
        return extended

    def stored(self, registers: Array) -> Array:
        """Registers [registers, lanes] as the bytes to store, [lanes, size]."""
        if self.high:
            registers = registers >> np.uint32(16)
        return np.ascontiguousarray(registers.T).view(np.uint8)[:, : self.size]

    def merged(self, old: Array, new: Array) -> Array:
        """What a load leaves in its registers: all of them, or the half that a D16 load writes."""
        if not self.half:
            return new
        low, high = np.uint32(0xFFFF), np.uint32(0xFFFF0000)
        merged: Array = old & low | new << np.uint32(16) if self.high else old & high | new & low
        return merged


def width(name: str) -> Width:
    """What an access called ``name`` moves.

    :raises UnknownInstruction: it is none that is modelled.
    """
    match = _ACCESS.fullmatch(name)
    if match is None or (match[4] and match[1] == "LOAD" and match[3] is None and not match[5]):
        raise UnknownInstruction(f"{name.lower()} is not modelled")
    kind, dwords, sign, narrow, half, high = match.groups()
    size = {"BYTE": 1, "SHORT": 2}[narrow] if narrow else 4 * int(dwords or 1)
    return Width(kind == "STORE", size, sign == "S", bool(half) and kind == "LOAD", bool(high))


def _load(wave: Wave, target: Array, lanes: Array, moved: Width, values: Array) -> None:
    """Have loaded ``values`` arrive in ``lanes`` of ``target`` when the load is waited for."""
    old = target[:, lanes]
    target[:, lanes] = moved.merged(old, np.full_like(old, POISON))
    new = moved.merged(old, moved.extended(values))

    def finish() -> None:
        target[:, lanes] = new

    wave.loads.append(finish)


def _done() -> None:
    """A store: its counter goes down, and nothing else happens."""


@dataclass(frozen=True)
class _Buffer:
    """The address fields of a MUBUF instruction."""

    address: int
    descriptor: int
    soffset: int
    offset: int
    add_register: bool

    @classmethod
    def of(cls, word: int, name: str) -> _Buffer:
        if bits(word, 13, 13):
            raise UnknownInstruction(f"{name.lower()} with an index (idxen) is not modelled")
        return cls(
            bits(word, 39, 32), 4 * bits(word, 52, 48), bits(word, 63, 56), bits(word, 11, 0), bool(bits(word, 12, 12))
        )

    def within(self, wave: Wave, active: Array, size: int) -> tuple[Array, Array]:
        """The address of every lane, and how many of its bytes are in range.

        Raw buffers are checked by the offset from their base, each dword on its own: a dword of which a byte is out of
        range is out of range (AMD's Vulkan drivers state the same: robustStorageBufferAccessSizeAlignment is 4).
        """
        scalar = wave.scalar
        base = int(scalar[self.descriptor]) | (int(scalar[self.descriptor + 1]) & 0xFFFF) << 32
        records = int(scalar[self.descriptor + 2])
        if int(scalar[self.descriptor + 1]) >> 16 & 0x3FFF or int(scalar[self.descriptor + 3]) >> 19 & 1:
            raise UnknownInstruction("a buffer with a stride, or swizzled, is not modelled")
        at = np.full(LANES, self.offset + int(scalar[self.soffset]), np.int64)
        if self.add_register:
            at += wave.vector[self.address]
        unit = min(size, 4)
        inside = np.where(active, np.clip((records - at) // unit * unit, 0, size), 0)
        return at.astype(np.uint64) + np.uint64(base), inside


def _fetch(group: Workgroup, addresses: Array, inside: Array, size: int) -> Array:
    """``size`` bytes per lane [64, size], zeros where they are out of range."""
    values = np.zeros((LANES, size), np.uint8)
    for count in np.unique(inside):
        if count:
            lanes = inside == count
            values[lanes, :count] = group.memory.load(addresses[lanes], int(count))
    return values


def _put(group: Workgroup, addresses: Array, inside: Array, values: Array) -> None:
    """Store what is in range of ``values`` [64, size]."""
    for count in np.unique(inside):
        if count:
            lanes = inside == count
            group.memory.store(addresses[lanes], values[lanes, :count])


def buffer(word: int, name: str) -> Execute:
    """Buffer loads and stores between memory and registers, and from memory to LDS."""
    if name in ("BUFFER_WBL2", "BUFFER_INV"):
        return lambda wave, group: None  # caches are not modelled
    if bits(word, 16, 16):
        return _buffer_to_lds(word, name)
    moved, where = width(name), _Buffer.of(word, name)
    data, accumulators = bits(word, 47, 40), bits(word, 55, 55)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        addresses, inside = where.within(wave, active, moved.size)
        target = wave.file(accumulators)[data : data + moved.registers]
        if moved.store:
            _put(group, addresses, inside, moved.stored(target))
            wave.loads.append(_done)
        else:
            _load(wave, target, active, moved, _fetch(group, addresses, inside, moved.size)[active])

    return execute


def _buffer_to_lds(word: int, name: str) -> Execute:
    """Lane l's data goes to M0 + the instruction's offset + l times its size (a dword at least); zeros out of range."""
    match = _LDS_ACCESS.fullmatch(name)
    if match is None:
        raise UnknownInstruction(f"{name.lower()} to LDS is not modelled")
    moved, where = width(name), _Buffer.of(word, name)
    each = 4 * moved.registers

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        addresses, inside = where.within(wave, active, moved.size)
        values = _fetch(group, addresses, inside, moved.size)
        dwords = np.ascontiguousarray(moved.extended(values).T).view(np.uint8)
        targets = int(wave.scalar[M0]) + where.offset + each * np.arange(LANES)
        group.lds.check(targets[active], each, name)
        wave.loads.append(group.lds.expect(targets[active], dwords[active]))

    return execute


_NO_SCALAR = 0x7F
_GLOBAL = 2


def flat(word: int, name: str) -> Execute:
    """``global_load``, ``global_store`` and ``global_atomic_add``: a 64-bit address, or a scalar base and an offset."""
    if bits(word, 15, 14) != _GLOBAL:
        raise UnknownInstruction(f"{name.lower()} in another address space than global is not modelled")
    atomic = name == "GLOBAL_ATOMIC_ADD"
    moved = Width(store=False, size=4) if atomic else width(name)
    address, data, base, target = bits(word, 39, 32), bits(word, 47, 40), bits(word, 54, 48), bits(word, 63, 56)
    accumulators, returns = bits(word, 55, 55), bits(word, 16, 16)
    offset = bits(word, 12, 0) - (bits(word, 12, 12) << 13)

    def execute(wave: Wave, group: Workgroup) -> None:
        active = wave.active()
        if not active.any():
            wave.loads.append(_done)
            return
        low = wave.vector[address].astype(np.uint64)
        if base == _NO_SCALAR:
            addresses = low | wave.vector[address + 1].astype(np.uint64) << np.uint64(32)
        else:
            addresses = low + np.uint64(wave.mask(base))
        addresses = (addresses + np.uint64(offset & 0xFFFFFFFFFFFFFFFF))[active]
        file = wave.file(accumulators)
        if atomic:
            old = _atomic_add(group, addresses, file[data, active])
            if returns:
                _load(wave, file[target : target + 1], active, moved, old)
            else:
                wave.loads.append(_done)
        elif moved.store:
            group.memory.store(addresses, moved.stored(file[data : data + moved.registers, active]))
            wave.loads.append(_done)
        else:
            values = group.memory.load(addresses, moved.size)
            _load(wave, file[target : target + moved.registers], active, moved, values)

    return execute


def _atomic_add(group: Workgroup, addresses: Array, values: Array) -> Array:
    """Add lane after lane; what was there before each, as bytes."""
    old = np.empty((len(addresses), 4), np.uint8)
    for i, value in enumerate(values):
        old[i] = group.memory.load(addresses[i : i + 1], 4)[0]
        total = (old[i].view(np.uint32) + value).astype(np.uint32)
        group.memory.store(addresses[i : i + 1], total.view(np.uint8)[None])
    return old


def scratch(word: int, name: str) -> Execute:
    """``scratch_load`` and ``scratch_store``: what a kernel spills, in memory of each lane's own.

    The address is the instruction's offset, with a scalar's or a vector register's value added where it says so.
    """
    moved = width(name.replace("SCRATCH", "GLOBAL"))
    address, data, base, target = bits(word, 39, 32), bits(word, 47, 40), bits(word, 54, 48), bits(word, 63, 56)
    accumulators, add_register = bits(word, 55, 55), bits(word, 13, 13)
    offset = bits(word, 12, 0) - (bits(word, 12, 12) << 13)

    def execute(wave: Wave, group: Workgroup) -> None:
        lanes = np.flatnonzero(wave.active())
        at = np.full(len(lanes), offset + (0 if base == _NO_SCALAR else int(wave.scalar[base])), np.int64)
        if add_register:
            at += wave.vector[address, lanes]
        if len(lanes) and (int(at.min()) < 0 or int(at.max()) + moved.size > wave.scratch.shape[1]):
            raise AccessError(f"{name.lower()} outside the {wave.scratch.shape[1]} bytes of a lane's scratch")
        index = lanes[:, None], at[:, None] + np.arange(moved.size)
        file = wave.file(accumulators)
        if moved.store:
            wave.scratch[index] = moved.stored(file[data : data + moved.registers, lanes])
            wave.loads.append(_done)
        else:
            _load(wave, file[target : target + moved.registers], lanes, moved, wave.scratch[index])

    return execute
