"""Writes what follows from the build's settings: the table in docs/hook.md, and the JSON schema of the hook's table.

python tools/settings_docs.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from aiter_flydsl_prebuild.builder.settings import SCHEMA, docs_table, make_schema

PAGE = Path(__file__).parent.parent / "docs" / "hook.md"
BEGIN = "<!-- settings: written by tools/settings_docs.py -->\n"
END = "<!-- settings: end -->\n"


def page(text: str) -> str:
    """The page with the table as it should be."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{docs_table()}\n{END}", text, flags=re.DOTALL)


def schema() -> str:
    """The schema's file."""
    return json.dumps(make_schema(), indent=2) + "\n"


def main() -> None:
    """Write both files."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
