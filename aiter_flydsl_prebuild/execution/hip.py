"""The HIP library that FlyDSL's own host code launches into, where there is no GPU.

FlyDSL's run-time library is linked against ``libamdhip64.so.7``. A small C library of that name is loaded first: it
hands code objects, kernels and launches to this process's Python. So the grid, the block, the LDS and the bytes of the
arguments are those that FlyDSL computes for a server. What would read or write a GPU's memory fails by name.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..errors import InputError
from .faults import ExecutionError

NAME = "libamdhip64.so.7"

_VERSION = "hip_4.2"  # of every symbol that libfly_jit_runtime.so imports
_NOT_SUPPORTED = 801
SUCCEEDING = (
    "hipDeviceSynchronize",
    "hipEventCreateWithFlags",
    "hipEventDestroy",
    "hipEventRecord",
    "hipEventSynchronize",
    "hipGetDevice",
    "hipGetLastError",
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
    "hipModuleUnload",
    "hipSetDevice",
    "hipStreamCreate",
    "hipStreamDestroy",
    "hipStreamSynchronize",
    "hipStreamWaitEvent",
)
FAILING = (
    "hipFree",
    "hipHostGetDevicePointer",
    "hipHostRegister",
    "hipHostUnregister",
    "hipMalloc",
    "hipMemcpy",
    "hipMemcpyAsync",
    "hipMemset",
    "hipMemsetD16Async",
    "hipMemsetD32Async",
    "hipModuleGetGlobal",
    "hipModuleLaunchCooperativeKernel",
    "hipLaunchKernelExC",
    "hipDrvLaunchKernelEx",
)
_SOURCE = """
typedef int (*load_hook)(void **, const void *);
typedef int (*function_hook)(void **, void *, const char *);
typedef int (*launch_hook)(void *, unsigned *, unsigned, void **, void **);
load_hook on_load; function_hook on_function; launch_hook on_launch; const char *unsupported;
const char *hipGetErrorName(int e) { return e ? "the emulator's HIP library" : "hipSuccess"; }
int hipModuleLoadData(void **module, const void *image) { return on_load ? on_load(module, image) : 801; }
int hipModuleGetFunction(void **function, void *module, const char *name) {
  return on_function ? on_function(function, module, name) : 801;
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned lds, void *stream, void **parameters, void **extra) {
  unsigned sizes[6] = {gx, gy, gz, bx, by, bz};
  return on_launch ? on_launch(function, sizes, lds, parameters, extra) : 801;
}
"""

_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p
)


def find_compiler() -> str:
    """A clang for this library and for tinygrad: variable CC, or one on PATH.

    :raises InputError: there is none.
    """
    names = [os.environ["CC"]] if os.environ.get("CC") else ["clang", *(f"clang-{n}" for n in range(22, 18, -1))]
    for name in names:
        if found := shutil.which(name):
            return found
    raise InputError(f"executing kernels needs clang 19 or newer ({', '.join(names)} not found); variable CC names one")


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    :raises InputError: there is no compiler, or it fails.
    """
    lines = [_SOURCE]
    lines += [f"int {name}() {{ return 0; }}" for name in SUCCEEDING]
    lines += [f'int {name}() {{ unsupported = "{name}"; return {_NOT_SUPPORTED}; }}' for name in FAILING]
    return link(lines, folder, find_compiler())


def link(lines: Iterable[str], folder: Path, compiler: str) -> Path:
    """Make a library of this name, with the symbols' version, of lines of C.

    :raises InputError: the compiler fails.
    """
    source, script, library = folder / "hip.c", folder / "hip.map", folder / NAME
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.write_text(f"{_VERSION} {{ global: *; }};\n", encoding="utf-8")
    command = [compiler, "-w", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}"]
    run = subprocess.run([*command, "-o", str(library), str(source)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise InputError(f"the C compiler {command[0]} cannot make a shared library: {run.stderr.strip()[-300:]}")
    return library


class Host:
    """The library, loaded into this process before FlyDSL loads its own.

    ``on_launch`` is called for every launch: with the code object, the kernel's name, the grid and the block, the
    dynamic LDS, and where the addresses of the arguments are, as many as the kernel has. What it raises is raised by
    :meth:`check`, since C lies between.
    """

    def __init__(self, library: Path, on_launch: Callable[[bytes, str, list[int], int, int], None]) -> None:
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._images: list[bytes] = []
        self._functions: list[tuple[bytes, str]] = []
        self._on_launch = on_launch
        self._error: BaseException | None = None
        self.launches = 0
        self._hooks: list[Any] = [_LOAD(self._load), _FUNCTION(self._function), _LAUNCH(self._launch)]
        for name, hook in zip(("on_load", "on_function", "on_launch"), self._hooks, strict=True):
            ctypes.c_void_p.in_dll(self._library, name).value = ctypes.cast(hook, ctypes.c_void_p).value

    def check(self) -> None:
        """Raise what went wrong in a launch since the last time."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        unsupported = ctypes.c_char_p.in_dll(self._library, "unsupported")
        if unsupported.value:
            name, unsupported.value = unsupported.value.decode(), None
            raise ExecutionError(f"FlyDSL's host code called {name}, which the emulator does not model")

    def _load(self, module: Any, image: int) -> int:
        try:
            self._images.append(_elf(image))
        except Exception as error:
            self._error = error
            return _NOT_SUPPORTED
        module[0] = len(self._images)
        return 0

    def _function(self, function: Any, module: int, name: bytes) -> int:
        self._functions.append((self._images[module - 1], name.decode()))
        function[0] = len(self._functions)
        return 0

    def _launch(self, function: int, sizes: Any, lds: int, parameters: int | None, extra: int | None) -> int:
        self.launches += 1
        try:
            image, name = self._functions[function - 1]
            if not parameters or extra:
                raise ExecutionError("FlyDSL's host code packs the arguments itself, which the emulator does not model")
            self._on_launch(image, name, list(sizes[:6]), lds, parameters)
        except BaseException as error:
            self._error = error
            return _NOT_SUPPORTED
        return 0


def _elf(address: int) -> bytes:
    """The ELF image at an address: it ends with its section headers."""
    header = ctypes.string_at(address, 64)
    if header[:4] != b"\x7fELF":
        raise ExecutionError("what FlyDSL loads is no code object")
    (sections,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    return ctypes.string_at(address, sections + size * count)
