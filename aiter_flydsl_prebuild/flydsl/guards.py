"""Guards: what a trace ran and read besides its arguments, and whether this process still has the same.

A guard is a namespace (a module, or a class in one) and, for each name in it that the trace can have looked up, a
digest of what it named when the build traced. A process compares them all once; from then on it compares identities,
and the values of what can change in place.
"""

from __future__ import annotations

import hashlib
import operator
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from .names import SKIPPED, UnnamedError, find, has_state, inner_parts, name_of, shallow_name, wrapped

FLYDSL = "flydsl."
"""Modules whose content follows from the FlyDSL that is installed, as long as nobody has loaded them."""

Recorded = Mapping[str, Mapping[str, str]]
"""Namespace -> name -> what it named: a digest, or for a module its name after ``=``."""


SHALLOW = "~"


def digest(value: Any, shallow: bool = False) -> str:
    """What a guard holds of a value.

    :param shallow: no function in it ran, so that none need be told from another version of itself.
    :raises UnnamedError: the value has no name that holds in another process.
    """
    if isinstance(value, types.ModuleType):
        return f"={value.__name__}"
    name = shallow_name(value) if shallow else name_of(value)
    return f"{SHALLOW if shallow else ''}{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def path_of(space: types.ModuleType | type) -> str:
    """How a guard names a module or class."""
    return f"{space.__module__}:{space.__qualname__}" if isinstance(space, type) else space.__name__


def space_of(path: str) -> Any:
    """The module or class of a path; None where this process has not loaded it."""
    module, _, name = path.partition(":")
    return find(module, name) if name else sys.modules.get(module)


class Guards:
    """The guards of some calls in this process.

    What holds what under which name is kept in flat lists, which one loop in C walks: some three thousand names take a
    fifth of a millisecond.

    :param recorded: what the build found.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._given_up: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._left: dict[str, Mapping[str, str]] = dict(self._recorded)
        # In holders[i], keys[i] leads to values[i]: a module's or class's names, and what is in lists and dicts.
        self._holders: list[Any] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._sized: list[Any] = []
        self._sizes: list[int] = []
        self._sets: list[tuple[set[Any], frozenset[Any]]] = []
        self._bases: list[tuple[type, tuple[type, ...]]] = []
        self._absent: list[tuple[Any, str, str]] = []
        self._functions: dict[int, types.FunctionType] = {}
        self._attributes: list[tuple[operator.attrgetter[Any], list[Any]]] = [
            (get, []) for get in map(operator.attrgetter, ("__code__", "__defaults__", "__kwdefaults__"))
        ]
        self._cells: list[Any] = []
        self._closed: list[Any] = []
        self._kept: set[int] = set()

    def differs(self) -> str | None:
        """The first thing found that is not as it was when the build traced; None where all is.

        What differed once is not looked at again: a process that patches goes FlyDSL's way from then on.
        """
        missing = None if self._given_up else self._compare()
        if self._given_up is None and missing is None and self.changed() is not None:
            # Another object may be the same thing, as where this project has begun to listen to a function.
            self._forget()
            missing = self._compare()
        return self._given_up or missing

    def keep(self, value: Any) -> None:
        """Remember what a value is made of, as far as that can change without a name's being bound anew."""
        for part in parts(value, self._kept):
            if isinstance(part, types.FunctionType):
                self._functions[id(part)] = part
                for get, values in self._attributes:
                    values.append(get(part))
                cells = [cell for cell in part.__closure__ or () if _filled(cell)]
                self._cells += cells
                self._closed += map(_inside, cells)
            elif isinstance(part, (types.ModuleType, type)):
                continue
            elif type(part) is set:
                self._sets.append((part, frozenset(part)))
            elif isinstance(part, (dict, list)) or (wrapped(part) is None and has_state(part)):
                live = part if isinstance(part, (dict, list)) else vars(part)
                self._sized.append(live)
                self._sizes.append(len(live))
                for key, content in live.items() if isinstance(live, dict) else enumerate(live):
                    self._hold(live, key, content)

    def _hold(self, holder: Any, key: Any, value: Any) -> None:
        self._holders.append(holder)
        self._keys.append(key)
        self._values.append(value)

    def _compare(self) -> str | None:
        """Compare by value what was not compared yet, and remember it by identity; returns what cannot be yet."""
        for path, names in list(self._left.items()):
            space = space_of(path)
            if space is None:
                module = path.partition(":")[0]
                if module in sys.modules or not module.startswith(FLYDSL):
                    return f"{path} is not there"
                continue
            self._given_up = self._given_up or self._compare_space(path, space, names)
            del self._left[path]
        return None

    def _compare_space(self, path: str, space: Any, names: Mapping[str, str]) -> str | None:
        content = vars(space)
        for name, expected in names.items():
            try:
                if name == BASES:
                    same = digest(space.__bases__) == expected
                elif name == NAMES:
                    same = digest(own_names(space)) == expected
                elif expected == ABSENT:
                    same = name not in content
                elif name in content:
                    same = digest(content[name], expected.startswith(SHALLOW)) == expected
                else:
                    # A submodule that nothing has asked for yet.
                    same = expected.startswith(f"={FLYDSL}")
            except UnnamedError as error:
                return f"{name} of {path} is {error}"
            if not same:
                return f"{name} of {path} is another"
        self._remember(space, content, names)
        return None

    def _remember(self, space: Any, content: Any, names: Mapping[str, str]) -> None:
        for name, expected in names.items():
            if name == BASES:
                self._bases.append((space, space.__bases__))
            elif name == NAMES:
                self._sized.append(content)
                self._sizes.append(len(content))
            elif name not in content:
                self._absent.append((content, name, expected))
            else:
                self._hold(content, name, content[name])
                if not expected.startswith(SHALLOW):
                    self.keep(content[name])

    def changed(self) -> str | None:
        """The first thing that is not the same object as when it was remembered; None where all are."""
        same = operator.is_
        try:
            if not all(map(same, map(operator.getitem, self._holders, self._keys), self._values)):
                return self._which()
        except LookupError:
            return self._which()
        if not all(map(operator.eq, map(len, self._sized), self._sizes)):
            return "a list or dict has grown"
        for attribute, kept in self._attributes:
            if not all(map(same, map(attribute, self._functions.values()), kept)):
                return "a function is another"
        if not all(map(same, map(_inside, self._cells), self._closed)):
            return "a closure is another"
        for live, held in self._sets:
            if live != held:
                return "a set holds something else"
        for space, bases in self._bases:
            if space.__bases__ is not bases:
                return f"the bases of {path_of(space)} are others"
        for content, name, expected in self._absent:
            if name in content and (expected == ABSENT or digest(content[name]) != expected):
                return f"{name} of {content.get('__name__')} is there now"
        return None

    def _which(self) -> str:
        """What the first loop of :meth:`changed` stumbled over."""
        for holder, key, value in zip(self._holders, self._keys, self._values, strict=True):
            try:
                if holder[key] is value:
                    continue
                what = "is another"
            except LookupError:
                what = "is gone"
            where = holder.get("__qualname__") or holder.get("__name__") if hasattr(holder, "get") else None
            return f"{key} of {where or f'a {type(holder).__name__}'} {what}"
        return "nothing"


