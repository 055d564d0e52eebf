"""Sources of other projects: how one is written, and what is said of one that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.errors import InputError
from aiter_flydsl_prebuild.model.job import Options
from aiter_flydsl_prebuild.sources import load_source

THEIRS = """
from aiter_flydsl_prebuild.sources.reference.source import ReferenceSource


class Counting(ReferenceSource):
    def __init__(self, name, options, remember):
        super().__init__(name, options, remember)
        self.made = remember("made", lambda: 1)

    def check_options(self):
        assert self.made and self.options.kinds in ((), ("mxfp8",))


class WithoutArguments(ReferenceSource):
    def __init__(self):
        pass


def function(*arguments):
    raise AssertionError


class Other:
    pass
"""


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "their_kernels.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_kernels", raising=False)


def test_a_source_gets_all_it_is_made_of_when_it_is_made() -> None:
    asked = []

    def remember(key: str, ask: Any) -> Any:
        asked.append(key)
        return ask()

    source = load_source("their_kernels:Counting", Options(kinds=("mxfp8",)), remember)
    assert (source.name, source.options.kinds, asked) == ("their_kernels:Counting", ("mxfp8",), ["made"])
    assert load_source("their_kernels:Counting").remember("key", lambda: "asked") == "asked"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("their", "source 'their' is not known; write one of reference, aiter, or package.module:Class"),
        ("not_there:Source", "source 'not_there:Source' cannot be loaded: No module named 'not_there'"),
        ("their_kernels:Missing", "source 'their_kernels:Missing' cannot be loaded: AttributeError: .*Missing"),
        ("their_kernels:WithoutArguments", "source 'their_kernels:WithoutArguments' cannot be loaded: TypeError: .*"),
        ("their_kernels:function", "source 'their_kernels:function' is not a class derived from .*sources.base.Source"),
        ("their_kernels:Other", "source 'their_kernels:Other' is not a class derived from .*sources.base.Source"),
    ],
)
def test_what_is_no_source_is_one_message(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        load_source(name)
