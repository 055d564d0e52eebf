"""The libraries beside the loader's own: which extra of this project brings each, checked before work begins."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import PrebuildError

PROJECT = "aiter-flydsl-prebuild"

# Module -> (what pip calls it, the extra that brings it; None: pip installs it by its own name).
MODULES: dict[str, tuple[str, str | None]] = {
    "distributed": ("distributed", "dask"),
    "elftools": ("pyelftools", "build"),
    "flydsl": ("flydsl", None),
    "fsspec": ("fsspec", "store"),
    "installer": ("installer", "build"),
    "jinja2": ("jinja2", "report"),
    "matplotlib": ("matplotlib", "report"),
    "msgpack": ("msgpack", "build"),
    "numpy": ("numpy", "build"),
    "packaging": ("packaging", "build"),
    "pebble": ("pebble", "build"),
    "rich": ("rich", "build"),
    "setuptools": ("setuptools", "build"),
    "tomli": ("tomli", "build"),
    "torch": ("torch", None),
}

COMPILING = ("elftools", "msgpack", "pebble", "numpy", "torch", "flydsl")
"""What compiling takes."""

PROVING = ("elftools", "msgpack", "numpy", "torch", "flydsl")
"""What a proof takes."""

CHECKING = ("installer", "packaging")
"""What checking a wheel's metadata takes."""

WHEEL = ("setuptools", *CHECKING)
"""What making a wheel takes."""


class MissingError(PrebuildError):
    """Libraries are not installed: nothing that the user gave is wrong, so the command line ends with status 1."""

    def __init__(self, what: str, modules: list[str]) -> None:
        names = [MODULES[module][0] for module in modules]
        extras = sorted({extra for module in modules if (extra := MODULES[module][1])})
        install = [f"'{PROJECT}[{','.join(extras)}]'"] if extras else []
        install += [MODULES[module][0] for module in modules if MODULES[module][1] is None]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        verb = "is" if len(names) == 1 else "are"
        super().__init__(f"{what} needs {listed}, which {verb} not installed: pip install {' '.join(install)}")


def require(what: str, *modules: str) -> None:
    """Raise now, and not after a long build, where libraries are missing; all of them are named.

    :raises MissingError: with the command that installs them.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingError(what, missing)
