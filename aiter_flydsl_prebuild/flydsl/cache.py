"""What FlyDSL's on-disk cache looks like: the one module that knows it.

Two generations (measured on the released wheels):

=================  ==========================================  ====================================
generation         FlyDSL                                      an entry's path below the cache root
=================  ==========================================  ====================================
``call-key``       0.3.1 to 0.4.2                              ``<launcher>_<manager key>/<call key>.pkl``
``artifact-key``   0.5                                         ``<launcher>/<disk key>.pkl``
=================  ==========================================  ====================================

A call key depends on FlyDSL's native libraries, so it is valid for one CPython ABI. A disk key is
``sha256(toolchain key + newline + artifact key)`` (FlyDSL 0.5 ``compiler/jit_function.py``, ``_disk_cache_key``): the
artifact key is the same everywhere, the toolchain key (``_flydsl_key``) is the machine's own and can be computed there.

An entry is a pickle of one ``CompiledArtifact`` (``compiler/jit_executor.py``). Its state is a dict of plain values, so
it can be written and read here without importing FlyDSL. Every generation reads the compiled MLIR as plain ``ir_text``,
the form that costs least to write and to load; newer ones write ``ir_zlib`` themselves.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from ..discovery import bitcode_files
from ..errors import PrebuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .install import Install

CALL_KEY = "call-key"
ARTIFACT_KEY = "artifact-key"

# The class whose pickles FlyDSL's cache holds.
_ARTIFACT_MODULE = "flydsl.compiler.jit_executor"
_ARTIFACT_CLASS = "CompiledArtifact"

# FlyDSL compiler/jit_function.py, _flydsl_key_cached, every release: the packages whose sources are hashed, in order.
KEYED_PACKAGES = ("compiler", "expr", "extension", "runtime", "utils")

# Read raw into the keys by every FlyDSL from 0.3.1 (compiler/jit_function.py, _CACHE_INVALIDATING_ENV_VARS); the ones
# for tracing since 0.4.2. Kernels are built with all of them unset.
KEYED_VARIABLES = (
    "FLYDSL_COMPILE_OPT_LEVEL",
    "FLYDSL_COMPILE_BACKEND",
    "FLYDSL_COMPILE_LLVM_DIR",
    "FLYDSL_DEBUG_ENABLE_DEBUG_INFO",
    "FLYDSL_EXTRA_SOURCE_DIRS",
    "FLYDSL_KTRACE_ENABLE",
    "FLYDSL_KTRACE_BLOCKS",
    "FLYDSL_KTRACE_BUFFER_BYTES",
)


class Entry(NamedTuple):
    """One compiled artifact.

    ``ir_text`` is the lowered MLIR with the code object embedded; ``fields`` is the rest of the artifact's state
    (entry point, link libraries, …), JSON-able values only. Pre-lowering IR is dropped: no launch uses it.
    """

    ir_text: str
    fields: dict[str, Any]


def generation(version: str) -> str | None:
    """Which generation of the cache a FlyDSL release has; None for one that this project has not seen."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if not match:
        return None
    release = tuple(int(part or 0) for part in match.groups())
    if (0, 3, 1) <= release < (0, 5, 0):
        return CALL_KEY
    return ARTIFACT_KEY if (0, 5, 0) <= release < (0, 6, 0) else None


def python_tag(kind: str, abis: Collection[str]) -> str | None:
    """The Pythons that kernels serve, as a wheel's tag spells them (``cp311.cp312``); None where they serve every one.

    :param kind: the :func:`generation`; artifact keys hold under every CPython that the FlyDSL has known wheels for.
    """
    return None if kind == ARTIFACT_KEY and len(abis) > 1 else ".".join(sorted(abis))


