"""Kinds of settings: how a value is written on the command line and in the hook's table, and how it is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dispatch.rules import RULES
from ..errors import InputError


@dataclass(frozen=True)
class Kind:
    """How a value is written and checked: its ``type``, ``words`` for messages, and what the JSON ``schema`` adds.

    ``check`` takes a value of that type and returns what the field holds; it raises InputError, without a message where
    ``words`` say it all. ``many`` is a list.
    """

    type: type
    words: str
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[Any], Any] = lambda value: value
    many: bool = False

    def from_text(self, text: str) -> Any:
        """One word of the command line.

        :raises InputError: it is not of this kind.
        """
        wrong = f"{text!r} is not {self.words}"
        # int() takes signs, spaces, underscores and other scripts' digits, too.
        if self.type is int and not (text.isascii() and text.isdigit()):
            raise InputError(wrong)
        try:
            return self.check(self.type(text))
        except ValueError:
            raise InputError(wrong) from None
        except InputError as error:
            raise InputError(str(error) or wrong) from None

    def from_table(self, value: Any) -> Any:
        """A value of the table.

        :raises InputError: it is not of this kind; the message goes on after the key's name.
        """
        if not self.many:
            return self._one(value, f"must be {self.words}, is {value!r}")
        wrong = f"must be a list, each {self.words}; is {value!r}"
        if type(value) is not list:
            raise InputError(wrong)
        return tuple(self._one(item, wrong) for item in value)

    def _one(self, value: Any, wrong: str) -> Any:
        if type(value) is not self.type and not (self.type is float and type(value) is int):
            raise InputError(wrong)
        try:
            return self.check(value)
        except InputError as error:
            raise InputError(f"{wrong} ({error})" if str(error) else wrong) from None

    def to_schema(self) -> dict[str, Any]:
        """The JSON schema of a value of the table."""
        names = {str: "string", int: "integer", float: "number", bool: "boolean"}
        one = {"type": names[self.type], **self.schema}
        return {"type": "array", "items": one} if self.many else one


def _least(least: int) -> Callable[[int], int]:
    def check(value: int) -> int:
        if value < least:
            raise InputError("")
        return value

    return check


def _seconds(value: float) -> float:
    if not 0 < value < float("inf"):
        raise InputError("")
    return float(value)


def _tokens(text: str) -> tuple[int, int]:
    from ..dispatch.reach import parse_tokens

    return parse_tokens(text)


def _size(text: str) -> int:
    from .gates import parse_size

    return parse_size(text)


def _known_bad(text: str) -> str:
    from .gates import parse_known_bad

    return parse_known_bad(text)


def _kernels(text: str) -> int | str | None:
    from .execution.facts import parse_kernels

    return parse_kernels(text)


def _rule(text: str) -> str:
    if text not in RULES:
        raise InputError("")
    return text


def _path(text: str) -> Path:
    if not text:
        raise InputError("")
    return Path(text)


def _package(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise InputError(f"{text!r} is not the name of a package")
    return text


TEXT = Kind(str, "a string", {"minLength": 1})
NAMES = Kind(str, "a string", many=True)
COUNT = Kind(int, "a positive whole number", {"minimum": 1}, _least(1))
COUNTS = dataclasses.replace(COUNT, many=True)
WHOLE = Kind(int, "a whole number", {"minimum": 0}, _least(0))
SECONDS = Kind(float, "a positive number of seconds", {"exclusiveMinimum": 0}, _seconds)
FLAG = Kind(bool, "true or false")
FOLDER = Kind(str, "a path", {"minLength": 1}, _path)
TOKENS = Kind(str, "token counts such as 1..8192", {"pattern": r"^([0-9]+\.\.)?[0-9]+$"}, _tokens)
SIZE = Kind(str, "a size such as 20MB", {"pattern": r"^[0-9]+(\.[0-9]+)?\s*(B|kB|KiB|[MGT]i?B)$"}, _size)
RULE = Kind(str, f"one of {', '.join(RULES)}", {"enum": list(RULES)}, _rule)
COMPILERS = Kind(str, "flydsl==VERSION or linker==TEXT", {"pattern": r"^(flydsl|linker)==\S.*$"}, _known_bad, many=True)
KERNELS = Kind(str, "all or a number of kernels, as a string", {"pattern": "^(all|0*[1-9][0-9]*)$"}, _kernels)
PACKAGE = Kind(str, "the name of a package", {"pattern": r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"}, _package)
