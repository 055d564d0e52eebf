"""What a command hands back: :mod:`.main` prints it and derives the exit status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a command found or did.

    ``value`` is what ``--json`` prints; ``show`` prints the same for people. Where it is not ``ok``, the command ends
    with status 1.
    """

    value: Any
    show: Callable[[], None]
    ok: bool = True
