"""Run a compiled gfx950 kernel on the CPU, inside memory that ends where its arrays end.

The scalar and vector ALU instructions come from the emulator in a tinygrad source checkout
(``test/mockgpu/amd/emu.py``; environment variable TINYGRAD_SOURCE, and CC naming clang). The two kinds of instruction
that decide whether a GEMM is right are this module's own, in numpy:

* ``v_mfma_scale_f32_16x16x128_f8f6f4`` on e4m3 operands, with one scale per row and block of 32 along K (tinygrad's
  applies one scale to the whole product, and picks its byte from other bits);
* ``buffer_load_dword[x2|x3|x4]`` and the stores, bounded by their descriptor (tinygrad's loads one dword for x3). An
  access must lie in an array that the kernel was given, a store in one that it may write; anything else raises
  :class:`AccessError`.

Nothing here models time, caches or more than one workgroup at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import mmap
import os
import pickle
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
from elftools.elf.elffile import ELFFile

LANES = 64
_PC = 256  # where the emulator's scalar file keeps the program counter
_ARG_SGPR, _ARG_VGPR, _ARG_AGPR = 0, 1, 5  # the buffers that the emulator hands to an instruction, by its own numbering


class AccessError(Exception):
    """The kernel touched memory that it was not given."""


class Memory:
    """The arrays that a kernel may touch, each flush against pages that nobody may touch.

    ``place(array, end=True)`` copies an array so that its last 16 bytes are the last before an unreadable page; with
    ``end=False`` its first byte is the first after one. Plain loads that go there end the process; buffer accesses are
    checked against the arrays themselves.
    """

    def __init__(self) -> None:
        self._arrays: list[tuple[int, np.ndarray, bool]] = []

    def place(self, array: np.ndarray, *, writable: bool = False, end: bool = True) -> np.ndarray:
        """A copy of ``array`` (any dtype) in guarded memory, at a multiple of 16 bytes, among bytes that are 255."""
        page = mmap.PAGESIZE
        size = -(-array.nbytes // page) * page
        area = mmap.mmap(-1, size + 2 * page)
        everything = np.frombuffer(area, np.uint8)
        everything[:] = 255
        start = everything.ctypes.data
        for guard in (start, start + page + size):
            if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        skip = page + (size - -(-array.nbytes // 16) * 16 if end else 0)
        placed: np.ndarray = np.frombuffer(area, array.dtype, array.size, skip).reshape(array.shape)
        placed[...] = array
        self._arrays.append((start + skip, everything[skip : skip + array.nbytes + -array.nbytes % 4], writable))
        return placed

    def at(self, addresses: np.ndarray, size: int, write: bool) -> tuple[np.ndarray, np.ndarray]:
        """The array that ``size`` bytes at each of ``addresses`` lie in, and the index of every byte there.

        An array ends with its last aligned dword: that much may be touched.
        """
        low, high = int(addresses.min()), int(addresses.max()) + size
        for start, array, writable in self._arrays:
            if start <= low and high <= start + array.size:
                if write and not writable:
                    raise AccessError(f"a store to read-only bytes {low - start}..{high - start}")
                return array, (addresses - np.uint64(start)).astype(np.int64)[:, None] + np.arange(size)
        raise AccessError(f"{'store to' if write else 'load from'} {low:#x}..{high:#x}, outside every array")


_libc = ctypes.CDLL(None, use_errno=True)


class _State:
    """Stands in for whatever class a cache entry was pickled from: keeps the state, runs nothing."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state


class _StateReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_State]:
        return _State


def embedded_code_objects(entry: Path) -> list[bytes]:
    """The ELF images in one entry of FlyDSL's cache (the layout of 0.3.4.1 and later)."""
    with entry.open("rb") as file:
        state = _StateReader(file).load().state
    return [_unescaped(m) for m in re.findall(rb'bin = "((?:[^"\\]|\\.)*)"', zlib.decompress(state["ir_zlib"]))]


def _unescaped(literal: bytes) -> bytes:
    short = {b"n": b"\n", b"t": b"\t"}

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code.decode()) if len(code) == 2 else short.get(code, code)

    return re.sub(rb"\\([0-9A-Fa-f]{2}|.)", byte, literal, flags=re.DOTALL)


