"""Names for Python values that are the same in every process: what a trace ran and read, in a form to compare.

A function is named by its code, a class, module or built-in by its name, a plain value by its value. What has no such
name raises :class:`UnnamedError`, and a call that depends on it is left to FlyDSL's own path.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

_OWN = f"{__name__.partition('.')[0]}."
_SOURCES = f"{_OWN}sources."
_DEEPEST = 20
_LONGEST = 2000
_ADDRESS = " at 0x"

_BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
# The same of FlyDSL's native modules, which are made with nanobind.
_NATIVE = ("nb_func", "nb_method", "nb_bound_method")

# Their repr says all that they are: dtypes, annotations, patterns.
_PLAIN = ("torch", "typing", "types", "re", "inspect")

# FlyDSL's wrappers of functions (compiler/jit_function.py, compiler/kernel_function.py, 0.5) and what of them a trace
# reads: the function as it was rewritten, and what its decorator was given. The rest is state of calls.
_WRAPPERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("flydsl.compiler.jit_function", "JitFunction"): ("func", "compile_hints"),
    ("flydsl.compiler.kernel_function", "KernelFunction"): ("_func", "_name", "_known_block_size"),
}

_SCALARS = (type(None), bool, int, float, str, bytes, complex, type(Ellipsis), type(NotImplemented))

THREADS = (
    ("flydsl.compiler.kernel_function", "CompilationContext._compile_hints"),
    ("flydsl.compiler.kernel_function", "CompilationContext._current"),
    ("flydsl.expr.meta", "_tls"),
)
"""What FlyDSL 0.5.0 keeps for each thread. A call's key has the hints; with anything in the others, it has no key."""

SKIPPED = frozenset(
    {
        *("__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__", "__builtins__"),
        *("__loader__", "__spec__", "__file__", "__cached__", "__name__", "__package__", "__path__", "__slots__"),
        *("__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__abstractmethods__"),
        *("__dataclass_params__", "__dataclass_fields__", "_abc_impl", "__annotate__", "__annotations_cache__"),
    }
)
"""Names in a module or class that decide nothing of what its functions do."""


class UnnamedError(Exception):
    """A value has no name that another process would give it."""


@functools.cache
def code_digest(code: types.CodeType) -> str:
    """What a code object does, wherever it stands: neither its file nor its lines are in it."""
    digest = hashlib.sha256()
    _add_code(code, digest)
    return digest.hexdigest()[:32]


def _add_code(code: types.CodeType, digest: Any) -> None:
    shape = (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_name,
    )
    digest.update(repr(shape).encode())
    digest.update(code.co_code)
    digest.update(getattr(code, "co_exceptiontable", b""))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(constant, digest)
        else:
            digest.update(_constant(constant).encode())


def _constant(value: Any) -> str:
    # The order of a set of strings differs from process to process.
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def name_of(value: Any, within: tuple[int, ...] = ()) -> str:
    """The name of a value.

    :raises UnnamedError: it has none.
    """
    kind = type(value)
    if kind in _SCALARS:
        return f"{kind.__name__} {value!r}"
    if id(value) in within:
        # A function that calls itself closes over itself, and a class's methods over the class.
        return f"outer {within.index(id(value))}"
    if len(within) > _DEEPEST:
        raise UnnamedError(f"a {kind.__name__} nested too deeply")
    within = (*within, id(value))
    if isinstance(value, types.FunctionType):
        return function_name(value, within)
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return class_name(value, within)
    if isinstance(value, _BUILTINS) or kind.__name__ in _NATIVE:
        return f"{kind.__name__} {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    if (inner := wrapped(value)) is not None:
        return f"{kind.__name__}({', '.join(name_of(part, within) for part in inner)})"
    if isinstance(value, (tuple, list, set, frozenset, dict, types.MappingProxyType)):
        return _container_name(value, within)
    if isinstance(value, enum.Enum):
        return f"{class_name(kind, within)}.{value.name}"
    if (plain := _plain_name(value)) is not None:
        return plain
    return _instance_name(value, within)


def shallow_name(value: Any) -> str:
    """The name of a value with functions that never ran: where they stand tells them from others.

    :raises UnnamedError: it has none.
    """
    if isinstance(value, types.FunctionType):
        value = listened_to(value) or value
        return f"function {value.__module__}.{value.__qualname__}"
    if (inner := wrapped(value)) is not None:
        return f"{type(value).__name__}({', '.join(map(shallow_name, inner))})"
    return name_of(value)