BASES, NAMES = "(bases)", "(names)"
"""What a guard of a class has beside the names in it: its bases, and which names there are, since a new one would hide
a base's."""

ABSENT = ""
"""Where a module has no such name, so that a built-in is meant."""


def own_names(space: type) -> tuple[str, ...]:
    """The names in a class that decide something, sorted."""
    return tuple(sorted(name for name in vars(space) if name not in SKIPPED))


_inside = operator.attrgetter("cell_contents")


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def parts(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """A value and what its name is made of: what functions close over, what wrappers wrap, what containers hold.

    Modules and classes end it: they are namespaces, with guards of their own.
    """
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    for part in inner_parts(value):
        yield from parts(part, seen)


_STATE = {
    # Classes that were made of others, by what they were made of (expr/typing.py).
    "flydsl.expr.typing:Pointer": {"_alias_cache"},
    "flydsl.expr.typing:Vector": {"_alias_cache"},
    # Whether the log was set up (utils/logger.py).
    "flydsl.utils.logger": {"_initialized", "_logger"},
}
"""What FlyDSL 0.5.0 remembers of earlier calls in its modules and classes, and which changes no later one."""


def namespace_names(space: Any, wanted: set[str]) -> list[str]:
    """Which names of a namespace a trace can have looked up.

    :param wanted: the words in the code that ran. Operators call a class's dunder methods without naming them.
    """
    dunders = isinstance(space, type)
    state = _STATE.get(path_of(space), ())
    return [
        name
        for name in list(vars(space))
        if name not in SKIPPED
        and name not in state
        and (name in wanted or (dunders and name.startswith("__") and name.endswith("__")))
    ]
