"""What a seeding leaves beside a pack's stamp for FlyDSL's process: the look-up table and the library of launchers."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping

from ..pack import Pack, PackError
from .hook import LAUNCHERS_SUFFIX, LOOKUP_SUFFIX, PLACES_SUFFIX

STAMP_SUFFIX = ".json"


def base_of(stamp: str) -> str:
    """The path of a stamp, without its suffix: what the files beside it begin with."""
    return stamp.removesuffix(STAMP_SUFFIX)


def files_beside(pack: Pack, held: Mapping[int, bytes], stamp: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of each file, as far as this interpreter and machine can use it.

    :param held: the payloads of the pack's table and library.
    :raises PackError: a payload is not what its manifest says.
    """
    base = base_of(stamp)
    lookup, launchers = pack.lookup, pack.launchers
    if lookup is not None and lookup.abi == sys.implementation.cache_tag:
        yield base + LOOKUP_SUFFIX, held[lookup.payload]
    if launchers is not None and sys.platform == "linux" and launchers.machine == os.uname().machine:
        try:
            image = held[launchers.payload].decode("utf-8").encode("latin-1")
        except UnicodeError:
            image = b""
        if hashlib.sha256(image).hexdigest() != launchers.sha256:
            raise PackError(f"{pack.path}: damaged: its library of launchers does not match its sha256")
        payloads = pack.manifest.payloads
        places = {payloads[artifact].sha256: places for artifact, *places in launchers.functions}
        about = {"sha256": launchers.sha256, "anchor": launchers.anchor, "functions": places}
        # The library last: it is looked for first.
        yield base + PLACES_SUFFIX, json.dumps(about).encode()
        yield base + LAUNCHERS_SUFFIX, image


def why_not(pack: Pack) -> list[str]:
    """Why this process uses no table, or no launchers, of a pack that fits; nothing where it uses both."""
    reasons = []
    if pack.lookup is not None and pack.lookup.abi != sys.implementation.cache_tag:
        reasons.append(f"its look-up table is for {pack.lookup.abi}, this Python is {sys.implementation.cache_tag}")
    if pack.launchers is not None and pack.launchers.machine != os.uname().machine:
        reasons.append(f"its launchers are for {pack.launchers.machine}, this machine is {os.uname().machine}")
    return reasons
