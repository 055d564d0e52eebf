"""Launchers without an engine: FlyDSL's artifacts take their host function from a library that a build linked.

The door is ``CompiledArtifact._get_func_exe`` (``compiler/jit_executor.py``, 0.3.1 to 0.5), through which every launch
gets its function. A launcher belongs to the sha256 of an artifact's whole text, so that it is the launcher of this very
artifact, wherever FlyDSL has it from. What the engine does at its making is done here by the same functions of FlyDSL's
``libfly_jit_runtime.so``: the code object, taken out of the artifact's text, goes to ``mgpuModuleLoad`` on the device
that is current at the first call, and the handle to where the launch function looks for it.

Whatever is not in the library, or does not load, takes the engine.
"""

from __future__ import annotations

import codecs
import ctypes
import functools
import hashlib
import inspect
import json
import os
import threading
from typing import Any

RUNTIME_LIBRARY = "libfly_jit_runtime.so"
"""FlyDSL's own run-time library: what a library of launchers is linked against."""

VARIABLE = "AITER_FLYDSL_PREBUILD_LAUNCHERS"
"""``off``: every kernel's first call builds FlyDSL's engine."""

# sha256 of the source of CompiledArtifact._ensure_engine and _get_func_exe: the same in 0.3.1, 0.3.4.1, 0.4.2, 0.5.0.
_KNOWN = "18af942c22bf6fce24af8d781842d91097d34ccd1b1f540218507f9d1d827e8a"

MACHINE = "x86_64"
"""The machine whose code a library holds, as platform.machine() calls it; Linux's, as FlyDSL's wheels are."""

# MLIR prints a code object as a string in which a quote is \22: the next quote ends it.
_BINARY = 'bin = "'


def embedded_binary(ir_text: str) -> tuple[int, int, bytes] | None:
    """Where the text of an artifact's only code object begins and ends, and its bytes; None where there is not one."""
    start = ir_text.find(_BINARY) + len(_BINARY)
    end = ir_text.find('"', start)
    if start < len(_BINARY) or end < 0 or ir_text.find(_BINARY, end) >= 0:
        return None
    # MLIR's escapes are a doubled backslash and two hex digits: Python's with an x.
    literal = ir_text[start:end].encode("latin-1").replace(b"\\\\", b"\\5C").replace(b"\\", b"\\x")
    return start, end, codecs.escape_decode(literal)[0]


def install(executor: Any, libraries: list[Launchers]) -> str | None:
    """Let artifacts take their functions from these libraries; returns why not, None where they do.

    :param executor: the module ``flydsl.compiler.jit_executor``.
    """
    artifact = executor.CompiledArtifact
    try:
        source = "".join(inspect.getsource(function) for function in (artifact._ensure_engine, artifact._get_func_exe))
    except (AttributeError, OSError, TypeError):
        source = ""
    if hashlib.sha256(source.encode()).hexdigest() != _KNOWN:
        return "launchers are not used: this FlyDSL loads its kernels in a way that is not known here"
    original = artifact._get_func_exe

    @functools.wraps(original)
    def get_func_exe(self: Any) -> Any:
        if self._func_exe is None and self._engine is None:
            # As in _ensure_engine: a module is loaded once, however many threads call first.
            with self._lock:
                if self._func_exe is None and self._engine is None:
                    self._func_exe = next(filter(None, (library.take(self) for library in libraries)), None)
        return original(self)

    artifact._get_func_exe = get_func_exe
    return None


class Launchers:
    """The launchers of one library, loaded when the first is asked for.

    :param path: the library; ``<path>.json`` tells its sha256, its anchor, and the places by the sha256 of the text.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem: str | None = None
        self.taken = 0
        self._lock = threading.Lock()
        self._table: dict[str, list[int]] | None = None
        self._library: ctypes.CDLL | None = None
        self._runtime: ctypes.CDLL | None = None
        self._base = 0
        self._kept: list[bytes] = []

    def take(self, artifact: Any) -> Any:
        """The function of an artifact, as ``_get_func_exe`` gives it; None where this library has none for it."""
        if artifact._uses_explicit_module or artifact._post_load_processors:
            return None
        if getattr(artifact, "_ktrace_traced", False):
            return None
        text: str = artifact._ir_text
        if not self._load():
            return None
        assert self._table is not None
        assert self._runtime is not None
        places = self._table.get(hashlib.sha256(text.encode("utf-8")).hexdigest())
        found = embedded_binary(text) if places is not None else None
        if places is None or found is None:
            return None
        image = found[2]
        module = self._runtime.mgpuModuleLoad(image, len(image))
        if not module:
            return None
        ctypes.c_void_p.from_address(self._base + places[1]).value = module
        with self._lock:
            # As the engine does, for as long as the module lives.
            self._kept.append(image)
            self.taken += 1
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._base + places[0])

    def _load(self) -> bool:
        if self._library is not None:
            return True
        with self._lock:
            if self._library is None and self.problem is None:
                try:
                    self._open()
                except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                    self.problem = f"{os.path.basename(self.path)} is not used: {error}"
            return self._library is not None

    def _open(self) -> None:
        from flydsl.compiler.jit_executor import _resolve_runtime_libs

        with open(f"{self.path}.json", encoding="utf-8") as file:
            about = json.load(file)
        with open(self.path, "rb") as file:
            # A library that is damaged may end the process.
            if hashlib.sha256(file.read()).hexdigest() != about["sha256"]:
                raise ValueError("damaged: its bytes do not match its sha256")
        # First FlyDSL's own, from where the engine takes it: the library then finds it by its name.
        runtime = next(path for path in _resolve_runtime_libs() if os.path.basename(path) == RUNTIME_LIBRARY)
        self._runtime = ctypes.CDLL(runtime)
        self._runtime.mgpuModuleLoad.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._runtime.mgpuModuleLoad.restype = ctypes.c_void_p
        library = ctypes.CDLL(self.path)
        self._base = ctypes.cast(library[about["anchor"]], ctypes.c_void_p).value or 0
        self._table = dict(about["functions"])
        self._library = library