class CodeObject:
    """One gfx950 ELF image, loaded. ``kernels`` maps each kernel's name to its AMDGPU metadata."""

    def __init__(self, image: bytes) -> None:
        elf = ELFFile(io.BytesIO(image))
        segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
        self._memory = mmap.mmap(-1, max(s["p_vaddr"] + s["p_memsz"] for s in segments) + mmap.PAGESIZE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for segment in segments:
            self._memory[segment["p_vaddr"] : segment["p_vaddr"] + segment["p_filesz"]] = segment.data()
        notes = [n for s in elf.iter_segments() if s["p_type"] == "PT_NOTE" for n in s.iter_notes()]
        self.kernels: dict[str, dict[str, Any]] = {}
        for note in notes:
            raw = note["n_descdata"]
            metadata = msgpack.unpackb(raw.encode("latin1") if isinstance(raw, str) else raw, strict_map_key=False)
            self.kernels.update((k[".name"], k) for k in metadata["amdhsa.kernels"])
        self._symbols = {s.name: s["st_value"] for s in elf.get_section_by_name(".dynsym").iter_symbols()}

    def run(self, memory: Memory, grid: tuple[int, int], arguments: Sequence[np.ndarray | int]) -> None:
        """Run the only kernel here over ``grid`` workgroups; ``arguments`` are arrays of ``memory``, or ints."""
        ((name, metadata),) = self.kernels.items()
        descriptor_at = self._symbols[name + ".kd"]
        descriptor = self._memory[descriptor_at : descriptor_at + 64]
        lds, scratch = struct.unpack_from("<II", descriptor, 0)
        (entry,) = struct.unpack_from("<q", descriptor, 16)
        (resources,) = struct.unpack_from("<I", descriptor, 52)
        properties, preload = struct.unpack_from("<HH", descriptor, 56)
        if lds or scratch or preload:
            raise NotImplementedError(f"{name}: LDS {lds}, scratch {scratch}, preloaded arguments {preload}")

        kernarg = ctypes.create_string_buffer(metadata[".kernarg_segment_size"] + 256)
        visible = [a for a in metadata[".args"] if not a[".value_kind"].startswith("hidden")]
        for slot, argument in zip(visible, arguments, strict=True):
            value = argument if isinstance(argument, int) else argument.ctypes.data
            struct.pack_into({4: "<i", 8: "<Q"}[slot[".size"]], kernarg, slot[".offset"], value)

        # Registers that the descriptor asks for, in the ABI's order; all but the arguments' address stay zero here.
        user: list[int] = []
        for bit, words in enumerate((4, 2, 2, 2, 2, 2, 1)):
            if properties >> bit & 1:
                address = ctypes.addressof(kernarg) if bit == 3 else 0
                user += [address & 0xFFFFFFFF, address >> 32, 0, 0][:words]
        block = metadata.get(".reqd_workgroup_size") or [metadata[".max_flat_workgroup_size"], 1, 1]
        pc = self._base + descriptor_at + entry
        with _instructions(memory) as emulator:
            emulator.run_asm(
                pc, len(self._memory) - descriptor_at - entry, *grid, 1, *block, ctypes.addressof(kernarg),
                rsrc2=resources, arch="cdna", user_data=user,
            )  # fmt: skip


def _emulator() -> Any:
    source = os.environ["TINYGRAD_SOURCE"]
    if source not in sys.path:
        sys.path.insert(0, source)
    return importlib.import_module("test.mockgpu.amd.emu")


@contextlib.contextmanager
def _instructions(memory: Memory) -> Iterator[Any]:
    """tinygrad's emulator with this module's buffer and matrix instructions in place of its own."""
    emulator = _emulator()
    theirs = emulator._decode_at

    def decode_at(pc: int, arch: str) -> tuple[tuple[Any, Any], Any]:
        raw = ctypes.string_at(pc, 16)
        instruction = emulator.decode_inst(raw, arch)
        if isinstance(instruction, emulator.irc.MUBUF):
            execute = _buffer_access(int.from_bytes(raw[:8], "little"), instruction.op.name, memory)
        elif isinstance(instruction, emulator.irc.VOP3PX2):
            execute = _scaled_mfma(int.from_bytes(raw, "little"), instruction.op.name)
        else:
            return theirs(pc, arch)
        program = SimpleNamespace(arg=SimpleNamespace(globals=[_ARG_SGPR, _ARG_VGPR, _ARG_AGPR]))
        return (program, SimpleNamespace(fxn=_stepping(execute, instruction.size()))), instruction

    emulator._decode_at = decode_at
    try:
        yield emulator
    finally:
        emulator._decode_at = theirs


class _Registers:
    """The registers of one wave: scalars (and inline constants behind them), and both vector files, [256, 64 lanes]."""

    def __init__(self, scalars: int, vectors: int, accumulators: int) -> None:
        self.scalar = np.frombuffer((ctypes.c_uint32 * 260).from_address(scalars), np.uint32)
        self.vector, self.accumulator = (
            np.frombuffer((ctypes.c_uint32 * (256 * LANES)).from_address(a), np.uint32).reshape(256, LANES)
            for a in (vectors, accumulators)
        )

    def file(self, accumulators: int) -> np.ndarray:
        return self.accumulator if accumulators else self.vector

    def source(self, code: int, count: int = 1, accumulators: int = 0) -> np.ndarray:
        """``count`` registers of a 9-bit source operand, [count, 64]; scalars and constants are the same in all."""
        if code >= 256:
            return self.file(accumulators)[code - 256 : code - 256 + count]
        return np.full((count, LANES), self.scalar[code])


def _stepping(execute: Callable[[_Registers], None], size: int) -> Callable[..., None]:
    def step(scalars: ctypes.c_uint64, vectors: ctypes.c_uint64, accumulators: ctypes.c_uint64) -> None:
        registers = _Registers(scalars.value, vectors.value, accumulators.value)
        execute(registers)
        pc = int(registers.scalar[_PC]) + (int(registers.scalar[_PC + 1]) << 32) + size
        registers.scalar[_PC], registers.scalar[_PC + 1] = pc & 0xFFFFFFFF, pc >> 32

    return step


def _field(word: int, high: int, low: int) -> int:
    return word >> low & (1 << (high - low + 1)) - 1


def _buffer_access(word: int, name: str, memory: Memory) -> Callable[[_Registers], None]:
    match = re.fullmatch(r"BUFFER_(LOAD|STORE)_DWORD(?:X([234]))?", name)
    if match is None or _field(word, 13, 13) or _field(word, 16, 16):
        raise NotImplementedError(f"{name} with index {_field(word, 13, 13)}, to LDS {_field(word, 16, 16)}")
    store, dwords = match[1] == "STORE", int(match[2] or 1)
    data, address, descriptor, soffset = (
        _field(word, 47, 40), _field(word, 39, 32), 4 * _field(word, 52, 48), _field(word, 63, 56),
    )  # fmt: skip
    offset, add_register, accumulators = _field(word, 11, 0), _field(word, 12, 12), _field(word, 55, 55)

    def execute(registers: _Registers) -> None:
        scalar = registers.scalar
        base = int(scalar[descriptor]) | (int(scalar[descriptor + 1]) & 0xFFFF) << 32
        records = int(scalar[descriptor + 2])
        execution = int(scalar[126]) | int(scalar[127]) << 32
        active = np.array([execution >> lane & 1 for lane in range(LANES)], bool)
        at = np.full(LANES, offset + int(scalar[soffset]), np.uint64)
        if add_register:
            at += registers.vector[address]
        inside = active & (at + np.uint64(4 * dwords) <= records)
        if (active & ~inside & (at < records)).any():
            raise AccessError(f"{name} across the end of its descriptor")
        target = registers.file(accumulators)[data : data + dwords]
        if not store:
            target[:, active] = 0
        if inside.any():
            array, index = memory.at(at[inside] + np.uint64(base), 4 * dwords, store)
            if store:
                array[index] = np.ascontiguousarray(target[:, inside].T).view(np.uint8)
            else:
                target[:, inside] = array[index].view(np.uint32).T

    return execute


E4M3 = np.array(
    [
        np.nan
        if b & 127 == 127
        else (-1) ** (b >> 7) * ((b & 7) / 8 + (b >> 3 & 15 != 0)) * 2.0 ** (max(b >> 3 & 15, 1) - 7)
        for b in range(256)
    ]
)
"""The value of each float8_e4m3fn byte."""


def e8m0(codes: np.ndarray) -> np.ndarray:
    """The powers of two that E8M0 bytes stand for."""
    return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))


