"""Look-up in place of the trace: FlyDSL 0.5 finds an artifact by the call, as its releases before did.

FlyDSL 0.5 traces every plain call, in every process, before it looks for an artifact (``compiler/jit_function.py``,
``JitFunction._compile_or_execute``). A build that traced a call notes its key and its artifact; here a call whose key
is in a table, and for which all holds that the trace depended on, takes the artifact and goes on as FlyDSL does after a
hit. Every other call takes FlyDSL's own path, trace included. docs/design.md says why that is sound.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
import types
from typing import Any

from .call_key import Call, UnnamedCallError, call_of
from .guards import FLYDSL, Guards
from .names import UnnamedError, listened_to

VARIABLE = "AITER_FLYDSL_PREBUILD_LOOKUP"
"""``on``, ``check`` (look up, trace all the same, and compare) or ``off``."""

MODES = ("on", "check", "off")

# sha256 of compiler/jit_function.py in the released wheels whose _compile_or_execute is followed here.
_KNOWN = {
    "9b1bd8315f991529fc0752db59ea71668c5647777da3f5c73c6f3865b376cf8d": "0.5.0",
}

_DOOR = "_compile_or_execute"
_OFF = ("FLYDSL_DEBUG_", "FLYDSL_DUMP_", "FLYDSL_KTRACE_")
"""Variables that want something of a trace: none of them may be set."""

_logger = logging.getLogger("aiter_flydsl_prebuild")


class Counts:
    """What became of the calls of this process: found in a ``table``, or left to FlyDSL, by reason; and what ``check``
    found to differ."""

    def __init__(self) -> None:
        self.table = 0
        self.left: dict[str, int] = {}
        self.mismatches: list[str] = []
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def add(self, reason: str | None) -> None:
        """Count a call; None for one that was found."""
        with self._lock:
            if reason is None:
                self.table += 1
            else:
                self.left[reason] = self.left.get(reason, 0) + 1


counts = Counts()


def mode_of(environ: Any) -> str | None:
    """What VARIABLE says; None where it says nothing that is known."""
    value = environ.get(VARIABLE, "").strip().lower() or DEFAULT
    value = {"0": "off", "1": "on"}.get(value, value)
    return value if value in MODES else None


DEFAULT = "on"


def known(jit: Any) -> bool:
    """Whether FlyDSL's door is one that is known here, and nobody else's stands in it."""
    return source_digest(jit.__file__) in _KNOWN and _own_door(jit)


def source_digest(path: str) -> str:
    """The sha256 of a source file, "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _own_door(jit: Any) -> bool:
    door = getattr(jit.JitFunction, _DOOR, None)
    while isinstance(door, types.FunctionType) and (inner := listened_to(door)) is not None:
        door = inner
    code = getattr(door, "__code__", None)
    return code is not None and os.path.samefile(code.co_filename, jit.__file__)


def launcher_id(launcher: Any) -> str:
    """Module and qualified name of a launcher's function."""
    return f"{launcher.func.__module__}:{launcher.func.__qualname__}"


class Launcher:
    """What a table holds of one launcher: its calls, and what they depend on.

    :param flydsl: the guards of FlyDSL itself, which all launchers of a table share.
    """

    def __init__(self, recorded: dict[str, Any], guards: dict[str, dict[str, str]], flydsl: Guards) -> None:
        self.calls: dict[str, str] = recorded["calls"]
        self.environment: dict[str, str | None] = recorded["environment"]
        self.flydsl = flydsl
        self._own = Guards({path: guards[path] for path in recorded["guards"] if not path.startswith(FLYDSL)})

    def differs(self) -> str | None:
        """What is not as it was when the build traced; None where all is."""
        for name, value in self.environment.items():
            if os.environ.get(name) != value:
                return f"{name} is set otherwise"
        with _lock:
            return self._own.differs() or self.flydsl.differs()


class Table:
    """The launchers of one table; ``launchers`` by what :func:`launcher_id` gives."""

    def __init__(self, text: str) -> None:
        recorded = json.loads(text)
        guards = recorded["guards"]
        self.abi: str = recorded["abi"]
        self.flydsl = Guards({path: names for path, names in guards.items() if path.startswith(FLYDSL)})
        self.launchers = {name: Launcher(one, guards, self.flydsl) for name, one in recorded["launchers"].items()}


_lock = threading.RLock()


