from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aiter_flydsl_prebuild

SOURCES = sorted(Path(aiter_flydsl_prebuild.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_errors_do_not_begin_with_this_projects_name(path: Path) -> None:
    """The command line puts it before each."""
    raised = [node.exc for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
    first = [error.args[0] for error in raised if isinstance(error, ast.Call) and error.args]
    texts = [ast.unparse(argument).lstrip("f'\"(") for argument in first]
    assert not [text for text in texts if text.startswith("aiter-flydsl-prebuild")]
