"""FlyDSL's compiles in vLLM's JIT monitor (``vllm/utils/jit_monitor.py``, option ``--jit-monitor-mode``).

vLLM calls the module's ``activate(mode=, verbose=)`` in each worker when its warm-up is over. From then on its monitor
reports what Triton, CuTeDSL and TileLang compile: a warning in mode ``warn``, an error in mode ``error``. It has no
public place to announce another compiler, so this module

* puts itself around ``activate``, which is public, to learn when and in which mode the monitor starts;
* reports through ``_handle_jit_event``, which is private, so that the text is vLLM's own. Where it is gone or takes
  other arguments, the same is said here, in the same two modes.

A compile is reported before it starts: in mode ``error`` it does not take place. Only the error of that mode ever
leaves this module.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

MODULE = "vllm.utils.jit_monitor"

_logger = logging.getLogger("aiter_flydsl_prebuild")
_listening = False
_OURS = "_aiter_flydsl_prebuild"


def follow() -> None:
    """Report from the moment at which vLLM's monitor is activated in this process; nothing outside vLLM.

    A second call does nothing more.
    """
    if "vllm" not in sys.modules:
        return
    try:
        monitor = importlib.import_module(MODULE)
    except Exception as error:  # whatever its imports raise, vLLM starts without
        _logger.debug("vLLM's JIT monitor cannot be followed: %s", error)
        return
    activate = getattr(monitor, "activate", None)
    if not callable(activate) or hasattr(activate, _OURS):
        return

    @functools.wraps(activate)
    def activating(*arguments: Any, **named: Any) -> Any:
        result = activate(*arguments, **named)
        _listen(monitor, str(named.get("mode", arguments[0] if arguments else "warn")))
        return result

    setattr(activating, _OURS, True)
    monitor.activate = activating  # type: ignore[attr-defined]


def _listen(monitor: Any, mode: str) -> None:
    """Report each compile of FlyDSL from now on; nothing where there is no FlyDSL."""
    global _listening
    if _listening:
        return
    from .errors import PrebuildError
    from .flydsl import listen
    from .monitor import device_functions

    def before_compile(proceed: Callable[[], Any], module: Any, launcher: str) -> Any:
        names = device_functions(module)
        _report(monitor, mode, ", ".join(names) or launcher, f"launcher={launcher}")
        return proceed()

    try:
        listen.around_compiles(before_compile)
    except ImportError:
        return
    except PrebuildError as error:
        _logger.warning("aiter-flydsl-prebuild: vLLM's JIT monitor does not see FlyDSL's compiles: %s", error)
        return
    _listening = True


def _report(monitor: Any, mode: str, name: str, detail: str) -> None:
    """One compile, in the words of vLLM's monitor where it still has them."""
    handle = getattr(monitor, "_handle_jit_event", None)
    try:
        detail_asked = detail if getattr(monitor, "_verbose", False) else None
        handle(backend="FlyDSL", event="kernel compilation", fn_name=name, detail=detail_asked)  # type: ignore[misc]
    except Exception as error:
        if mode == "error" and isinstance(error, RuntimeError):
            raise
        text = f"FlyDSL kernel compilation during inference: {name} ({detail})"
        if mode == "error":
            raise RuntimeError(text) from None
        _logger.warning("aiter-flydsl-prebuild: %s", text)
