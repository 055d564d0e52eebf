"""What a source finds in its environment: the findings that ``doctor`` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    ``status``: ``missing`` means that ``build`` cannot work without it, ``warning`` that something may surprise;
    ``advice`` says what to do, empty where there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""