def wrapped(value: Any) -> tuple[Any, ...] | None:
    """What a wrapper of functions wraps, with what else decides its work; None for what is no wrapper."""
    kind = type(value)
    if (attributes := _WRAPPERS.get((kind.__module__, kind.__qualname__))) is not None:
        return tuple(getattr(value, attribute) for attribute in attributes)
    if kind in (staticmethod, classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if kind in (functools.partial, functools.partialmethod):
        return (value.func, value.args, value.keywords)
    if kind is functools.cached_property:
        return (value.func,)
    if kind is functools._lru_cache_wrapper:
        return (value.__wrapped__,)
    if kind is types.MethodType:
        return (value.__self__, value.__func__)
    return None


def _container_name(value: Any, within: tuple[int, ...]) -> str:
    kind = type(value)
    if kind in (tuple, list, set, frozenset, dict, types.MappingProxyType):
        outer = kind.__name__
    else:
        outer = class_name(kind, within)  # a named tuple, a defaultdict
    if isinstance(value, (dict, types.MappingProxyType)):
        items = [f"{name_of(k, within)}: {name_of(v, within)}" for k, v in value.items()]
        # Registries are filled in the order of imports, which differs from program to program.
        return f"{outer}{{{', '.join(sorted(items))}}}"
    names = [name_of(item, within) for item in value]
    return f"{outer}[{', '.join(sorted(names) if isinstance(value, (set, frozenset)) else names)}]"


def _plain_name(value: Any) -> str | None:
    """The name of what is named without a look at its parts; None for anything else."""
    kind = type(value)
    if kind.__module__.partition(".")[0] in _PLAIN:
        return _by_repr(value)
    if isinstance(value, logging.Logger):
        return f"logger {value.name}"
    if kind is threading.local and any(find(*place) is value for place in THREADS):
        return "what a thread keeps"
    return None


def _by_repr(value: Any) -> str:
    text = repr(value)
    if _ADDRESS in text or len(text) > _LONGEST:
        raise UnnamedError(f"a {type(value).__module__}.{type(value).__qualname__}")
    return f"{type(value).__name__} {text}"


def inner_parts(value: Any) -> Iterable[Any]:
    """What :func:`name_of` looks into to name a value. Modules and classes have none: they are namespaces."""
    if isinstance(value, types.FunctionType):
        if (original := listened_to(value)) is not None:
            return (original,)
        return (*contents(value), value.__defaults__, value.__kwdefaults__)
    if isinstance(value, (types.ModuleType, type, *_BUILTINS)) or type(value).__name__ in _NATIVE:
        return ()
    if (some := wrapped(value)) is not None:
        return some
    if isinstance(value, (dict, types.MappingProxyType)):
        return (*value.keys(), *value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return value
    return vars(value).values() if has_state(value) else ()


def has_state(value: Any) -> bool:
    """Whether a value is named by its attributes."""
    if (
        isinstance(value, enum.Enum)
        or type(value) in _SCALARS
        or not isinstance(getattr(value, "__dict__", None), dict)
    ):
        return False
    return type(value).__module__.partition(".")[0] not in (*_PLAIN, "logging", "_thread")


def _instance_name(value: Any, within: tuple[int, ...]) -> str:
    kind = type(value)
    state = getattr(value, "__dict__", None)
    if not isinstance(state, dict):
        if "<" in (text := repr(value)):
            raise UnnamedError(f"a {kind.__module__}.{kind.__qualname__}")
        return f"{class_name(kind, within)} {text}"
    slots = [getattr(base, "__slots__", None) for base in kind.__mro__]
    if any(isinstance(names, (list, tuple)) and names for names in slots):
        raise UnnamedError(f"a {kind.__module__}.{kind.__qualname__}, with slots")
    return f"{class_name(kind, within)} {_container_name(state, within)}"


def class_name(value: type, within: tuple[int, ...] = ()) -> str:
    """A class by its module and qualified name, or, where another may have the same, by all that is in it.

    :raises UnnamedError: something in it has no name.
    """
    module, name = value.__module__, value.__qualname__
    if find(module, name) is value:
        return f"class {module}.{name}"
    bases = ", ".join(name_of(base, within) for base in value.__bases__)
    content = {key: item for key, item in vars(value).items() if key not in SKIPPED}
    return f"class {module}.{name}({bases}) {_container_name(content, within)}"


def find(module: str, qualname: str) -> Any:
    """What a module has under a qualified name; None where it has nothing, or is not loaded."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a module may import on demand.
        found = getattr(found, "__dict__", {}).get(part)
    return found


def function_name(function: types.FunctionType, within: tuple[int, ...] = ()) -> str:
    """A function by its code, its defaults and what it closes over.

    :raises UnnamedError: one of these has no name.
    """
    if (original := listened_to(function)) is not None:
        return function_name(original, within)
    parts = [f"function {function.__module__}.{function.__qualname__} {code_digest(function.__code__)}"]
    if function.__defaults__:
        parts.append(name_of(function.__defaults__, within))
    if function.__kwdefaults__:
        parts.append(name_of(function.__kwdefaults__, within))
    parts += [name_of(content, within) for content in contents(function)]
    return " ".join(parts)


def listened_to(function: types.FunctionType) -> types.FunctionType | None:
    """The function of FlyDSL's behind one with which this project listens to it; None for any other."""
    # functools.wraps gives it the other's module as its own.
    module = str(function.__globals__.get("__name__"))
    if not module.startswith(_OWN) or module.startswith(_SOURCES):
        return None
    original = getattr(function, "__wrapped__", None)
    return original if isinstance(original, types.FunctionType) else None


def contents(function: types.FunctionType) -> Iterator[Any]:
    """What a function closes over."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
