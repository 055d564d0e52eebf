"""The kernel store: what builds keep for each other, by what it was made from.

    kernels/<2 digits>/<key>.fkpack     one kernel each, a pack of its own, for those that linked device bitcode
                                        <key>-<digest of the bitcode>.fkpack
    packs/<key>.fkpack                  finished packs, by their manifest and payloads
    memos/<key>.json                    small answers: proofs that held, what an imported AITER said

A key is a sha256 over everything that can change the value (:mod:`.keys`), so an entry is never out of date, only
unused. Entries are checked against their own hashes when they are read; one that is damaged is made again. Writers need
no lock: entries of one key are equal, and each appears whole.

A store is a help and never a condition: one that cannot be read or written costs a warning, and the build goes on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import needs
from ...digests import digest
from ...discovery import SUFFIX
from ...errors import InputError
from ...files import write_whole
from ...packs.format import Pack, PackError
from ...paths import user_cache
from ..packing import unpacked

VARIABLE = "AITER_FLYDSL_PREBUILD_STORE"
"""Where the store is, a folder or an fsspec URL; ``off`` for none."""

OFF = "off"

# Entries, and what writers that were killed left of them: whatever else lies in the folder is not the store's.
_ENTRY = re.compile(
    r"(kernels/[0-9a-f]{2}|packs|memos)/"
    r"(\.?[0-9a-f]{64}(-[0-9a-f]{16})?\.(fkpack|json)(\.[0-9a-f]{12})?|\.afp-[0-9a-f]{16}\.tmp)",
    re.ASCII,
)

_WRITING_SECONDS = 3600.0
"""A file that a writer has not renamed for so long was left behind by one that was killed."""

_logger = logging.getLogger("aiter_flydsl_prebuild")


class Store:
    """A store in a :class:`Shelf`. ``warnings`` tell what went wrong with it, a line each; they are logged as well, at
    once, since a build that fails has nothing else to say them."""

    def __init__(self, shelf: Shelf | None) -> None:
        self._shelf = shelf
        self.warnings: list[str] = []

    @property
    def where(self) -> str | None:
        """The folder or URL; None for no store."""
        return None if self._shelf is None else self._shelf.where

    def shelf(self) -> Shelf:
        """Where its entries lie.

        :raises InputError: there is no store.
        """
        if self._shelf is None:
            raise InputError("the kernel store is switched off")
        return self._shelf

    def packs(self, names: Sequence[str]) -> dict[str, Pack]:
        """The packs that were kept under some of these names. A damaged one is said and removed."""
        found = {}
        for name, data in self._read([name + SUFFIX for name in names]).items():
            try:
                found[name.removesuffix(SUFFIX)] = Pack(f"{self.where}/{name}", data)
            except PackError as error:
                self.discard(name.removesuffix(SUFFIX), str(error))
        return found

    def discard(self, name: str, why: str) -> None:
        """Remove a pack that is no good, and say so."""
        self._warn(f"{why}; it is made again")
        if self._shelf is not None:
            with contextlib.suppress(OSError):
                self._shelf.remove(name + SUFFIX)

    def keep_pack(self, name: str, data: bytes) -> None:
        """Keep a pack's bytes under a name."""
        self._write(name + SUFFIX, data)

    def remember(self, key: str, ask: Callable[[], Any]) -> Any:
        """What ``ask`` answered when it was last asked under ``key``: something that JSON can hold."""
        answer = self.recall(key)
        if answer is None:
            answer = ask()
            self.keep(key, answer)
        return answer

    def recall(self, key: str) -> Any:
        """The answer that was kept under ``key``; None where there is none. A damaged one is said."""
        name = f"memos/{key}.json"
        if (data := self._read([name]).get(name)) is not None:
            try:
                memo = json.loads(data)
                if memo["sha256"] == digest(memo["answer"]):
                    return memo["answer"]
            except (ValueError, KeyError, TypeError):
                pass
            self._warn(f"{self.where}/{name}: damaged; it is made again")
        return None

    def keep(self, key: str, answer: Any) -> None:
        """Keep an answer, something that JSON can hold, under ``key``."""
        self._write(f"memos/{key}.json", json.dumps({"answer": answer, "sha256": digest(answer)}).encode())

    def _read(self, names: Sequence[str]) -> dict[str, bytes]:
        if self._shelf is None:
            return {}
        try:
            found = self._shelf.read(names)
            for name in found:
                self._shelf.use(name)
            return found
        except OSError as error:
            self._give_up("read", error)
            return {}

    def _write(self, name: str, data: bytes) -> None:
        if self._shelf is None:
            return
        try:
            self._shelf.write(name, data)
        except OSError as error:
            self._give_up("written to", error)

    def _give_up(self, what: str, error: OSError) -> None:
        self._warn(f"the store {self.where} cannot be {what} ({error.strerror or error}); building on without it")
        self._shelf = None

    def _warn(self, line: str) -> None:
        self.warnings.append(line)
        _logger.warning("aiter-flydsl-prebuild: %s", line)


@dataclass(frozen=True)
class Item:
    """An entry of a store: its name, bytes, and when it was last used (written, on other file systems than local)."""

    name: str
    size: int
    used: float

    @property
    def is_partial(self) -> bool:
        """Whether it is no entry yet: a writer's file before its renaming."""
        return self.name.rpartition("/")[2].startswith(".")


class Shelf(ABC):
    """Where entries lie. All raise OSError."""

    where: str

    @abstractmethod
    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """The bytes of those of some entries that are there."""

    def use(self, name: str) -> None:
        """Note, where that can be, that an entry is of use now: garbage is what was of none for long."""
        return None

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Make an entry, whole or not at all."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an entry, if it is there."""

    def items(self) -> Iterator[Item]:
        """Every entry."""
        return (item for item in self.files() if _ENTRY.fullmatch(item.name))

    @abstractmethod
    def files(self) -> Iterator[Item]:
        """All that lies there."""


