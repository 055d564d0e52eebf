"""A HIP library that does nothing, counts and records: the real FlyDSL builds and runs its engines without a GPU.

What FlyDSL's run-time library asks of ``libamdhip64.so.7`` (``nm -D libfly_jit_runtime.so``) is there, under the
version that it is linked against; every function succeeds. A launch launches nothing; :func:`recorded` tells of it.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAME = "libamdhip64.so.7"

# A module's handle is the place of its image, a function's that of its module and name.
_KEEPING = """
typedef void (*launch_hook)(const void *, const char *, const unsigned *, void *, void **);
struct function { const void *image; char name[256]; };
launch_hook on_launch;
int count_hipModuleLoadData, count_hipModuleLaunchKernel;
int hipModuleLoadData(void **out, const void *image) { count_hipModuleLoadData++; *out = (void *)image; return 0; }
int hipModuleGetFunction(void **out, void *module, const char *name) {
  struct function *made = malloc(sizeof *made);
  made->image = module;
  strncpy(made->name, name, sizeof made->name);
  *out = made;
  return 0;
}
int hipModuleLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned lds, void *stream, void **arguments, void **extra) {
  unsigned sizes[] = {gx, gy, gz, bx, by, bz, lds};
  count_hipModuleLaunchKernel++;
  if (on_launch) on_launch(f->image, f->name, sizes, stream, arguments);
  free(f);
  return 0;
}
"""
_SILENT = (
    "hipDeviceSynchronize",
    "hipEventCreateWithFlags",
    "hipEventDestroy",
    "hipEventRecord",
    "hipEventSynchronize",
    "hipFree",
    "hipGetDevice",
    "hipGetLastError",
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
    "hipModuleUnload",
    "hipSetDevice",
    "hipStreamCreate",
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
    "hipStreamDestroy",
    "hipStreamSynchronize",
    "hipStreamWaitEvent",
)


def build(folder: Path) -> Path:
    """Compile the library into a folder, which then goes into LD_LIBRARY_PATH. Raises OSError without a C compiler."""
    lines = ["#include <stdlib.h>", "#include <string.h>", _KEEPING]
    lines += ['const char *hipGetErrorName(int e) { return "hipSuccess"; }']
    lines += [f"int {name}() {{ return 0; }}" for name in _SILENT]
    source, script = folder / "hip.c", folder / "hip.map"
    source.write_text("\n".join(lines) + "\n")
    script.write_text("hip_4.2 { global: *; };\n")
    command = ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}"]
    subprocess.run([*command, "-o", str(folder / NAME), str(source)], check=True)
    return folder


def counts() -> dict[str, int]:
    """How often this process, which has the library loaded, called each counted function."""
    library = ctypes.CDLL(NAME)
    names = ("hipModuleLoadData", "hipModuleLaunchKernel")
    return {name: ctypes.c_int.in_dll(library, f"count_{name}").value for name in names}


class Launch(NamedTuple):
    """What a launch handed to HIP: ``image`` begins the code object, ``arguments`` are the bytes of each."""

    image: bytes
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    lds: int
    stream: int | None
    arguments: tuple[bytes, ...]


@contextmanager
def recorded(sizes: dict[str, list[int]], image_bytes: int = 64) -> Iterator[list[Launch]]:
    """The launches that happen meanwhile. ``sizes`` are the bytes of each kernel's arguments, by its name."""
    library: Any = ctypes.CDLL(NAME)
    launches: list[Launch] = []
    kind = ctypes.CFUNCTYPE(
        None,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_uint),
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
    )

    def hook(image: int, name: bytes, numbers: Any, stream: int | None, arguments: Any) -> None:
        kernel = name.decode()
        launches.append(
            Launch(
                ctypes.string_at(image, image_bytes),
                kernel,
                tuple(numbers[0:3]),
                tuple(numbers[3:6]),
                numbers[6],
                stream,
                tuple(ctypes.string_at(arguments[i], size) for i, size in enumerate(sizes[kernel])),
            )
        )

    kept = kind(hook)
    place = ctypes.c_void_p.in_dll(library, "on_launch")
    place.value = ctypes.cast(kept, ctypes.c_void_p).value
    try:
        yield launches
    finally:
        place.value = None
