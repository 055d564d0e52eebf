from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import files


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "target"
    path.parent.mkdir()
    path.write_bytes(b"before")
    return path


def alone(target: Path) -> bool:
    return os.listdir(target.parent) == [target.name]


def test_a_file_is_written_whole(target: Path) -> None:
    files.write_whole(str(target), b"a", b"", b"fter")
    assert (target.read_bytes(), target.stat().st_mode & 0o777, alone(target)) == (b"after", 0o600, True)


def test_a_file_for_others_follows_the_umask(target: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_whole(str(target), b"", mode=0o666)
    finally:
        os.umask(before)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"", 0o640)


@pytest.mark.parametrize("call", ["writev", "replace"])
def test_what_was_there_stays_where_writing_fails(target: Path, monkeypatch: Any, call: str) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(str(target), b"after")
    assert (target.read_bytes(), alone(target)) == (b"before", True)


def test_a_call_that_takes_less_is_followed_by_others(target: Path, monkeypatch: Any) -> None:
    """As network file systems and pipes do."""
    writev, write = os.writev, os.write
    monkeypatch.setattr(os, "writev", lambda descriptor, pieces: writev(descriptor, [b"".join(pieces)[:4]]))
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:2]))
    files.write_whole(str(target), b"abc", b"defghij")
    assert target.read_bytes() == b"abcdefghij"


def test_a_folder_that_is_deleted_meanwhile_is_made_anew(target: Path, monkeypatch: Any) -> None:
    replace = os.replace

    def late(source: str, name: str) -> None:
        monkeypatch.setattr(os, "replace", replace)
        shutil.rmtree(target.parent)
        replace(source, name)

    monkeypatch.setattr(os, "replace", late)
    files.publish(str(target), b"after")
    assert (target.read_bytes(), target.parent.stat().st_mode & 0o777) == (b"after", 0o700)
    monkeypatch.setattr(os, "replace", lambda source, name: late(source, name))
    with pytest.raises(FileNotFoundError):
        files.write_whole(str(target), b"lost")
