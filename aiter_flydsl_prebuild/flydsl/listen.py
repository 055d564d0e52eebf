"""Every function of FlyDSL that this project wraps: nothing else in the project replaces an attribute of FlyDSL.

All are in FlyDSL's ``compiler/jit_function.py``:

===================================  ============  =====================================================
function                             FlyDSL        what for
===================================  ============  =====================================================
JitFunction._compile_or_execute      from 0.4.2    :func:`around_calls`: the call of a launcher
JitFunction.__call__                 before 0.4.2  the same
JitCacheManager.get                  all           :func:`around_lookups`: a look into the cache folder
MlirCompiler.compile                 all           :func:`around_compiles`: a kernel is compiled
JitFunction._ensure_cache_manager    all           :func:`follow_cache_folder`: the folder of a launcher
_disk_cache_key                      0.5           :func:`recorded_artifact_keys`: keys that meet there
===================================  ============  =====================================================

:func:`wrap` puts a function of this project around one of FlyDSL's and returns what takes it away again. A FlyDSL that
lacks the function is one that this project does not know: that is an error, and nothing is replaced.

Imports FlyDSL where a function is called, never where this module is imported.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import PrebuildError

Restore = Callable[[], None]
"""Takes a wrapper away again; one that another was put around since stays, and passes calls on."""

Around = Callable[..., Any]
"""Called with FlyDSL's own function and the arguments of the call; its result is the caller's."""

MODULE = "flydsl.compiler.jit_function"
CALL = "JitFunction._compile_or_execute"
OLD_CALL = "JitFunction.__call__"
LOOKUP = "JitCacheManager.get"
COMPILE = "MlirCompiler.compile"
CACHE_MANAGER = "JitFunction._ensure_cache_manager"
DISK_KEY = "_disk_cache_key"


def wrap(name: str, around: Around) -> Restore:
    """Have FlyDSL call ``around(original, …)`` in place of one of its functions, in this whole process.

    ``original`` is FlyDSL's function. A method gets its object as the first argument after that; a class method is
    bound already. Several wrappers of one function are nested.

    :param name: a function of ``compiler/jit_function.py``, or CLASS.METHOD.
    :raises ImportError: FlyDSL cannot be imported.
    :raises PrebuildError: it has no such function.
    """
    owner, attribute = _find(name)
    kept = vars(owner)[attribute]
    # A class method is called on its class alone, here and in FlyDSL: getattr binds it, staticmethod keeps it bound.
    bound = isinstance(kept, (classmethod, staticmethod))
    original = getattr(owner, attribute) if bound else kept
    active = [around]

    @functools.wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return active[0](original, *arguments, **named) if active else original(*arguments, **named)

    ours = staticmethod(wrapper) if bound else wrapper
    setattr(owner, attribute, ours)

    def restore() -> None:
        active.clear()
        if vars(owner)[attribute] is ours:
            setattr(owner, attribute, kept)

    return restore


def has(name: str) -> bool:
    """Whether the installed FlyDSL has a function; see :func:`wrap`."""
    try:
        _find(name)
    except PrebuildError:
        return False
    return True


def _find(name: str) -> tuple[Any, str]:
    """What holds a function of FlyDSL, and the function's name there."""
    import importlib

    owner: Any = importlib.import_module(MODULE)
    *classes, attribute = name.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    if owner is None or attribute not in vars(owner):
        import flydsl

        raise PrebuildError(
            f"flydsl {getattr(flydsl, '__version__', 'of an unknown version')} has no {name} in"
            " compiler/jit_function.py: this project knows FlyDSL 0.3.1 to 0.5"
        )
    return owner, attribute


@contextmanager
def while_wrapped(name: str, around: Around) -> Iterator[None]:
    """:func:`wrap` for as long as the context lasts."""
    restore = wrap(name, around)
    try:
        yield
    finally:
        restore()


def around_calls(around: Callable[[Callable[[], Any], Any, tuple[Any, ...], dict[str, Any]], Any]) -> Restore:
    """Have each call of a launcher go through ``around(proceed, launcher, arguments, named)``.

    ``proceed()`` makes the call. From 0.4.2 on one method serves calls and ``flyc.compile``; before, both are calls.
    """
    if has(CALL):
        return wrap(
            CALL,
            lambda original, launcher, arguments, named, **how: around(
                lambda: original(launcher, arguments, named, **how), launcher, arguments, named
            ),
        )
    return wrap(
        OLD_CALL,
        lambda original, launcher, *arguments, **named: around(
            lambda: original(launcher, *arguments, **named), launcher, arguments, named
        ),
    )


def around_lookups(around: Callable[[Callable[[], Any], Any, str], Any]) -> Restore:
    """Have each look into the cache go through ``around(proceed, manager, key)``.

    ``proceed()`` gives the kernel, or None where neither ``manager.memory_cache`` nor its folder has it.
    """
    return wrap(LOOKUP, lambda original, manager, key: around(lambda: original(manager, key), manager, key))


def around_compiles(around: Callable[[Callable[[], Any], Any, str], Any]) -> Restore:
    """Have each compile go through ``around(proceed, module, launcher)``.

    ``module`` is the MLIR module, which compiling lowers in place or copies; ``launcher`` the host function's name.
    """
    return wrap(
        COMPILE,
        lambda original, module, *arguments, **named: around(
            lambda: original(module, *arguments, **named), module, str(named.get("func_name") or "")
        ),
    )


@functools.cache
def follow_cache_folder() -> None:
    """Let each launcher work in the folder that FLYDSL_RUNTIME_CACHE_DIR names at that moment, from now on.

    A launcher keeps what it compiled, and up to 0.4.2 also the folder of its first call. One that a module holds would
    put a job's kernel into an earlier job's folder.
    """
    folders: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def follow(original: Callable[..., Any], launcher: Any, *arguments: Any, **named: Any) -> Any:
        folder = os.environ["FLYDSL_RUNTIME_CACHE_DIR"]
        if folders.get(launcher) != folder:
            folders[launcher] = folder
            launcher.cache_manager = launcher.manager_key = None
            launcher._mem_cache.clear()
            getattr(launcher, "_call_state_cache", {}).clear()
        return original(launcher, *arguments, **named)

    wrap(CACHE_MANAGER, follow)


@contextmanager
def recorded_artifact_keys() -> Iterator[dict[str, str]]:
    """Disk key -> artifact key of every key that FlyDSL 0.5 computes meanwhile; stays empty under older ones.

    FlyDSL keeps the artifact key in the launcher, which a source need not expose; both keys meet in one function.
    """
    keys: dict[str, str] = {}
    if not has(DISK_KEY):
        yield keys
        return

    def record(original: Callable[[str], str], artifact_key: str) -> str:
        key = original(artifact_key)
        keys[key] = artifact_key
        return key

    with while_wrapped(DISK_KEY, record):
        yield keys
