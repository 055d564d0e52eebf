"""Which FlyDSL is installed, read from its metadata: FlyDSL is imported only where it has none.

A FlyDSL is identified by the hashes that its wheel's RECORD holds, not by its version: a rebuilt FlyDSL that calls
itself 0.5.0 is another compiler. ``known_flydsl.json`` lists the identities of the released wheels.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..discovery import UncertainError, flydsl_metadata, locate_flydsl, states
from ..errors import few
from .cache import KEYED_PACKAGES

OWN_KEY = "key:"
"""What the identity of a FlyDSL without a RECORD begins with."""


class Install(NamedTuple):
    """An installed FlyDSL.

    ``identity`` is None where the installation has no usable RECORD (a source build, an editable install).
    ``record`` maps a file's path below ``root`` to its sha256 in hex. ``altered`` are the files that are known not to
    be as the record says (:func:`checked`), and ``states`` what :func:`marker.unchanged` asks to know that all that was
    looked at still is as it was; None where that cannot be told.
    """

    root: str
    version: str
    abi: str
    identity: str | None
    record: dict[str, str]
    altered: tuple[str, ...] = ()
    states: str | None = None

    @property
    def damage(self) -> str | None:
        """That files were changed after the installation, in one line; None where none is known to be."""
        return self._changed(self.altered)

    @property
    def other_keys(self) -> str | None:
        """:attr:`damage` to the files that FlyDSL hashes into its keys: with it, no prebuilt kernel is found."""
        return self._changed([path for path in self.altered if _keyed(path)])

    def _changed(self, files: Sequence[str]) -> str | None:
        if not files:
            return None
        how = f"pip install --force-reinstall --no-deps flydsl=={self.version}"
        return f"flydsl {self.version} was changed after it was installed ({few(files)}); {how}"


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


def checked(install: Install, scope: Literal["keyed", "sources", "all"] = "sources") -> Install:
    """The same installation with what was altered in it: its files against its RECORD.

    FlyDSL's keys hold the bytes of its sources, so that with a changed one nothing is found, whatever RECORD says. A
    source that RECORD does not list counts where FlyDSL hashes it.

    :param scope: the sources that enter keys (2 ms), all sources (5 ms), or the native libraries and all else as well
        (a second).
    """
    if "flydsl/__init__.py" not in install.record:
        return install
    wanted = [path for path in install.record if scope == "all" or path.endswith(".py")]
    if scope == "keyed":
        wanted = [path for path in wanted if _keyed(path)]
    folders = [folder for name in KEYED_PACKAGES for folder in _folders(os.path.join(install.root, "flydsl", name))]
    try:
        # Before they are read: a file that changes meanwhile is then one that changed since.
        known = states([*folders, *(os.path.join(install.root, path) for path in wanted)])
    except (OSError, UncertainError):
        known = None
    buffer = memoryview(bytearray(1 << 18))
    found = [path for path in wanted if not _as_recorded(install, path, buffer)]
    for folder in folders:
        below = os.path.relpath(folder, install.root)
        names = (f"{below}/{name}" for name in os.listdir(folder) if name.endswith(".py"))
        found += [path for path in names if path not in install.record]
    return install._replace(altered=tuple(sorted(found)), states=known)


def _keyed(path: str) -> bool:
    """Whether the bytes of a file of FlyDSL enter its keys."""
    package, _, name = path.removeprefix("flydsl/").partition("/")
    return path == "flydsl/__init__.py" or (package in KEYED_PACKAGES and name.endswith(".py"))


def _folders(folder: str) -> list[str]:
    return [path for path, _, _ in os.walk(folder) if os.path.basename(path) != "__pycache__"]


def _as_recorded(install: Install, path: str, buffer: memoryview) -> bool:
    digest = hashlib.sha256()
    try:
        # One buffer for all: a new one for each file costs more than its sha256.
        with open(os.path.join(install.root, path), "rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
    except OSError:
        return False
    return digest.hexdigest() == install.record[path]


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