def _scaled_mfma(word: int, name: str) -> Callable[[_Registers], None]:
    """D = A B + C for 16 x 16 results over 128 values of K, both operands e4m3.

    Lane l holds row (of A) or column (of B) l % 16: registers 4c to 4c + 3 are K = 64c + 16(l // 16) and the 15 behind
    it. The scale of the 32 values from K = 32b on comes from lane l % 16 + 16b. Register i of the result is row
    4(l // 16) + i, column l % 16. The byte of a scale register is chosen by op_sel (low bit) and op_sel_hi (high bit),
    bit 0 of either for A, bit 1 for B.
    """
    if "16X16X128" not in name or _field(word, 74, 72) or _field(word, 127, 125):
        raise NotImplementedError(f"{name} with other operands than e4m3")
    low, high = _field(word, 13, 11), _field(word, 60, 59)
    selects = [(low >> i & 1) | (high >> i & 1) << 1 for i in (0, 1)]
    codes = [_field(word, 104, 96), _field(word, 113, 105)]
    scale_codes = [_field(word, 40, 32), _field(word, 49, 41)]
    files = _field(word, 124, 123)
    addend, result, result_file = _field(word, 122, 114), _field(word, 71, 64), _field(word, 79, 79)

    def execute(registers: _Registers) -> None:
        operands = []
        for i in (0, 1):
            raw = np.ascontiguousarray(registers.source(codes[i], 8, files >> i & 1).T).view(np.uint8)
            values = E4M3[raw.reshape(4, 16, 2, 16).transpose(1, 2, 0, 3)].reshape(16, 128)
            scales = e8m0(
                registers.source(scale_codes[i])[0].reshape(4, 16).T >> np.uint32(8 * selects[i]) & np.uint32(255)
            )
            operands.append(values * np.repeat(scales, 32, axis=1))
        product = operands[0] @ operands[1].T
        sums = product.reshape(4, 4, 16).transpose(1, 0, 2).reshape(4, LANES)
        sums = sums + registers.source(addend, 4, result_file).view(np.float32)
        registers.file(result_file)[result : result + 4] = sums.astype(np.float32).view(np.uint32)

    return execute
