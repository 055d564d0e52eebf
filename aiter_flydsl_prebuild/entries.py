"""Writing entries into a cache root: a launcher's folder as a whole where there is none yet, else file by file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from .discovery import listed
from .errors import PrebuildError
from .files import TRIES, Pieces, create, holds, publish, remove, remove_folder, size_of, sweep, temporary_path
from .places import make_private


def write_entries(
    folder: str, files: Collection[str], contents: Callable[[], Iterable[tuple[str, Pieces]]]
) -> tuple[int, dict[str, int]]:
    """Have all of ``files`` in place below a folder, each with what ``contents`` gives.

    Returns how many were written, and the size of each.

    :raises PrebuildError: from ``contents``; then nothing that was written stays.
    :raises OSError: the folder does not take them, or does not keep them.
    """
    written = 0
    launchers = {os.path.dirname(path) for path in files}
    for _ in range(TRIES):
        make_private(folder)
        sweep(folder, os.listdir(folder))
        homes: dict[str, _Home] = {}
        sizes = dict.fromkeys(files, -1)
        # What somebody deletes meanwhile is written again.
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            for launcher in launchers:
                homes[launcher] = stack.enter_context(_Home(folder, launcher))
            for path, pieces in contents():
                launcher, name = path.split("/")
                homes[launcher].put(name, pieces)
                sizes[path] = sum(map(len, pieces))
        written += sum(len(home.written) for home in homes.values())
        if not _missing(folder, sizes):
            return written, sizes
    raise OSError(errno.ENOENT, "files vanish as they are written", folder)


class _Home:
    """A launcher's folder to write to. One that is not there yet is written beside its place and renamed as a whole.

    When it is left by a :class:`PrebuildError`, what was written is taken back.
    """

    def __init__(self, root: str, launcher: str) -> None:
        self._final = os.path.join(root, launcher)
        self._new = temporary_path(root)
        self._present: list[str] = []
        self.written: list[str] = []

    def __enter__(self) -> _Home:
        if os.path.isdir(self._final):
            self._new = ""
            make_private(self._final)
            self._present = os.listdir(self._final)
            sweep(self._final, self._present)
        else:
            os.mkdir(self._new, mode=0o700)
        return self

    def put(self, name: str, pieces: Pieces) -> None:
        """Have a file hold these bytes."""
        if self._new:
            create(os.path.join(self._new, name), pieces)
        else:
            target = os.path.join(self._final, name)
            # Which of two that write the same bytes at once comes last makes no difference.
            if name in self._present and holds(target, pieces):
                return
            publish(target, *pieces)
        self.written.append(name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._new:
            try:
                if error is None:
                    os.rename(self._new, self._final)
                    return
            except OSError as failure:
                # Somebody was faster: what is missing there comes with the next try.
                if failure.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            finally:
                remove_folder(self._new)
            self.written.clear()
        elif isinstance(error, PrebuildError):
            for name in self.written:
                remove(os.path.join(self._final, name))


def _missing(folder: str, files: Mapping[str, int]) -> list[str]:
    """Which of ``files`` are not there with the size that they should have."""
    return [path for path, size in files.items() if size_of(os.path.join(folder, path)) != size]


def copy_bundled(bundled: str, folder: str, taken: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Copy the entries of a folder laid out as FlyDSL's cache that are not here yet, or have another size here.

    Returns how many were copied, and all that are there to be copied, with their sizes.

    :param taken: files of packs, which come first.
    """
    if os.path.realpath(folder) == bundled:
        return 0, {}
    files = {
        path: size
        for launcher in listed(bundled)
        if not launcher.startswith(".")
        for name in listed(os.path.join(bundled, launcher))
        # FlyDSL writes entries for their owner alone.
        if name.endswith(".pkl") and os.access(os.path.join(bundled, launcher, name), os.R_OK)
        if (path := f"{launcher}/{name}") not in taken and (size := size_of(os.path.join(bundled, path))) is not None
    }
    absent = sorted(_missing(folder, files))

    def contents() -> Iterator[tuple[str, Pieces]]:
        for path in absent:
            with open(os.path.join(bundled, path), "rb") as file:
                yield path, (file.read(),)

    return write_entries(folder, absent, contents)[0] if absent else 0, files