def bitcode_digest(root: str) -> str:
    """The sha256 of the device bitcode's names and contents: FlyDSL 0.5 ``backends/rocm.py``, _hash_device_bitcode.

    :raises PrebuildError: a file of it cannot be read; FlyDSL 0.5 cannot go on there either.
    """
    digest = hashlib.sha256()
    for path in bitcode_files(root):
        try:
            with open(path, "rb") as file:
                digest.update(os.path.basename(path).encode() + b"\0" + file.read())
        except OSError as error:
            raise PrebuildError(f"{path}: the device bitcode cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


NO_BITCODE = hashlib.sha256().hexdigest()
"""The digest of a ROCm folder without device bitcode, or of no ROCm at all."""


def toolchain_key(install: Install, bitcode: str) -> str:
    """FlyDSL 0.5's ``_flydsl_key()`` for an installed FlyDSL and a bitcode digest, without importing it.

    Takes the hashes of FlyDSL's sources from its RECORD and those of its native libraries from the table that its build
    left in ``_native_digest.py``. Where that is not how FlyDSL computes it (edited files, an external LLVM, extra
    source folders), the keys differ and the kernels are not found, which is right.

    A FlyDSL without a RECORD is asked itself; its answer is for the bitcode of this process.

    :raises PrebuildError: the installation lacks the files that this needs.
    """
    record = install.record
    if not record:
        from flydsl.compiler.jit_function import _flydsl_key

        return str(_flydsl_key())
    contents: list[str] = []
    for package in KEYED_PACKAGES:
        sources = [p for p in record if p.startswith(f"flydsl/{package}/") and p.endswith(".py")]
        contents += [f"{p[7:]}:{record[p]}" for p in sorted(sources, key=lambda p: p.split("/"))]
    if "flydsl/__init__.py" not in record:
        raise PrebuildError("FlyDSL's RECORD does not list its sources")
    contents.append(record["flydsl/__init__.py"])
    contents += [f"{name}:{digest}" for name, digest in _native_digests(install.root)]
    contents += [f"rocm-bitcode:{bitcode}", "external_binary_codegen=False"]
    return f"flydsl:{install.version}-" + "-".join(contents)


def _native_digests(root: str) -> list[tuple[str, str]]:
    path = os.path.join(root, "flydsl", "_mlir", "_mlir_libs", "_native_digest.py")
    try:
        with open(path, encoding="utf-8") as file:
            pairs = re.findall(r"""["']([^"']+)["']\s*:\s*["']([0-9a-f]{64})["']""", file.read())
    except OSError as error:
        raise PrebuildError(f"FlyDSL's table of native libraries cannot be read: {error}") from error
    if not pairs:
        raise PrebuildError(f"FlyDSL's table of native libraries is empty: {path}")
    return sorted(pairs)


def disk_keys(toolchain: str) -> Callable[[str], str]:
    """FlyDSL 0.5 ``_disk_cache_key`` as a function of the artifact key; a toolchain key is long, and hashed once."""
    start = hashlib.sha256(f"{toolchain}\n".encode())

    def disk_key(artifact_key: str) -> str:
        digest = start.copy()
        digest.update(artifact_key.encode())
        return digest.hexdigest()

    return disk_key


def disk_key(toolchain: str, artifact_key: str) -> str:
    """FlyDSL 0.5 ``_disk_cache_key``."""
    return disk_keys(toolchain)(artifact_key)


def artifact_path(launcher: str, key: str) -> str:
    """The path of a 0.5 entry below the cache root."""
    return f"{launcher}/{key}.pkl"


def encode_entry(entry: Entry) -> bytes:
    """The pickle of a ``CompiledArtifact``, byte for byte the same for the same entry."""
    return b"".join(entry_pieces(entry.fields, entry.ir_text.encode("utf-8")))


def entry_pieces(fields: dict[str, Any], ir_text: bytes) -> tuple[bytes, bytes, bytes]:
    """:func:`encode_entry` in pieces, the middle one the text as it came: it is most of an entry, and is not copied.

    :param ir_text: valid UTF-8.
    """
    import pickle

    # What pickle itself makes of such an object, written out because the class cannot be imported here: PROTO 4, GLOBAL
    # class, EMPTY_TUPLE, NEWOBJ, the fields without their PROTO and STOP (protocol 3 has no frames), the text's name
    # and the text (BINUNICODE), SETITEM, BUILD, STOP.
    body = pickle.dumps(dict(sorted(fields.items())), protocol=3)
    head = b"\x80\x04c" + f"{_ARTIFACT_MODULE}\n{_ARTIFACT_CLASS}\n".encode() + b")\x81"
    return head + body[2:-1] + b"X\7\0\0\0ir_textX" + len(ir_text).to_bytes(4, "little"), ir_text, b"sb."


def entry_size(fields: dict[str, Any], text_size: int) -> int:
    """How many bytes :func:`entry_pieces` makes of a text of that many bytes."""
    return sum(map(len, entry_pieces(fields, b""))) + text_size


def decode_entry(data: bytes) -> Entry:
    """Read an entry that FlyDSL wrote, in a process that trusts it: the build's own output.

    Nothing but a ``CompiledArtifact`` of plain values comes through.

    :raises PrebuildError: anything else.
    """
    import io
    import json
    import pickle
    import zlib

    class Artifact:
        state: dict[str, Any]

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.state = state

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) == (_ARTIFACT_MODULE, _ARTIFACT_CLASS):
                return Artifact
            raise PrebuildError(f"a cache entry holds {module}.{name}, which is not a plain value")

    try:
        artifact = Reader(io.BytesIO(data)).load()
    except PrebuildError:
        raise
    except Exception as error:
        raise PrebuildError(f"a cache entry cannot be read: {error}") from error
    if not isinstance(artifact, Artifact) or not isinstance(getattr(artifact, "state", None), dict):
        raise PrebuildError("a cache entry is not a CompiledArtifact")
    state = dict(artifact.state)
    if "source_ir" in state:
        state["source_ir"] = None  # 0.3.1 asks for it by name when it reads an entry, and uses it for dumps only
    packed = state.pop("ir_zlib", None)
    text = state.pop("ir_text", None) if packed is None else zlib.decompress(packed).decode("utf-8")
    if not isinstance(text, str):
        raise PrebuildError("a cache entry has no compiled text: this FlyDSL writes a form that is not known here")
    try:
        plain = json.loads(json.dumps(state)) == state
    except (TypeError, ValueError):
        plain = False
    if not plain:
        raise PrebuildError(f"a cache entry has a field that JSON cannot hold: {state!r:.300}")
    return Entry(text, state)
