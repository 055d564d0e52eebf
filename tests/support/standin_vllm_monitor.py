"""A stand-in for vLLM 0.33.0's JIT monitor, from its behaviour: what activates it, and what it says of a compile.

As a module ``vllm.utils.jit_monitor`` of this process, by :func:`install`.
"""

from __future__ import annotations

import logging
import sys
import types

_mode = "off"
_verbose = False


def activate(*, mode: str = "warn", verbose: bool = False) -> None:
    """vLLM calls this when its warm-up is over."""
    global _mode, _verbose
    _mode, _verbose = mode, verbose


def _handle_jit_event(*, backend: str, event: str, fn_name: str, detail: str | None = None) -> None:
    text = f"{backend} {event} during inference: {fn_name}" + (f" ({detail})" if detail else "")
    if _mode == "error":
        raise RuntimeError(text)
    logging.getLogger("vllm").warning(text)


def install(without: str = "") -> types.ModuleType:
    """Put this module in vLLM's place, without one of its functions."""
    for name in ("vllm", "vllm.utils"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    this = sys.modules[__name__]
    sys.modules["vllm.utils.jit_monitor"] = this
    if without:
        delattr(this, without)
    return this
