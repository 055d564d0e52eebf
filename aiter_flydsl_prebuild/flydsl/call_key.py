"""The key of a call of FlyDSL 0.5: what a trace takes from the call itself.

It holds the launcher (its code and all that it closes over), the target, the variables that enter FlyDSL's keys, the
compile hints, the compile-time constants, and for every other argument what FlyDSL calls its cache signature:
``compiler/protocol.py`` says that equal signatures select the same specialization. FlyDSL 0.3.4.1 keyed on the same
before it traced. A call that cannot be named so raises.
"""

from __future__ import annotations

import hashlib
import inspect
import types
import weakref
from typing import Any, NamedTuple

from .guards import Guards, parts
from .names import name_of


class UnnamedCallError(Exception):
    """A call has no key; the message says what stands in the way."""


class Call(NamedTuple):
    """A call that was bound and resolved as FlyDSL does it.

    ``values`` are those that the key names and whose classes a trace may look into.
    """

    key: str
    values: tuple[Any, ...]
    bound: inspect.BoundArguments
    backend: Any


def call_of(launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Bind a call and name it.

    Does what ``JitFunction._compile_or_execute`` does before it traces, in the same order, and raises what that raises.

    :raises UnnamedCallError: the call is of a kind that has no key.
    :raises UnnamedError: a value in it has no name that holds in another process.
    """
    import flydsl.compiler.jit_function as jit
    from flydsl.compiler.protocol import cache_signature
    from flydsl.expr import meta
    from flydsl.runtime.device import get_rocm_arch

    if jit.CompilationContext.get_current() is not None or getattr(meta._tls, "stack", None):
        # What is set there for a block of code reaches the traces in it (expr/meta.py, tracing_context).
        raise UnnamedCallError("it stands inside a tracing context")
    bound_self, args = launcher._split_self(args)
    if bound_self is not None:
        raise UnnamedCallError("it is a method")
    signature = launcher._sig
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    hints = launcher._effective_compile_hints()
    backend = jit.get_backend()
    launcher._backend_target = backend.target
    launcher._ensure_cache_manager()
    launcher._resolve_arguments(bound.arguments)

    target = backend.target
    lines = [
        _launcher_name(launcher),
        f"{target.backend} {target.arch} {target.warp_size} {get_rocm_arch()} {backend.hash()}",
        name_of(jit._cache_invalidating_env_values(target)),
        name_of(dict(hints)),
    ]
    values: list[Any] = [launcher.func]
    for name, argument in bound.arguments.items():
        if _is_constant(jit, signature.parameters[name].annotation):
            lines.append(f"{name} = {name_of(argument)}")
            values.append(argument)
        else:
            try:
                sign = cache_signature(argument)
            except TypeError as error:
                raise UnnamedCallError(f"its argument {name} has no cache signature") from error
            lines.append(f"{name}: {name_of(type(argument))} {name_of(sign)}")
            values += [type(argument), sign]
    return Call(hashlib.sha256("\n".join(lines).encode()).hexdigest(), tuple(values), bound, backend)


def _is_constant(jit: Any, annotation: Any) -> bool:
    """Whether an argument is baked into the trace: ``JitFunction._resolve_arguments`` leaves it as it is."""
    if annotation is inspect.Parameter.empty:
        return False
    return bool(jit.Constexpr.is_constexpr_annotation(annotation) or jit.is_type_param_annotation(annotation))


class _Named:
    """A launcher's name, for as long as nothing that it is made of changes."""

    def __init__(self, launcher: Any) -> None:
        self.function = launcher.func
        self.watch = Guards({})
        self.watch.keep(launcher.func)
        self.signature = launcher._sig
        kinds = [f"{name}: {name_of(p.annotation)}" for name, p in launcher._sig.parameters.items()]
        self.name = f"{name_of(launcher.func)} ({', '.join(kinds)})"


_named: weakref.WeakKeyDictionary[Any, _Named] = weakref.WeakKeyDictionary()


def _launcher_name(launcher: Any) -> str:
    known = _named.get(launcher)
    if (
        known is not None
        and known.function is launcher.func
        and known.signature is launcher._sig
        and known.watch.changed() is None
    ):
        return known.name
    if any(isinstance(part, types.MethodType) for part in parts(launcher.func)):
        raise UnnamedCallError("it closes over a method of an object")
    known = _named[launcher] = _Named(launcher)
    return known.name