class Folder(Shelf):
    """A local folder."""

    def __init__(self, root: Path) -> None:
        self.where = str(root)
        self._root = root

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self._root / name).read_bytes()
        return found

    def use(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._root / name)

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(str(path), data, mode=0o666)

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def files(self) -> Iterator[Item]:
        for path in self._root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                state = path.stat()
                if path.is_file():
                    yield Item(path.relative_to(self._root).as_posix(), state.st_size, state.st_mtime)


class Remote(Shelf):
    """Any file system that fsspec knows, by URL."""

    def __init__(self, url: str) -> None:
        needs.require(f"{url}, a store by URL,", "fsspec")
        from fsspec.core import url_to_fs

        try:
            self._fs, self._root = url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise InputError(f"{url}: is no store: {error}") from error
        self.where = url.rstrip("/")

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        if not names:
            return {}
        found = {}
        with self._only_oserrors():
            # Object stores answer many questions at a time.
            answers = self._fs.cat([f"{self._root}/{name}" for name in names], on_error="return")
            for name in names:
                answer = answers[f"{self._root}/{name}"]
                if isinstance(answer, bytes):
                    found[name] = answer
                elif not isinstance(answer, FileNotFoundError):
                    raise answer
        return found

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with self._only_oserrors():
            if self._fs.async_impl:
                # An object store, in terms of fsspec: it has no folders to make, and objects appear whole.
                self._fs.pipe_file(path, data)
            else:
                self._write_and_rename(path, data)

    def _write_and_rename(self, path: str, data: bytes) -> None:
        folder, _, last = path.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{last}.{os.urandom(6).hex()}"
        try:
            self._fs.pipe_file(temporary, data)
            self._fs.mv(temporary, path)
        except Exception:
            with contextlib.suppress(Exception):
                self._fs.rm_file(temporary)
            # Some do not rename onto a file: then another build's equal one is there.
            if not self._fs.exists(path):
                raise

    def remove(self, name: str) -> None:
        with self._only_oserrors(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def files(self) -> Iterator[Item]:
        with self._only_oserrors():
            try:
                found = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return
        for path, about in found.items():
            modified = next(
                (about[key] for key in ("mtime", "LastModified", "updated", "created") if key in about), 0.0
            )
            used = modified.timestamp() if hasattr(modified, "timestamp") else float(modified)
            yield Item(path[len(self._root) :].lstrip("/"), int(about.get("size") or 0), used)

    @contextlib.contextmanager
    def _only_oserrors(self) -> Iterator[None]:
        """Libraries of file systems raise errors of their own, and none names the file system."""
        try:
            yield
        except Exception as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise OSError(getattr(error, "errno", None) or errno.EIO, why, self.where) from error


def open_store(where: str | None = None) -> Store:
    """The store that was asked for: a folder, a URL, or ``off``; by default what VARIABLE says, else the user's cache.

    :raises MissingError: it is a URL, and fsspec is not installed.
    :raises InputError: it is a URL of no file system that is known here.
    """
    where = where or os.environ.get(VARIABLE) or default_folder()
    if where == OFF:
        return Store(None)
    return Store(Remote(where) if "://" in where else Folder(Path(where).expanduser()))


def default_folder() -> str:
    """The user's own store, in their cache folder (paths.py); none for a user without a home."""
    cache = user_cache()
    return os.path.join(cache, "aiter-flydsl-prebuild", "store") if cache else OFF


@dataclass(frozen=True)
class Statistics:
    """What is in a store: entries and bytes of each kind, and when the longest unused one was last used."""

    where: str
    entries: dict[str, int]
    bytes: dict[str, int]
    oldest: float | None


def statistics(shelf: Shelf) -> Statistics:
    """Count a store."""
    entries: dict[str, int] = {}
    sizes: dict[str, int] = {}
    oldest: float | None = None
    for item in shelf.items():
        kind = item.name.partition("/")[0]
        entries[kind] = entries.get(kind, 0) + 1
        sizes[kind] = sizes.get(kind, 0) + item.size
        oldest = item.used if oldest is None else min(oldest, item.used)
    return Statistics(shelf.where, entries, sizes, oldest)


def compile_times(shelf: Shelf) -> dict[str, float]:
    """Seconds that each kernel in a store took to compile, by its job's label; of several, the one used last."""
    times: dict[str, float] = {}
    for item in sorted(shelf.items(), key=lambda item: item.used):
        for data in shelf.read([item.name]).values() if item.name.startswith("kernels/") else ():
            with contextlib.suppress(PackError):  # A build that comes upon it says so.
                times |= {kernel.job.label: kernel.seconds for kernel in unpacked(Pack(item.name, data))}
    return dict(sorted(times.items()))


def collect_garbage(shelf: Shelf, *, keep_seconds: float, keep_bytes: float) -> list[Item]:
    """Remove what was not used for ``keep_seconds``, then the longest unused, until no more than ``keep_bytes`` stay.

    With 0 seconds everything goes, whatever the clock of the store's machine says, but for files that a build may be
    writing just now. Returns what was removed. A build that needs one of them makes it again.
    """
    now = time.time()
    items = sorted(shelf.items(), key=lambda item: item.used)
    items = [item for item in items if not (item.is_partial and now - item.used < _WRITING_SECONDS)]
    total = sum(item.size for item in items)
    removed = []
    for item in items:
        if keep_seconds > 0 and now - item.used <= keep_seconds and total <= keep_bytes:
            break
        shelf.remove(item.name)
        total -= item.size
        removed.append(item)
    return removed
