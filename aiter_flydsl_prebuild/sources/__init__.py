"""Where kernels come from. Each source compiles by making the call that the server makes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import InputError
from ..needs import MODULES, MissingError

if TYPE_CHECKING:
    from ..model.job import Options
    from .base import Remember, Source

_SOURCES = {
    "reference": "aiter_flydsl_prebuild.sources.reference.source:ReferenceSource",
    "aiter": "aiter_flydsl_prebuild.sources.aiter.source:AiterSource",
}

SOURCES = tuple(_SOURCES)
"""The sources of this project."""


def load_source(name: str, options: Options | None = None, remember: Remember | None = None) -> Source:
    """One of :data:`SOURCES`, or any other as ``package.module:Class``, a :class:`.base.Source`.

    :param remember: keeps what takes the source long to find out; by default it asks each time.
    :raises InputError: there is none of that name, it cannot be imported, or it does not know the options.
    :raises MissingError: it needs a library that is not installed, and that an extra of this project brings.
    """
    from ..model.job import NO_OPTIONS
    from .base import Source, ask_again

    module, separator, attribute = _SOURCES.get(name, name).partition(":")
    if not separator:
        raise InputError(f"source {name!r} is not known; write one of {', '.join(SOURCES)}, or package.module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not (isinstance(found, type) and issubclass(found, Source)):
            raise InputError(f"source {name!r} is not a class derived from {Source.__module__}.Source")
        source = found(name, options or NO_OPTIONS, remember or ask_again)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in MODULES:
            raise MissingError(f"source {name!r}", [missing]) from None
        raise InputError(f"source {name!r} cannot be loaded: {error}") from error
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(f"source {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    source.check_options()
    return source
