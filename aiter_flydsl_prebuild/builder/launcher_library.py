"""Launchers without an engine: the host functions of a pack's kernels, compiled ahead and linked into one library.

After a hit FlyDSL parses an artifact's MLIR text and builds an ExecutionEngine for its small host function, which packs
the arguments, computes the grid and calls ``mgpuLaunchKernel`` (``compiler/jit_executor.py``, _ensure_engine, 0.3.1 to
0.5). Here the same LLVM, out of the same FlyDSL, compiles the same function once, at build time:

* the object is what the engine compiles in memory (``enable_object_dump``), position-independent and for the x86-64
  baseline in place of the builder's own CPU;
* its calls go to FlyDSL's own ``libfly_jit_runtime.so``, so that it binds to the HIP library that the engine would;
* it holds no code object. The loader takes that from the artifact and loads it as the engine does
  (:mod:`aiter_flydsl_prebuild.flydsl.launchers`).

An artifact that is not of the known form gets no launcher, and its first call builds an engine.
"""

from __future__ import annotations

import ctypes
import io
import platform
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from ..errors import PrebuildError
from ..flydsl.launchers import MACHINE, RUNTIME_LIBRARY, embedded_binary

_BASELINE = '[["target-cpu", "x86-64"], ["target-features", ""], ["tune-cpu", "generic"]]'
"""Attributes of a function that LLVM takes in place of the target machine's CPU, which is the builder's."""

# What the host function of a launch calls (MLIR, Target/LLVMIR/Dialect/GPU/SelectObjectAttr.cpp; FlyDSL
# lib/Runtime/ROCm/FlyRocmRuntimeWrappers.cpp). The engine is given do-nothing stand-ins to compile against.
_RUNTIME_FUNCTIONS = (
    "mgpuLaunchClusterKernel",
    "mgpuLaunchKernel",
    "mgpuModuleGetFunction",
    "mgpuModuleLoad",
    "mgpuModuleUnload",
)

_SECTION = ".text.launchers"

_PLAIN_LOADING = "#gpu.select_object"
"""MLIR's default handler of a binary: it loads the only object when the engine starts."""

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINK_SECONDS = 120.0


class NoLauncherError(PrebuildError):
    """An artifact gets no launcher; the message says why."""


@dataclass(frozen=True)
class Library:
    """A linked library, and for each object the places of its launch function and of its module handle.

    Places are relative to ``anchor``, the one symbol that the library exports.
    """

    image: bytes
    anchor: str
    places: tuple[tuple[int, int], ...]


def object_name(digest: str) -> str:
    """The name of a launch function, by the sha256 of its artifact's text."""
    return f"afp_{digest[:24]}"


def host_object(ir_text: str, fields: dict[str, Any], name: str) -> bytes:
    """The relocatable object of an artifact's host function, for this machine's FlyDSL. Imports FlyDSL.

    It defines ``<name>``, which takes the packed ``void **`` of FlyDSL's CallState, and ``<name>_kernels_module``.

    :param fields: the artifact's state beside its text.
    :param name: a C identifier, different for each object of a library.
    :raises NoLauncherError: the artifact is not one that the engine loads in the plain way.
    """
    if platform.machine() != MACHINE:
        raise NoLauncherError(f"launchers are made for {MACHINE}, this machine is {platform.machine()}")
    if fields.get("uses_explicit_module") or fields.get("processor_refs") or fields.get("ktrace_traced"):
        raise NoLauncherError("its module is loaded with callbacks or traced")
    if not _SYMBOL.fullmatch(name):
        raise ValueError(f"{name!r} is not a C identifier")
    from flydsl._mlir import ir
    from flydsl._mlir.execution_engine import ExecutionEngine

    context = ir.Context()
    context.enable_multithreading(False)
    context.load_all_available_dialects()
    with context, tempfile.TemporaryDirectory(prefix="afp-launcher-") as folder:
        module = ir.Module.parse(_without_binary(ir, ir_text))
        _rewrite(ir, module, str(fields["entry"]), name)
        engine = ExecutionEngine(module, opt_level=3, shared_libs=[], enable_object_dump=True, enable_pic=True)
        stand_in = ctypes.CFUNCTYPE(None)(lambda: None)
        for function in _RUNTIME_FUNCTIONS:
            engine.raw_register_runtime(function, ctypes.cast(stand_in, ctypes.c_void_p))
        # Code is made when it is first looked for; nothing of it runs.
        engine.raw_lookup(name)
        path = Path(folder, "host.o")
        engine.dump_to_object_file(str(path))
        return path.read_bytes()


def _without_binary(ir: Any, ir_text: str) -> str:
    """The text with an empty code object, if the loader finds in it what the engine would load."""
    found = embedded_binary(ir_text)
    if found is None:
        raise NoLauncherError("it does not hold exactly one code object")
    start, end, image = found
    from flydsl._mlir.dialects import gpu

    module = ir.Module.parse(ir_text)
    binaries = [op.operation for op in module.body if op.operation.name == "gpu.binary"]
    if len(binaries) != 1:
        raise NoLauncherError(f"it has {len(binaries)} binaries")
    objects = ir.ArrayAttr(binaries[0].attributes["objects"])
    handler = str(binaries[0].attributes["offloadingHandler"])
    if not handler.startswith(_PLAIN_LOADING) or len(objects) != 1:
        raise NoLauncherError(f"its binary is loaded by {handler}")
    if bytes(gpu.ObjectAttr(objects[0]).object) != image:
        raise NoLauncherError("its code object is written in a form that is not known here")
    return f"{ir_text[:start]}{ir_text[end:]}"


