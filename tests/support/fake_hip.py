"""A HIP library that does nothing and counts: with it, the real FlyDSL builds and runs its engines without a GPU.

What FlyDSL's run-time library asks of ``libamdhip64.so.7`` (``nm -D libfly_jit_runtime.so``) is there, under the
version that it is linked against; every function succeeds. A launch launches nothing.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

NAME = "libamdhip64.so.7"

_COUNTED = ("hipModuleLaunchKernel",)
_GIVING = ("hipModuleLoadData", "hipModuleGetFunction")  # a handle, which must not be null
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
    lines = ["static char handle;", 'const char *hipGetErrorName(int e) { return "hipSuccess"; }']
    lines += [f"int {name}() {{ return 0; }}" for name in _SILENT]
    for name in (*_COUNTED, *_GIVING):
        give = "*out = &handle; " if name in _GIVING else ""
        lines += [f"int count_{name};", f"int {name}(void **out) {{ count_{name}++; {give}return 0; }}"]
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
