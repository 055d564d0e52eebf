"""Which FlyDSL is installed, read from its metadata: FlyDSL is imported only where it has none.

A FlyDSL is identified by the hashes that its wheel's RECORD holds, not by its version: a rebuilt FlyDSL that calls
itself 0.5.0 is another compiler. ``known_flydsl.json`` lists the identities of the released wheels.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import NamedTuple

from .discovery import flydsl_metadata, locate_flydsl

OWN_KEY = "key:"
"""What the identity of a FlyDSL without a RECORD begins with."""


class Install(NamedTuple):
    """An installed FlyDSL.

    ``identity`` is None where the installation has no usable RECORD (a source build, an editable install).
    ``record`` maps a file's path below ``root`` to its sha256 in hex.
    """

    root: str
    version: str
    abi: str
    identity: str | None
    record: dict[str, str]


def interpreter_abi() -> str:
    """The ABI tag of this interpreter as wheels spell it: ``cp311``, ``cp313t``."""
    flags = getattr(sys, "abiflags", "")
    return f"cp{sys.version_info[0]}{sys.version_info[1]}{'t' if 't' in flags else ''}"


def parse_record(text: str) -> dict[str, str]:
    """Path -> sha256 (hex) of the hashed files of FlyDSL itself: no metadata, no byte code."""
    import base64
    import binascii

    files: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.rsplit(",", 2)
        if len(parts) != 3 or not parts[1].startswith("sha256="):
            continue
        path = parts[0].strip('"')
        if not path.startswith(("flydsl/", "flydsl.libs/")) or path.endswith(".pyc"):
            continue
        try:
            files[path] = base64.urlsafe_b64decode(parts[1][7:] + "==").hex()
        except binascii.Error:
            continue
    return files


def record_digest(files: dict[str, str]) -> str:
    """The identity of a FlyDSL: a digest over its files' paths and hashes, in any order."""
    return hashlib.sha256("\n".join(f"{path} {files[path]}" for path in sorted(files)).encode()).hexdigest()


def read_install(search: list[str] | None = None) -> Install | None:
    """The FlyDSL that ``import flydsl`` would find in this process, or None."""
    found = locate_flydsl(search)
    if found is None:
        return None
    root, info = found
    version = os.path.basename(info)[len("flydsl-") : -len(".dist-info")] if info else ""
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8") as file:
            record = parse_record(file.read())
    except (OSError, UnicodeDecodeError):
        record = {}
    # An editable install has a RECORD that lists none of the package's own files.
    identity = record_digest(record) if "flydsl/__init__.py" in record else None
    return Install(root, version, interpreter_abi(), identity, record)


def ambiguity(install: Install) -> str | None:
    """Why it cannot be told which FlyDSL an installation is: a failed update left another one's metadata behind."""
    names = [os.path.basename(path) for path in flydsl_metadata(install.root)]
    if install.version or len(names) < 2:
        return None
    what = f"{install.root} holds the metadata of several FlyDSLs ({', '.join(sorted(names))})"
    return f"{what}: run 'pip uninstall flydsl' until none is left, and install the one that is wanted"


def imported_install(install: Install) -> Install:
    """The same installation with what only an import tells: for a FlyDSL without a RECORD (a source tree, editable).

    Its identity is then FlyDSL's own key over its sources and native libraries (``compiler/jit_function.py``,
    _flydsl_key_cached, every release), without the ROCm at hand. Imports FlyDSL and torch: seconds.

    :raises ImportError: that FlyDSL cannot be imported.
    """
    import flydsl
    from flydsl.compiler.jit_function import _flydsl_key_cached

    own = hashlib.sha256(str(_flydsl_key_cached(False, "")).encode()).hexdigest()
    return install._replace(version=install.version or str(flydsl.__version__), identity=f"{OWN_KEY}{own}")


def known_identities() -> dict[str, dict[str, list[str]]]:
    """Version -> ABI -> identities of the released wheels (written by tools/known_flydsl.py)."""
    with open(os.path.join(os.path.dirname(__file__), "known_flydsl.json"), encoding="utf-8") as file:
        known: dict[str, dict[str, list[str]]] = json.load(file)
    return known
