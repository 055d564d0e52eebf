"""``startup``: seed in every Python process of this environment."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import PrebuildError
from .result import Result

HELP = "seed in every Python process of this environment"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--install", action="store_true", help="put the start-up file into site-packages")
    what.add_argument("--remove", action="store_true", help="take it away again")


def run(args: argparse.Namespace) -> Result:
    """Write the start-up file, or remove it."""
    from ..files import write_whole
    from ..startup import startup_files

    files = startup_files()
    for name, content in files.items():
        path = Path(name)
        try:
            if args.install:
                write_whole(name, content.encode(), mode=0o666)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise PrebuildError(
                f"{path}: {error.strerror or error}; install into an environment of your own"
            ) from error
    done = "written" if args.install else "is not there any more"
    text = "\n".join(f"{name} {done}" for name in files)
    return Result({"files": list(files), "installed": args.install}, lambda: print(text))
