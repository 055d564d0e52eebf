"""One gfx950 ELF image, loaded, and what its kernels ask of a launch.

LLVM, "User Guide for AMDGPU Backend": Kernel Descriptor, Initial Kernel Execution State, Code Object Metadata.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from .faults import UnsupportedKernel

_MODES = 0xF3
"""FLOAT_ROUND_MODE_32, and both FLOAT_DENORM_MODEs: round to nearest even, and keep subnormals, is what is modelled."""
_KEEP_SUBNORMALS = 0xF0

_USER_SGPRS = (("scratch", 4), ("packet", 2), ("queue", 2), ("kernarg", 2), ("dispatch", 2), ("flat", 2), ("size", 1))
"""User SGPRs by the bit of the descriptor's properties that asks for them, in their order."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel in its argument segment."""

    offset: int
    size: int


@dataclass(frozen=True)
class Descriptor:
    """What the kernel called ``name`` asks for. ``entry`` is the address of its first instruction."""

    name: str
    entry: int
    lds: int
    scratch: int
    argument_bytes: int
    arguments: tuple[Argument, ...]
    user_sgprs: tuple[str, ...]
    workgroup_ids: tuple[bool, bool, bool]
    item_ids: int


class Image:
    """A code object in memory. It may be executed as often as wanted."""

    def __init__(self, image: bytes) -> None:
        self.sha256 = hashlib.sha256(image).hexdigest()
        try:
            elf = ELFFile(io.BytesIO(image))
            segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
            self.memory = mmap.mmap(-1, max(s["p_vaddr"] + s["p_memsz"] for s in segments) + mmap.PAGESIZE)
            self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
            for segment in segments:
                self.memory[segment["p_vaddr"] : segment["p_vaddr"] + segment["p_filesz"]] = segment.data()
            self._metadata: dict[str, dict[str, Any]] = {}
            for note in (n for s in elf.iter_segments("PT_NOTE") for n in s.iter_notes()):
                raw = note["n_descdata"]
                raw = raw.encode("latin1") if isinstance(raw, str) else raw
                kernels = msgpack.unpackb(raw, strict_map_key=False)["amdhsa.kernels"]
                self._metadata.update((kernel[".name"], kernel) for kernel in kernels)
            symbols = elf.get_section_by_name(".dynsym")
            self._symbols = {symbol.name: symbol["st_value"] for symbol in symbols.iter_symbols()}
        except (ELFError, ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise UnsupportedKernel(f"the code object cannot be loaded: {type(error).__name__}: {error}") from error

    @property
    def data(self) -> Any:
        """All of it, as bytes in memory."""
        return np.frombuffer(self.memory, np.uint8)

    @property
    def names(self) -> list[str]:
        """Its kernels."""
        return list(self._metadata)

    def kernel(self, name: str) -> Descriptor:
        """What a kernel asks for.

        :raises UnsupportedKernel: there is no kernel of that name, or it needs what is not modelled.
        """
        metadata, at = self._metadata.get(name), self._symbols.get(f"{name}.kd")
        if metadata is None or at is None:
            raise UnsupportedKernel(f"the code object has no kernel {name}")
        descriptor = self.memory[at : at + 64]
        lds, scratch = struct.unpack_from("<II", descriptor, 0)
        (entry,) = struct.unpack_from("<q", descriptor, 16)
        resources1, resources2 = struct.unpack_from("<II", descriptor, 48)
        properties, preload = struct.unpack_from("<HH", descriptor, 56)
        mode = resources1 >> 12 & 0xFF
        if preload or properties >> 10 & 1:
            raise UnsupportedKernel(f"{name}: preloaded arguments ({preload}) and waves of 32 are not modelled")
        if mode & _MODES != _KEEP_SUBNORMALS:
            raise UnsupportedKernel(f"{name}: floating-point mode {mode:#x} is not modelled")
        visible = [a for a in metadata[".args"] if not a[".value_kind"].startswith("hidden")]
        return Descriptor(
            name=name,
            entry=self.start + at + entry,
            lds=lds,
            scratch=scratch,
            argument_bytes=metadata[".kernarg_segment_size"],
            arguments=tuple(Argument(a[".offset"], a[".size"]) for a in visible),
            user_sgprs=tuple(what for bit, (what, _) in enumerate(_USER_SGPRS) if properties >> bit & 1),
            workgroup_ids=(bool(resources2 >> 7 & 1), bool(resources2 >> 8 & 1), bool(resources2 >> 9 & 1)),
            item_ids=resources2 >> 11 & 3,
        )


def user_registers(descriptor: Descriptor, kernarg: int) -> list[int]:
    """The first scalar registers: of what a kernel can ask for, it may read its arguments' address alone."""
    registers: list[int] = []
    sizes = dict(_USER_SGPRS)
    for what in descriptor.user_sgprs:
        pair = [kernarg & 0xFFFFFFFF, kernarg >> 32] if what == "kernarg" else [0xFFFFFFFF] * sizes[what]
        registers += pair
    return registers


def argument_segment(descriptor: Descriptor, values: Sequence[bytes]) -> bytearray:
    """The argument segment that holds these values.

    :raises UnsupportedKernel: they are not as many as the kernel's arguments.
    """
    if len(values) != len(descriptor.arguments):
        raise UnsupportedKernel(
            f"{descriptor.name} takes {len(descriptor.arguments)} arguments, and {len(values)} were given"
        )
    segment = bytearray(b"\xff" * descriptor.argument_bytes)
    for argument, value in zip(descriptor.arguments, values, strict=True):
        segment[argument.offset : argument.offset + argument.size] = value
    return segment
