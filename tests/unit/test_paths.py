from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild import paths, places
from aiter_flydsl_prebuild.builder.store import store
from aiter_flydsl_prebuild.flydsl import rocm_folder


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/home/me"}, "/home/me/.cache"),
        ({"HOME": "/"}, "/.cache"),
        ({"HOME": "/home/me/", "XDG_CACHE_HOME": ""}, "/home/me/.cache"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/var/cache/me"}, "/var/cache/me"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "cache"}, "/home/me/.cache"),
        ({"HOME": "me", "XDG_CACHE_HOME": "cache"}, None),
        ({"HOME": "me", "XDG_CACHE_HOME": "/var/cache/me"}, "/var/cache/me"),
    ],
)
def test_the_users_cache_and_all_that_use_it(
    environ: dict[str, str], expected: str | None, monkeypatch: Any, tmp_path: Path
) -> None:
    assert paths.user_cache(environ) == expected
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    seeded = [place.folder for place in places.places(os.environ, None)]
    assert (f"{expected}/flydsl" in seeded) == (expected is not None)
    assert all(os.path.isabs(folder) for folder in seeded)
    assert store.default_folder() == (f"{expected}/aiter-flydsl-prebuild/store" if expected else "off")
    made: list[str] = []
    monkeypatch.setattr(Path, "mkdir", lambda self, *args, **kwargs: made.append(str(self)))
    with pytest.raises(FileNotFoundError):
        rocm_folder.cache_base(os.environ)
    assert made == ([f"{expected}/aiter-flydsl-prebuild"] if expected else [])


def test_a_home_that_only_the_password_database_knows(monkeypatch: Any) -> None:
    assert paths.home({}) == pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert paths.home({}) is None
    assert paths.user_cache({}) is None


def test_temporary_folders() -> None:
    assert paths.temporary_folders({}) == ["/tmp", "/var/tmp"]
    assert paths.temporary_folders({"TMPDIR": "tmp"}) == ["/tmp", "/var/tmp"]
    assert paths.temporary_folders({"TMPDIR": "/var/tmp"}) == ["/var/tmp", "/tmp"]


def test_the_rule_is_in_one_place() -> None:
    package = Path(paths.__file__).parent
    sources = [path for path in package.rglob("*.py") if "XDG_CACHE_HOME" in path.read_text()]
    # Build workers get the variable handed on.
    assert {path.name for path in sources} == {"paths.py", "toolchain.py"}
