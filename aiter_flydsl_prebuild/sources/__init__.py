"""Where kernels come from. Each source compiles by making the call that the server makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from .base import Source

SOURCES = ("reference",)


def load_source(name: str) -> Source:
    """The source of that name.

    :raises InputError: there is none of that name.
    """
    if name == "reference":
        from .reference.source import ReferenceSource

        return ReferenceSource()
    raise InputError(f"source {name!r} is not known; known are: {', '.join(SOURCES)}")
