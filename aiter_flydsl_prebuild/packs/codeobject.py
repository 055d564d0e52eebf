"""What a compiled kernel's code object says of itself: registers, LDS, spills.

The figures come from the AMDGPU metadata note of the ELF image that FlyDSL embeds in its compiled MLIR
(LLVM, "User Guide for AMDGPU Backend", Code Object V3 and above: note NT_AMDGPU_METADATA, MessagePack).
"""

from __future__ import annotations

import hashlib
import io
import re

from ..errors import PrebuildError
from .manifest import CodeFacts

_EMBEDDED = re.compile(r'#gpu\.object<#rocdl\.target<([^>]*)>.*?\bbin = "((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)
_NAMED_ESCAPES = {b"n": b"\n", b"t": b"\t"}
_NT_AMDGPU_METADATA = 32


def embedded_code_objects(ir_text: str) -> list[tuple[str, bytes]]:
    """``(chip, ELF image)`` of every code object in a compiled MLIR module."""
    found = []
    for target, literal in _EMBEDDED.findall(ir_text):
        chip = re.search(r'chip = "([^"]+)"', target)
        # MLIR leaves the default chip out of the text; no FlyDSL target is that one.
        found.append((chip.group(1) if chip else "", _unescape(literal)))
    return found


def _unescape(literal: str) -> bytes:
    """The bytes behind an MLIR string literal: two hex digits, or a named escape."""

    def byte(match: re.Match[bytes]) -> bytes:
        escape = match.group(1)
        return bytes.fromhex(escape.decode()) if len(escape) == 2 else _NAMED_ESCAPES.get(escape, escape)

    return _ESCAPE.sub(byte, literal.encode("latin-1"))


def read_code_object(image: bytes) -> list[CodeFacts]:
    """The kernels of one ELF image.

    :raises PrebuildError: not an AMDGPU code object.
    """
    # Here: extracting code objects, and reading packs, take neither.
    import msgpack
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(image))
        if elf["e_machine"] != "EM_AMDGPU":
            raise PrebuildError(f"the embedded code object is for {elf['e_machine']}, not for an AMD GPU")
        notes = [n for s in elf.iter_segments("PT_NOTE") for n in s.iter_notes() if n["n_name"] == "AMDGPU"]
        described = [n["n_descdata"] for n in notes if n["n_type"] in (_NT_AMDGPU_METADATA, "NT_AMDGPU_METADATA")]
        metadata = msgpack.unpackb(described[0], strict_map_key=False)
        digest = hashlib.sha256(image).hexdigest()
        return [
            CodeFacts(
                symbol=kernel[".name"],
                vgpr=kernel[".vgpr_count"],
                agpr=kernel.get(".agpr_count", 0),
                sgpr=kernel[".sgpr_count"],
                lds=kernel[".group_segment_fixed_size"],
                scratch=kernel[".private_segment_fixed_size"],
                vgpr_spills=kernel.get(".vgpr_spill_count", 0),
                sgpr_spills=kernel.get(".sgpr_spill_count", 0),
                workgroup=kernel[".max_flat_workgroup_size"],
                wavefront=kernel[".wavefront_size"],
                code_object_bytes=len(image),
                code_object_sha256=digest,
            )
            for kernel in metadata["amdhsa.kernels"]
        ]
    except (ELFError, IndexError, KeyError, ValueError, msgpack.UnpackException) as error:
        raise PrebuildError(f"the embedded code object cannot be read: {type(error).__name__}: {error}") from error


def code_facts(ir_text: str, arch: str) -> list[CodeFacts]:
    """The kernels of every code object in a compiled module.

    :raises PrebuildError: no code object, or one for another arch.
    """
    objects = embedded_code_objects(ir_text)
    if not objects:
        raise PrebuildError("the compiled module holds no code object")
    for chip, _ in objects:
        if chip != arch:
            raise PrebuildError(f"the compiled module holds a code object for {chip or 'no arch'}, not for {arch}")
    return [facts for _, image in objects for facts in read_code_object(image)]
