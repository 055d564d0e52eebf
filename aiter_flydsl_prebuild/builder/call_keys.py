"""Recording, while a job compiles, which call led to which artifact, and what the trace in between ran and read.

FlyDSL 0.5 names an artifact by the module that a call's trace gives. Here the call's own key is noted beside it
(:mod:`aiter_flydsl_prebuild.flydsl.call_key`), with guards for everything else that the outcome depends on: every
function that ran while tracing is found again from the names of a module or class, and each name that its code can have
looked up is on record with what it named. A call whose trace read what cannot be put on record is left out, with the
reason; a server then traces it.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import PrebuildError
from ..flydsl import lookup
from ..flydsl.call_key import UnnamedCallError, call_of
from ..flydsl.guards import (
    ABSENT,
    BASES,
    NAMES,
    SHALLOW,
    Guards,
    digest,
    namespace_names,
    own_names,
    parts,
    path_of,
    space_of,
)
from ..flydsl.names import UnnamedError, find, listened_to

# What is taken to be the same wherever a pack fits: the interpreter's own library, torch and numpy, and what imports
# modules. docs/design.md says why.
_TAKEN_AS_GIVEN = frozenset(
    {*sys.stdlib_module_names, "torch", "numpy", "typing_extensions", "_distutils_hack", "setuptools", "pkg_resources"}
)
_OWN = f"{__name__.partition('.')[0]}."
_OWN_SOURCES = f"{_OWN}sources."

# Environment variables that are in a call's key, or that say where FlyDSL keeps things and not what a kernel is.
_KEYED_OR_HARMLESS = frozenset(
    {
        *("FLYDSL_COMPILE_OPT_LEVEL", "FLYDSL_COMPILE_BACKEND", "FLYDSL_COMPILE_LLVM_DIR", "FLYDSL_EXTRA_SOURCE_DIRS"),
        *("FLYDSL_GPU_ARCH", "HSA_OVERRIDE_GFX_VERSION", "ARCH", "COMPILE_ONLY"),
        *("FLYDSL_RUNTIME_CACHE_DIR", "FLYDSL_RUNTIME_ENABLE_CACHE", "FLYDSL_RUNTIME_RUN_ONLY", "FLYDSL_RUNTIME_KIND"),
    }
)


@dataclass(frozen=True)
class RecordedCall:
    """A call: its launcher and key, the artifact that FlyDSL gave it, and what that depended on.

    ``guards`` maps a namespace to its names and what they named, ``environment`` the variables that the trace read to
    their values. ``problem`` says why a server cannot look the call up; key and guards are then empty.
    """

    launcher: str
    key: str
    artifact_key: str
    guards: dict[str, dict[str, str]] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    problem: str | None = None


@dataclass
class _Trace:
    """What one trace did: the code that ran, by module, the variables it read, the files it opened."""

    code: dict[types.CodeType, str] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)


class ContradictionError(PrebuildError):
    """Two recorded calls cannot be in one table."""


def make_table(calls: Iterable[RecordedCall], abi: str) -> dict[str, Any]:
    """The look-up table of some calls, as :class:`aiter_flydsl_prebuild.flydsl.lookup.Table` reads it.

    :param abi: the interpreter's cache tag: code is compared as it is compiled.
    :raises ContradictionError: one key leads to two artifacts, or one name stood for two things.
    """
    guards: dict[str, dict[str, str]] = {}
    launchers: dict[str, dict[str, Any]] = {}
    for call in calls:
        if call.problem is not None:
            continue
        launcher = launchers.setdefault(call.launcher, {"calls": {}, "environment": {}, "guards": set()})
        if launcher["calls"].setdefault(call.key, call.artifact_key) != call.artifact_key:
            raise ContradictionError(
                f"{call.launcher}: one call led to two artifacts, and its key does not tell them apart"
            )
        for name, value in call.environment.items():
            if launcher["environment"].setdefault(name, value) != value:
                raise ContradictionError(f"{call.launcher}: {name} was set in two ways")
        launcher["guards"] |= call.guards.keys()
        for path, names in call.guards.items():
            _merge(guards.setdefault(path, {}), names, path)
    described = {name: {**one, "guards": sorted(one["guards"])} for name, one in sorted(launchers.items())}
    return {"abi": abi, "guards": guards, "launchers": described}


def _merge(into: dict[str, str], names: dict[str, str], path: str) -> None:
    for name, found in names.items():
        known = into.setdefault(name, found)
        if known == found or found.startswith(SHALLOW):
            continue
        # What idled in one trace may have run in another: the sharper of both holds for both.
        if not known.startswith(SHALLOW):
            raise ContradictionError(f"{name} of {path} was one thing when one kernel was traced and another later")
        into[name] = found


@contextmanager
def recorded_calls() -> Iterator[list[RecordedCall]]:
    """The calls that go through FlyDSL 0.5 meanwhile; stays empty under other releases."""
    import flydsl.compiler.jit_function as jit

    calls: list[RecordedCall] = []
    if not lookup.known(jit) and _tracing.original is None:
        yield calls
        return
    _tracing.install(jit)
    before, _tracing.calls = _tracing.calls, calls
    try:
        yield calls
    finally:
        _tracing.calls = before


def _recorded(
    launcher: str, key: str, artifact_key: str, roots: tuple[Any, ...], trace: _Trace, problem: str | None
) -> RecordedCall:
    if problem is None:
        try:
            return RecordedCall(launcher, key, artifact_key, _guards(launcher, trace.code, roots), _environment(trace))
        except UnnamedError as error:
            problem = str(error)
    return RecordedCall(launcher, "", artifact_key, problem=problem)


def _environment(trace: _Trace) -> dict[str, str | None]:
    """The variables that a server must have as they were.

    :raises UnnamedError: the trace read a file, which no guard covers.
    """
    sources = {module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    read = sorted(path for path in trace.opened if path not in sources and not path.endswith((".py", ".pyc", ".so")))
    if read:
        raise UnnamedError(f"its trace reads the file {read[0]}")
    return {name: value for name, value in trace.environment.items() if name not in _KEYED_OR_HARMLESS}


class _Tracing:
    """Listening to the part of a call that decides its artifact: the trace, the preparation, the key."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] | None = None
        self.original: Any = None
        self._trace: _Trace | None = None
        self._known: dict[int, types.CodeType] = {}
        self._importing = 0
        self._inside = 0

    def install(self, jit: Any) -> None:
        """Listen from now on, as long as the process lives: what is the same function stays the same object."""
        if self.original is not None:
            return
        self.original = jit.JitFunction._compile_or_execute
        jit.JitFunction._compile_or_execute = self._recorder(jit, self.original)
        for owner, name in ((jit.JitFunction, "_trace"), (jit.MlirCompiler, "prepare"), (jit, "_artifact_cache_key")):
            setattr(owner, name, self._listener(vars(owner)[name]))
        environment = type(os.environ)
        environment.__getitem__ = self._getter(environment.__getitem__)  # type: ignore[method-assign]
        sys.addaudithook(self._audit)

    def _recorder(self, jit: Any, original: Any) -> Any:
        @functools.wraps(original)
        def recording(launcher: Any, args: Any, kwargs: Any, **options: Any) -> Any:
            calls = self.calls
            if calls is None or jit.ir.Context.current is not None:
                return original(launcher, args, kwargs, **options)
            problem, key, roots = None, "", ()
            try:
                call = call_of(launcher, args, kwargs)
                key, roots = call.key, (launcher, jit.MlirCompiler, *call.values)
            except (UnnamedCallError, UnnamedError) as error:
                problem = str(error)
            trace = self._trace = _Trace()
            self._known = {}
            try:
                result = original(launcher, args, kwargs, **options)
            finally:
                self._trace = None
            if trace.code:
                name = lookup.launcher_id(launcher)
                calls.append(_recorded(name, key, launcher._last_compiled[0], roots, trace, problem))
            return result

        return recording

    def _getter(self, get: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
        def listening(variables: Any, name: str) -> str:
            if self._inside and self._trace is not None:
                try:
                    value = get(variables, name)
                except KeyError:
                    self._trace.environment[name] = None
                    raise
                self._trace.environment[name] = value
                return value
            return get(variables, name)

        return listening

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not self._inside or self._trace is None or self._importing:
            return
        if isinstance(args[0], (str, bytes)):
            self._trace.opened.add(os.fsdecode(args[0]))

    def _listener(self, original: Any) -> Any:
        function = original.__func__ if isinstance(original, classmethod) else original

        @functools.wraps(function)
        def listening(*args: Any, **kwargs: Any) -> Any:
            if self._trace is None:
                return function(*args, **kwargs)
            before = sys.gettrace()
            self._inside += 1
            # A tracer hears of every Python function that is entered, a profiler of every return and built-in as well.
            sys.settrace(self._entered)
            try:
                return function(*args, **kwargs)
            finally:
                sys.settrace(before)
                self._inside -= 1

        return classmethod(listening) if isinstance(original, classmethod) else listening

    def _entered(self, frame: types.FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        trace = self._trace
        if id(code) in self._known or trace is None or self._importing:
            return None
        if code.co_name == "<module>":
            # What a module does when it is loaded follows from its source, not from this trace.
            self._importing += 1
            frame.f_trace_lines = False
            return self._loading
        module = frame.f_globals.get("__name__") or ""
        # inspect.getmodule asks every module of the process for its file, also those that answer by a function.
        asked = frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "inspect"
        if _in_scope(module) and code.co_flags & inspect.CO_OPTIMIZED and not asked:
            trace.code[code] = module
        # By its place: hashing code takes longer than running most of it.
        self._known[id(code)] = code
        return None

    def _loading(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "return":
            self._importing -= 1
        return self._loading


_tracing = _Tracing()


def _in_scope(module: str) -> bool:
    if module.startswith(_OWN):
        return module.startswith(_OWN_SOURCES)
    # collections.namedtuple makes modules of its own.
    return bool(module) and module.partition(".")[0] not in _TAKEN_AS_GIVEN and not module.startswith("namedtuple_")


# ---- guards ----------------------------------------------------------------------------------------------------------


class _Earlier:
    """The guards of earlier calls of a launcher, which hold for another one that ran no other code.

    ``code`` is what ran beside the launcher's own functions.
    """

    def __init__(self, survey: _Survey, code: dict[types.CodeType, str], found: dict[str, dict[str, str]]) -> None:
        self.code = code
        self.found = found
        self._survey = survey
        self._watch = Guards(found)

    def holds(self) -> bool:
        """Whether all that the guards tell is still so."""
        return self._watch.differs() is None

    def covers(self, code: dict[types.CodeType, str], own: _Survey) -> bool:
        """Whether the guards are those of this code as well."""
        if not all(one in own.found or one in self.code for one in code):
            return False
        return self._survey.has_visited(own) and self._survey.has_read(own.found & code.keys(), code)


_earlier: dict[str, _Earlier] = {}


def _guards(launcher: str, code: dict[types.CodeType, str], roots: tuple[Any, ...]) -> dict[str, dict[str, str]]:
    """:func:`guards_of`, or those of earlier calls of the launcher: a worker compiles many kernels of one."""
    own = _Survey({})
    for root in roots:
        own.follow(root)
    earlier = _earlier.get(launcher)
    if earlier is not None and earlier.holds():
        if earlier.covers(code, own):
            return earlier.found
        code = {**earlier.code, **code}
    survey, found = guards_of(code, roots)
    beside = {one: module for one, module in code.items() if one not in own.found}
    _earlier[launcher] = _Earlier(survey, beside, found)
    return found


def guards_of(code: dict[types.CodeType, str], roots: tuple[Any, ...]) -> tuple[_Survey, dict[str, dict[str, str]]]:
    """Guards for all that this code can have looked up, and the survey that found them.

    :param code: what ran, with the module of each.
    :param roots: the values that the call's key names: the launcher's function, classes among its arguments.
    :raises UnnamedError: some of the code cannot be found again, or what a name stands for has no name.
    """
    survey = _Survey(code)
    for module in dict.fromkeys(code.values()):
        if module in sys.modules:
            survey.visit(sys.modules[module])
    for one, module in code.items():
        # The class of a method; Python 3.10 does not tell.
        owner = find(module, getattr(one, "co_qualname", "").rpartition(".")[0])
        if isinstance(owner, type):
            survey.visit(owner)
    for root in roots:
        survey.follow(root)
    survey.finish()
    lost = [f"{module}.{c.co_name}" for c, module in code.items() if c not in survey.found]
    if lost:
        raise UnnamedError(f"its trace ran {lost[0]}, which cannot be found again")
    return survey, survey.guards()


class _Survey:
    """The namespaces that code can reach through the words in it, and the functions that were found there."""

    def __init__(self, code: dict[types.CodeType, str]) -> None:
        self.found: set[types.CodeType] = set()
        self._ran = code.keys()
        self._words: set[str] = set()
        self._globals: dict[str, set[str]] = {}
        for one, module in code.items():
            _read(one, self._globals.setdefault(module, set()), self._words)
            # A function may be called from native code, which names it nowhere.
            self._words.add(one.co_name)
        self._spaces: dict[int, tuple[Any, set[str]]] = {}
        self._seen: set[int] = set()
        self._waiting: list[Any] = []

    def has_visited(self, other: _Survey) -> bool:
        """Whether the namespaces of another survey are among this one's."""
        return other._spaces.keys() <= self._spaces.keys()

    def has_read(self, some: set[types.CodeType], modules: Mapping[types.CodeType, str]) -> bool:
        """Whether all words of this code were among those that the survey followed."""
        for one in some:
            own, words = _words_of(one)
            if not (own <= self._globals.get(modules[one], set()) and words | {one.co_name} <= self._words):
                return False
        return True

    def visit(self, space: Any) -> None:
        """Take a module or class in, and what its names stand for."""
        if id(space) in self._spaces:
            return
        wanted = self._words | self._globals.get(getattr(space, "__name__", ""), set())
        names = namespace_names(space, wanted)
        self._spaces[id(space)] = (space, set(names))
        self._waiting += [vars(space)[name] for name in names]
        if isinstance(space, type) and (module := sys.modules.get(space.__module__)) is not None:
            self.visit(module)
            self._spaces[id(module)][1].update({space.__qualname__.partition(".")[0]} & vars(module).keys())

    def follow(self, value: Any) -> None:
        """Take in what a value is made of."""
        for part in parts(value, self._seen):
            if isinstance(part, types.FunctionType):
                self._find((listened_to(part) or part).__code__)
            elif isinstance(part, types.ModuleType):
                if _in_scope(part.__name__):
                    self.visit(part)
            else:
                kind = part if isinstance(part, type) else type(part)
                for base in (*kind.__mro__, type(kind)):
                    if _in_scope(base.__module__):
                        self.visit(base)

    def finish(self) -> None:
        """Follow all that was taken in."""
        while self._waiting:
            self.follow(self._waiting.pop())

    def _find(self, code: types.CodeType) -> None:
        self.found.add(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._find(constant)

    def _idle(self, value: Any) -> bool:
        """Whether a value is of functions, and none of them ran."""
        functions = [part for part in parts(value) if isinstance(part, types.FunctionType)]
        return bool(functions) and not any((listened_to(one) or one).__code__ in self._ran for one in functions)

    def guards(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for space, names in self._spaces.values():
            content = vars(space)
            if space_of(path_of(space)) is not space:
                # Not to be found under its name: wherever it is named, it is named by its content.
                continue
            try:
                described = {
                    name: digest(content[name], self._idle(content[name])) for name in sorted(names) if name in content
                }
            except UnnamedError as error:
                raise UnnamedError(f"its trace can read {path_of(space)}, which holds {error}") from error
            if isinstance(space, type):
                described |= {BASES: digest(space.__bases__), NAMES: digest(own_names(space))}
            else:
                meant = self._globals.get(space.__name__, set()) - content.keys()
                described |= {name: ABSENT for name in sorted(meant) if hasattr(builtins, name)}
            if described:
                found[path_of(space)] = described
        return found


@functools.cache
def _words_of(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The words that code, and code in it, looks up as globals, and those that it can look up in other ways."""
    own: set[str] = set()
    words: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            own.add(str(instruction.argval))
    words.update(name for name in code.co_names if name not in own)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_own, inner_words = _words_of(constant)
            own |= inner_own
            words |= inner_words
        elif isinstance(constant, str) and constant.isidentifier():
            words.add(constant)
        elif isinstance(constant, tuple):
            words.update(item for item in constant if isinstance(item, str) and item.isidentifier())
    return frozenset(own), frozenset(words)


def _read(code: types.CodeType, own: set[str], words: set[str]) -> None:
    found_own, found_words = _words_of(code)
    own |= found_own
    words |= found_words
