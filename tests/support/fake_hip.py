"""A HIP library that does nothing and counts: with it, the real FlyDSL builds and runs its engines without a GPU.

What FlyDSL's run-time library asks of ``libamdhip64.so.7`` (``nm -D libfly_jit_runtime.so``) is there, under the
version that it is linked against; every function succeeds. A launch launches nothing.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from aiter_flydsl_prebuild.execution import hip

_COUNTED = ("hipModuleLaunchKernel",)
_GIVING = ("hipModuleLoadData", "hipModuleGetFunction")  # a handle, which must not be null


def build(folder: Path) -> Path:
    """Compile the library into a folder, which then goes into LD_LIBRARY_PATH. Raises OSError without a C compiler."""
    lines = ["static char handle;", 'const char *hipGetErrorName(int e) { return "hipSuccess"; }']
    lines += [f"int {name}() {{ return 0; }}" for name in (*hip.SUCCEEDING, *hip.FAILING)]
    for name in (*_COUNTED, *_GIVING):
        give = "*out = &handle; " if name in _GIVING else ""
        lines += [f"int count_{name};", f"int {name}(void **out) {{ count_{name}++; {give}return 0; }}"]
    hip.link(lines, folder, "cc")
    return folder


def counts() -> dict[str, int]:
    """How often this process, which has the library loaded, called each counted function."""
    library = ctypes.CDLL(hip.NAME)
    names = ("hipModuleLoadData", "hipModuleLaunchKernel")
    return {name: ctypes.c_int.in_dll(library, f"count_{name}").value for name in names}