def _renew_locks() -> None:
    # A thread that held one is not there in a child.
    global _lock
    _lock = threading.RLock()
    counts.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class Lookup:
    """The tables of this process, behind FlyDSL's door."""

    def __init__(self, tables: list[Table], mode: str) -> None:
        self.mode = mode
        self._launchers: dict[str, list[Launcher]] = {}
        for table in tables:
            for name, launcher in table.launchers.items():
                self._launchers.setdefault(name, []).append(launcher)

    def install(self, jit: Any) -> None:
        """Stand in FlyDSL's door."""
        original = getattr(jit.JitFunction, _DOOR)

        @functools.wraps(original)
        def looking_up(launcher: Any, args: Any, kwargs: Any, *, execute: bool, return_compiled: bool = False) -> Any:
            found = self._find(launcher, args, kwargs) if jit.ir.Context.current is None else None
            if found is None or self.mode == "check":
                result = original(launcher, args, kwargs, execute=execute, return_compiled=return_compiled)
                if found is not None:
                    self._compare(launcher, found[1])
                return result
            return _after_a_hit(jit, launcher, *found, execute=execute, return_compiled=return_compiled)

        setattr(jit.JitFunction, _DOOR, looking_up)

    def prepare(self, jit: Any) -> None:
        """Pay now for what a first call would: comparing FlyDSL with the guards, and FlyDSL's own key."""
        with _lock:
            for flydsl in {id(one.flydsl): one.flydsl for some in self._launchers.values() for one in some}.values():
                flydsl.differs()
        jit._flydsl_key()

    def _find(self, launcher: Any, args: Any, kwargs: Any) -> tuple[Call, str, Any] | None:
        """The call, its artifact's key and the artifact; None, counted with the reason, where it is FlyDSL's."""
        tables = self._launchers.get(launcher_id(launcher))
        if tables is None:
            counts.add("no table has the launcher")
            return None
        try:
            reason, found = self._look(tables, launcher, args, kwargs)
        except (UnnamedCallError, UnnamedError) as error:
            reason, found = str(error), None
        except Exception as error:  # FlyDSL will say what is wrong with the call.
            reason, found = f"{type(error).__name__}", None
        counts.add(reason)
        return found

    def _look(
        self, tables: list[Launcher], launcher: Any, args: Any, kwargs: Any
    ) -> tuple[str | None, tuple[Call, str, Any] | None]:
        if any(name.startswith(_OFF) for name in os.environ):
            return "a debug, dump or ktrace variable is set", None
        call = call_of(launcher, args, kwargs)
        table = next((one for one in tables if call.key in one.calls), None)
        if table is None:
            return "no table has the call", None
        if launcher._effective_compile_hints().get("ktrace"):
            return "ktrace is on", None
        if (why := table.differs()) is not None:
            return why, None
        key = table.calls[call.key]
        artifact = _artifact(launcher, key)
        if artifact is None:
            return "the artifact is not in the cache", None
        return None, (call, key, artifact)

    def _compare(self, launcher: Any, key: str) -> None:
        traced = launcher._last_compiled[0] if launcher._last_compiled else None
        if traced == key:
            return
        what = f"{launcher_id(launcher)}: the table gives {key[:12]}, the trace {str(traced)[:12]}"
        counts.mismatches.append(what)
        _logger.error("aiter-flydsl-prebuild: look-up table and trace differ: %s; the trace is taken", what)


def _artifact(launcher: Any, key: str) -> Any:
    """The artifact of a key, from memory or disk; None where it is not there, or one that needs more than loading."""
    import flydsl.compiler.jit_function as jit

    artifact = launcher._mem_cache.get(key)
    if artifact is None and launcher.cache_manager is not None:
        artifact = launcher.cache_manager.get(jit._disk_cache_key(key))
    if artifact is None or artifact._ktrace_traced or artifact._ktrace_names or artifact._post_load_processors:
        return None
    return artifact


def _after_a_hit(
    jit: Any, launcher: Any, call: Call, key: str, artifact: Any, *, execute: bool, return_compiled: bool
) -> Any:
    """What ``_compile_or_execute`` of 0.5.0 does around and after a hit, in its order."""
    arguments = tuple(call.bound.arguments.values())
    if return_compiled:
        live = any(jit._has_live_device_argument(value) for value in arguments)
        execute = not any(jit._is_compile_placeholder(value, allow_null_pointers=live) for value in arguments)
    if execute:
        from flydsl.runtime.device_runtime import ensure_compile_runtime_pairing_from_env

        ensure_compile_runtime_pairing_from_env(call.backend.target.backend)
    launcher._mem_cache[key] = artifact
    launcher._last_compiled = (key, artifact)
    if jit.env.compile.compile_only:
        return None
    if not execute:
        return launcher._make_compiled_function(key, call.bound, None) if return_compiled else None
    state = jit._build_call_state(launcher._sig, arguments, artifact)
    result = state(arguments)
    return launcher._make_compiled_function(key, call.bound, state) if return_compiled else result