def _rewrite(ir: Any, module: Any, entry: str, name: str) -> None:
    """Give every definition a name of its own and the baseline CPU, and add the function that unpacks the arguments."""
    table = ir.SymbolTable(module.operation)
    if entry not in table:
        raise NoLauncherError(f"it has no function {entry}")
    types = [str(argument.type) for argument in table[entry].regions[0].blocks[0].arguments]
    for operation in [op.operation for op in module.body]:
        if operation.name == "gpu.binary":
            _rename(ir, module, operation, f"{name}_kernels")
        elif operation.name in ("llvm.func", "llvm.mlir.global"):
            if operation.name == "llvm.func":
                if not operation.regions[0].blocks:
                    continue
                _settle(ir, operation)
            old = ir.StringAttr(operation.attributes["sym_name"]).value
            _rename(ir, module, operation, f"{name}_entry" if old == entry else f"{name}_{old}")
            operation.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        else:
            raise NoLauncherError(f"its host module holds a {operation.name}")
    unpacking = ir.Module.parse(_unpacking(name, types))
    operation = next(op.operation for op in unpacking.body if op.operation.regions[0].blocks)
    _settle(ir, operation)
    module.body.append(operation)
    module.operation.verify()


def _settle(ir: Any, function: Any) -> None:
    """Have a function compiled for the baseline, into a section of its own.

    What the engine adds for itself is compiled for the builder's CPU; none of it is called, and the linker drops it.
    """
    function.attributes["passthrough"] = ir.Attribute.parse(_BASELINE)
    function.attributes["section"] = ir.StringAttr.get(_SECTION)


def _rename(ir: Any, module: Any, operation: Any, new: str) -> None:
    old = ir.StringAttr(operation.attributes["sym_name"]).value
    ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
    ir.SymbolTable.set_symbol_name(operation, new)


def _unpacking(name: str, types: Sequence[str]) -> str:
    """What the engine puts before the entry (MLIR, ExecutionEngine.cpp, packFunctionArguments), as MLIR text."""
    lines = []
    for i, kind in enumerate(types):
        lines += [
            f"%place{i} = llvm.getelementptr %packed[{i}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
            f"%storage{i} = llvm.load %place{i} : !llvm.ptr -> !llvm.ptr",
            f"%value{i} = llvm.load %storage{i} : !llvm.ptr -> {kind}",
        ]
    values, kinds = ", ".join(f"%value{i}" for i in range(len(types))), ", ".join(types)
    body = "\n    ".join([*lines, f"llvm.call @{name}_entry({values}) : ({kinds}) -> ()", "llvm.return"])
    return f"llvm.func @{name}_entry({kinds})\nllvm.func @{name}(%packed: !llvm.ptr) {{\n    {body}\n}}"


def link(objects: Sequence[tuple[str, bytes]], linker: Path, runtime: Path) -> Library:
    """Link objects, each with its name, into one library.

    :param linker: an LLD behind the name ``ld.lld``.
    :param runtime: FlyDSL's ``libfly_jit_runtime.so``, which the library is to find loaded.
    :raises PrebuildError: the linker refuses, or what it made is not as expected.
    """
    anchor = objects[0][0]
    with tempfile.TemporaryDirectory(prefix="afp-launchers-") as name:
        folder = Path(name)
        paths = []
        for index, (_, data) in enumerate(objects):
            paths.append(folder / f"{index}.o")
            paths[-1].write_bytes(data)
        script, answers, output = folder / "exports.map", folder / "arguments", folder / "launchers.so"
        script.write_text(f"{{ global: {anchor}; local: *; }};\n")
        # By a file of arguments: thousands do not fit a command line. All that no launcher needs is dropped, so that
        # the engine's own functions, under the same names in each object, are in nobody's way.
        roots = [f"--undefined={name}" for name, _ in objects]
        answers.write_text("\n".join([*roots, *(f'"{path}"' for path in [*paths, runtime])]))
        command = [str(linker), "-shared", "--no-undefined", "-z", "muldefs", "-z", "now", "--gc-sections"]
        command += ["--build-id=none", f"--version-script={script}", "-o", str(output), f"@{answers}"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_LINK_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PrebuildError(f"the launchers cannot be linked: {error}") from error
        if run.returncode:
            said = (run.stderr.strip().splitlines() or ["it said nothing"])[0]
            raise PrebuildError(f"the launchers cannot be linked: {said}")
        return _library(output.read_bytes(), [name for name, _ in objects])


def _library(image: bytes, names: Sequence[str]) -> Library:
    try:
        elf = ELFFile(io.BytesIO(image))
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
        symbols = {symbol.name: symbol["st_value"] for symbol in elf.get_section_by_name(".symtab").iter_symbols()}
    except (ELFError, AttributeError) as error:
        raise PrebuildError(f"the linked launchers cannot be read: {error}") from error
    if needed != [RUNTIME_LIBRARY]:
        raise PrebuildError(f"the linked launchers need {', '.join(needed) or 'nothing'}, not {RUNTIME_LIBRARY} alone")
    base = symbols[names[0]]
    places = tuple((symbols[name] - base, symbols[f"{name}_kernels_module"] - base) for name in names)
    return Library(_stripped(elf, image), names[0], places)


def _stripped(elf: ELFFile, image: bytes) -> bytes:
    """The image up to the end of its last segment, without section headers: what the loader maps is all there."""
    end = max(segment["p_offset"] + segment["p_filesz"] for segment in elf.iter_segments())
    header = bytearray(image[:64])
    # e_shoff, and e_shentsize, e_shnum, e_shstrndx.
    header[40:48] = bytes(8)
    header[58:64] = bytes(6)
    return bytes(header) + image[64:end]
