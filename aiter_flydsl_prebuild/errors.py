"""The errors of this project. Each carries one message meant for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PrebuildError(Exception):
    """Base of all errors that this project raises on purpose. ``str(error)`` is the whole message.

    The command line ends with exit status 1, except for :class:`InputError`: 1 means that the check failed or that the
    work could not be done here, 2 that the user must give something else.
    """


class InputError(PrebuildError):
    """What the user gave is wrong. The command line ends with exit status 2.

    ``problems`` lists every problem found, one line each: what, where (file, row, column), what to do.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class CheckError(PrebuildError):
    """The work was done and the result is not good enough. The command line ends with exit status 1."""


_NAMED = 3
"""How many words a message names before it counts."""


def few(words: Sequence[str]) -> str:
    """The first of some words, for a message, and how many more there are."""
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} more" if more > 0 else "")
