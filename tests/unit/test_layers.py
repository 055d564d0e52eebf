"""Which part of the package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "aiter_flydsl_prebuild"
ROOT = Path(__file__).parents[2]

# From the bottom up: a module imports only from its own room and from rooms above it in this list. The front door
# (__init__ and __main__) opens any room when it is asked to.
ROOMS = {
    "foundations": (
        "arch",
        "discovery",
        "errors",
        "files",
        "needs",
        "digests",
        "paths",
        "processes",
        "progress",
        "scratch",
        "target",
    ),
    "model": ("model",),
    "flydsl": ("flydsl",),
    "packs": ("packs",),
    "run time": (
        *("binding", "compute_units", "entries", "fitting", "marker", "monitor", "places", "report", "seeding"),
        *("stamps", "startup", "state", "vllm_monitor"),
    ),
    "dispatch": ("dispatch",),
    "execution": ("execution",),
    "sources": ("sources",),
    "warming": ("warming",),
    "builder": ("builder",),
    "front ends": ("cli", "build_hooks"),
}
FRONT_DOOR = ("", "__main__")

# The same within the builder, whose parts are below what calls them.
BUILDER = {
    "basics": (
        *(
            "bound",
            "compiling",
            "doctor",
            "epoch",
            "execution.facts",
            "gates",
            "machine",
            "packing",
            "setting_kinds",
            "settings",
        ),
        "sharding",
    ),
    "store": ("store",),
    "backends": ("backends",),
    "wheels": ("wheels",),
    "proof": ("proof",),
    "execution": ("execution",),
    "reports": ("reports",),
    "pipeline": ("executing", "memo", "pipeline", "merging", "building"),
}


def _modules() -> Iterator[tuple[str, Path]]:
    """Name below the package and file of every module."""
    for folder, above in ((ROOT / PACKAGE, ROOT / PACKAGE), (ROOT / "build_hooks", ROOT)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(above).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


MODULES = dict(_modules())


def _imported(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of the modules of this package that a module imports, inside functions included.

    What is imported for types alone does not run, and may look up.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in for_types:
            continue
        if node.level:
            parts = package.split(".") if package else []
            parts = parts[: len(parts) - node.level + 1]
            base = ".".join([*parts, *filter(None, [node.module])])
        elif node.module == PACKAGE or (node.module or "").startswith(f"{PACKAGE}."):
            base = (node.module or "")[len(PACKAGE) + 1 :]
        else:
            continue
        for alias in node.names:
            full = f"{base}.{alias.name}".lstrip(".")
            yield node.lineno, full if full in MODULES else base


def _upwards(rooms: dict[str, tuple[str, ...]], below: str = "") -> list[str]:
    """The imports that lead from a room to a later one."""
    order = {f"{below}{module}": index for index, modules in enumerate(rooms.values()) for module in modules}

    def room(name: str) -> int:
        while name not in order:
            assert "." in name, f"{name} is in no room: add it to this file's list"
            name = name.rpartition(".")[0]
        return order[name]

    inside = {name: path for name, path in MODULES.items() if name.startswith(below) and name not in FRONT_DOOR}
    return [
        f"{path.relative_to(ROOT)}:{line} imports {other}"
        for name, path in inside.items()
        for line, other in _imported(name, path)
        if other in inside and room(other) > room(name)
    ]


def test_no_import_upwards() -> None:
    assert _upwards(ROOMS) == []


def test_no_import_upwards_within_the_builder() -> None:
    assert _upwards(BUILDER, "builder.") == []


def test_an_import_upwards_is_seen() -> None:
    turned = dict(reversed(ROOMS.items()))
    assert any("cli/" in line for line in _upwards(turned))
