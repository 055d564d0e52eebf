"""Seeding at the start of a process, for servers whose code cannot be changed.

* :func:`vllm_plugin` is an entry point of the group ``vllm.general_plugins``: vLLM calls it in each of its processes.
* :func:`at_startup` is called by a start-up file in site-packages, which ``aiter-flydsl-prebuild startup --install``
  puts there: every Python process of that environment runs it. Where nothing is to do (no GPU, or all is in place) that
  takes a fraction of a millisecond, since it imports nothing.

All may run many times, in any process, and after a fork.
"""

from __future__ import annotations

import os

from .discovery import find_packs, folder_in_use, marker_path, marker_text
from .target import target_arches


def at_startup() -> None:
    """Seed unless the marker says that it was done. Never raises outside strict mode."""
    if os.environ.get("AITER_FLYDSL_PREBUILD", "on") == "off":
        return
    try:
        arches = target_arches()
        packs = find_packs() if arches else []
        if not packs:
            return
        with open(marker_path(folder_in_use()), encoding="utf-8") as file:
            if file.read() == marker_text(packs, arches):
                return
    except (OSError, ValueError):
        pass
    from .seeding import seed

    seed()


def vllm_plugin() -> None:
    """Seed in a process of vLLM, before it loads a model."""
    from .seeding import seed

    seed()
