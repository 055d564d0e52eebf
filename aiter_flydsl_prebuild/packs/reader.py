"""Reading a manifest: one check and conversion for each field of each object of :mod:`.manifest`.

What a pack states is either taken whole or refused with one line that says where in the manifest it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from ..flydsl.cache import ARTIFACT_KEY, CALL_KEY
from ..model.shape import Shape
from ..model.tokens import Range
from .manifest import (
    FORMAT,
    CodeFacts,
    FlyDSL,
    LeftOut,
    Manifest,
    MissingKernel,
    OtherFacts,
    PackageFacts,
    PackedEntry,
    PackedKernel,
    PayloadPlace,
    PlanFacts,
    ShapeFacts,
    ShardFacts,
    SkippedFacts,
    SourceFacts,
    SourceFile,
    TableFacts,
    ToolchainFacts,
)


class ManifestError(ValueError):
    """What is wrong with a manifest, and where in it; one line."""


_LONGEST = 4000
_FIELDS_DEPTH = 8
_PATH_LIMIT = 400
_LAUNCHER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_CALL_PATH = re.compile(r"[A-Za-z0-9_]{1,240}/[A-Za-z0-9_.-]{1,200}\.pkl")
_HEX = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_.:+!-]{1,80}")

_T = TypeVar("_T")
_Read = Callable[[Any], Any]


class _Form(Generic[_T]):
    """How one kind of object is read: what checks and converts each field. What has a default may be absent."""

    def __init__(self, kind: Callable[..., _T], **fields: _Read) -> None:
        self._kind = kind
        defaults: Mapping[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
        self._open = kind._fields[-1:] == ("extra",)  # type: ignore[attr-defined]
        assert (*fields, *("extra",) * self._open) == kind._fields, kind  # type: ignore[attr-defined]
        self._fields = [(name, read, name in defaults, defaults.get(name)) for name, read in fields.items()]

    def __call__(self, raw: Any) -> _T:
        """Read an object.

        :raises ManifestError: it is not of this form.
        """
        if type(raw) is not dict:
            raise ManifestError("is not an object")
        values = []
        known = 0
        name = ""
        try:
            for name, read, optional, default in self._fields:
                if name in raw:
                    values.append(read(raw[name]))
                    known += 1
                elif optional:
                    values.append(default)
                else:
                    raise ManifestError("is missing")
        except ManifestError as error:
            raise ManifestError(f"{name}: {error}") from None
        if known == len(raw):
            return self._kind(*values)
        names = {name for name, *_ in self._fields}
        if not self._open:
            raise ManifestError(f"{', '.join(sorted(raw.keys() - names)):.80} is not known to this version")
        return self._kind(*values, {name: value for name, value in raw.items() if name not in names})


def _text(value: Any) -> str:
    # What is printed from a manifest: a line break or a control character in it would forge lines of a log.
    if type(value) is not str or not value.isprintable() or len(value) > _LONGEST:
        raise ManifestError(f"{value!r:.80} is not printable text")
    return value


def _lines(value: Any) -> str:
    if type(value) is not str:
        raise ManifestError(f"{value!r:.80} is not text")
    return value


def _word(value: Any) -> str:
    if type(value) is not str or not _WORD.fullmatch(value):
        raise ManifestError(f"{value!r:.80} is not a plain word")
    return value


def _hex(value: Any) -> str:
    if type(value) is not str or not _HEX.fullmatch(value):
        raise ManifestError(f"{value!r:.80} is not a sha256")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ManifestError(f"{value!r:.80} is not a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ManifestError(f"{value!r:.80} is not a number")
    return value  # type: ignore[no-any-return]


def _exactly(*known: Any) -> _Read:
    def read(value: Any) -> Any:
        if value not in known:
            raise ManifestError(f"{value!r:.80} is not known to this version")
        return value

    return read


def _or_null(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _many(read: _Read, *, least: int = 0) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) < least:
            raise ManifestError(f"{value!r:.80} is not a list{' of at least one' if least else ''}")
        done: list[Any] = []
        try:
            for item in value:
                done.append(read(item))
        except ManifestError as error:
            raise ManifestError(f"[{len(done)}] {error}") from None
        return tuple(done)

    return read_all


def _mapping(read: _Read, *, least: int = 0) -> Callable[[Any], dict[str, Any]]:
    def read_all(value: Any) -> dict[str, Any]:
        if type(value) is not dict or len(value) < least:
            raise ManifestError(f"{value!r:.80} is not an object{' with at least one name' if least else ''}")
        return {_word(name): read(item) for name, item in value.items()}

    return read_all


def _range(value: Any) -> Range:
    if type(value) is list and len(value) == 2:
        first, last = value
        if type(first) is int and type(last) is int and first <= last:
            return first, last
    raise ManifestError(f"{value!r:.80} is not a range of token counts")


def _source_file(value: Any) -> SourceFile:
    if type(value) is list and len(value) == 2:
        path, digest = value
        # Below an installed package, or one of its files alone.
        if _text(path) and not {"", ".", ".."} & set(path.split("/")) and len(path) <= _PATH_LIMIT:
            return path, _hex(digest)
    raise ManifestError(f"{value!r:.80} is not a source file and its sha256")


def _launcher(value: Any) -> str:
    if type(value) is not str or not _LAUNCHER.fullmatch(value):
        raise ManifestError(f"{value!r:.80} is not the name of a function")
    return value


def _call_path(value: Any) -> str:
    if type(value) is not str or not _CALL_PATH.fullmatch(value) or ".." in value:
        raise ManifestError(f"{value!r:.80} is not a path in FlyDSL's cache")
    return value


def _artifact_fields(value: Any) -> dict[str, Any]:
    if type(value) is not dict or not _shallow(value):
        raise ManifestError("are not the state of an artifact")
    return value


def _shallow(value: Any, depth: int = _FIELDS_DEPTH) -> bool:
    """Whether a value is nested so little that every reader and writer of it can follow."""
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (depth > 0 and all(_shallow(item, depth - 1) for item in value))


_KERNEL: Final[dict[str, _Read]] = {
    "source": _text,
    "name": _text,
    "op": _text,
    "n": _or_null(_integer),
    "k": _or_null(_integer),
    "w_scale_block": _or_null(_text),
    "q_dtype_w": _or_null(_text),
    "tokens": _many(_range),
}

_read_flydsl: Final = _Form(
    FlyDSL,
    version=_word,
    generation=_exactly(ARTIFACT_KEY, CALL_KEY),
    identities=_mapping(lambda known: list(_many(_word)(known))),
)
_read_package: Final = _Form(PackageFacts, version=_word, digest=_text, distribution=_word, commit=_text)
read_source: Final = _Form(
    SourceFacts,
    name=_text,
    digest=_text,
    version=_text,
    license=_text,
    commit=_text,
    packages=_mapping(_read_package, least=1),
)
_read_left_out: Final = _Form(
    LeftOut, op=_text, kernels=_integer, shapes=_integer, reason=_text, names=_many(_text, least=1)
)
_read_code: Final = _Form(
    CodeFacts,
    symbol=_text,
    **dict.fromkeys(CodeFacts._fields[1:-2], _integer),
    code_object_sha256=_hex,
)
_read_toolchain: Final = _Form(ToolchainFacts, linker=_text, bitcode=_or_null(_hex))
_read_shard: Final = _Form(ShardFacts, index=_integer, of=_integer, assignment=_text)
_read_table: Final = _Form(TableFacts, file=_text, sha256=_hex)
_read_other: Final = _Form(OtherFacts, libtype=_text, tokens=_many(_range))
_read_skipped: Final = _Form(SkippedFacts, name=_text, reason=_text, tokens=_many(_range))
_read_shape: Final = _Form(
    Shape,
    op=_text,
    gfx=_word,
    cu_num=_integer,
    n=_integer,
    k=_integer,
    w_scale_block=_or_null(_text),
    q_dtype_w=_or_null(_text),
)
_read_shape_facts: Final = _Form(
    ShapeFacts,
    shape=_read_shape,
    other=_many(_read_other),
    uncovered=_many(_range),
    skipped=_many(_read_skipped),
)
_read_plan: Final = _Form(
    PlanFacts,
    tokens=_range,
    rule=_word,
    cu_num=_many(_integer),
    tables=_many(_read_table),
    shapes=_many(_read_shape_facts),
    undecodable=_many(_text),
    unknown=_many(_text),
    options=_mapping(_many(_text)),
    left_out=_many(_read_left_out),
)
_read_entry: Final = _Form(
    PackedEntry,
    launcher=_launcher,
    payload=_integer,
    fields=_artifact_fields,
    code=_many(_read_code),
    artifact_key=_hex,
    paths=_mapping(_call_path, least=1),
)
_read_manifest: Final = _Form(
    Manifest,
    format=_exactly(FORMAT),
    made_by=_text,
    arch=_word,
    flydsl=_read_flydsl,
    source=read_source,
    toolchain=_read_toolchain,
    plan=_read_plan,
    missing=_many(_Form(MissingKernel, **_KERNEL, reason=_lines, cu_num=_many(_integer))),
    kernels=_many(
        _Form(
            PackedKernel,
            **_KERNEL,
            bitcode=_or_null(_hex),
            entries=_many(_read_entry, least=1),
            cu_num=_many(_integer),
            files=_integer,
        )
    ),
    payloads=_many(_Form(PayloadPlace, offset=_integer, size=_integer, sha256=_hex)),
    files=_many(_source_file, least=1),
    file_sets=_many(_many(_integer), least=1),
    shard=_read_shard,
    seconds=_number,
)


def read_manifest(raw: Any) -> Manifest:
    """Read and check a manifest, as ``json.loads`` gives it.

    :raises ManifestError: it is not of the form of docs/pack-format.md, or contradicts itself.
    """
    manifest = _read_manifest(raw)
    end = 0
    for index, (offset, size, *_) in enumerate(manifest.payloads):
        if size <= 0 or offset != end:
            raise ManifestError(f"payloads: [{index}] is not where the one before it ends")
        end += size
    for index, one in enumerate(manifest.file_sets):
        if not all(0 <= file < len(manifest.files) for file in one):
            raise ManifestError(f"file_sets: [{index}] names a file that is not listed")
    for kernel in manifest.kernels:
        if kernel.files is not None and not 0 <= kernel.files < len(manifest.file_sets):
            raise ManifestError(f"kernel {kernel.label:.300} names source files that are not listed")
    _check_entries(manifest.kernels, len(manifest.payloads))
    return manifest


def _check_entries(kernels: Sequence[PackedKernel], payloads: int) -> None:
    """Two entries may share a name in the cache only where they are the same entry."""
    seen: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
    for kernel in kernels:
        for entry in kernel.entries:
            if not 0 <= entry.payload < payloads or (entry.artifact_key is None) == (not entry.paths):
                raise ManifestError(f"an entry of kernel {kernel.label:.300} has no payload, or not one kind of key")
            content = (entry.payload, entry.fields)
            for name in entry.names:
                if seen.setdefault(name, content) != content:
                    raise ManifestError(f"kernel {kernel.label:.300} and another claim one name: {name[1]}")
