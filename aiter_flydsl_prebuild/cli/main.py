"""``aiter-flydsl-prebuild``: parsing, printing, errors and the exit status of all commands.

Exit status: 0 done; 1 the check failed, or it could not be done here; 2 the input or usage was wrong; 130 interrupted.
Building the parser imports the standard library alone: what a command needs it imports when it runs, so that a server
needs no extra for ``status``, ``seed`` and their like.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from .. import __version__
from ..errors import InputError, PrebuildError
from ..needs import MODULES, MissingError
from ..processes import terminated_cleanly
from . import build, check, diff, doctor, inspect, merge, plan, report, seed, startup, status, store, verify, warm
from .result import Result

# Each has HELP (one line), configure(parser), run(args) and INTERRUPTED: what Ctrl-C leaves.
COMMANDS: dict[str, ModuleType] = {
    "plan": plan,
    "build": build,
    "verify": verify,
    "merge": merge,
    "diff": diff,
    "check": check,
    "report": report,
    "inspect": inspect,
    "seed": seed,
    "warm": warm,
    "status": status,
    "startup": startup,
    "store": store,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    left = ""
    try:
        with terminated_cleanly():
            args = make_parser(as_json).parse_args(arguments)
            left = args.command.INTERRUPTED
            result: Result = args.command.run(args)
            left = "it had finished, and was printing"
            _print(result, args.json)
            return 0 if result.ok else 1
    except PrebuildError as error:
        return _complain(error, as_json)
    except ModuleNotFoundError as error:
        return _complain(_missing(error), as_json)
    except KeyboardInterrupt:
        print(f"aiter-flydsl-prebuild: interrupted{': ' if left else ''}{left}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does.
        sys.stderr.close()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(PrebuildError(f"{where}{error.strerror or error}"), as_json)


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage as JSON, too, where that was asked for."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.exit(_complain(InputError(message), self.as_json))


def make_parser(as_json: bool = False) -> argparse.ArgumentParser:
    """The parser of the whole command line.

    :param as_json: report wrong usage as JSON, too.
    """
    _Parser.as_json = as_json
    parser = _Parser(
        prog="aiter-flydsl-prebuild",
        description="Precompiled FlyDSL kernels for AITER: plan, build, prove and seed them. No GPU is needed.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        text: str = command.HELP
        found = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        found.add_argument("--json", action="store_true", help="print one JSON object")
        found.set_defaults(command=command)
        command.configure(found)
    return parser


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.value, indent=2))
    else:
        result.show()
    sys.stdout.flush()


def _complain(error: PrebuildError, as_json: bool) -> int:
    """Print an error; returns the exit status, which is 2 for what the user gave and 1 for all else."""
    message = str(error)
    print(f"aiter-flydsl-prebuild: {message}", file=sys.stderr)
    if as_json:
        with contextlib.suppress(OSError):  # the output may be what the complaint is about
            print(json.dumps({"error": message, "problems": message.splitlines()}), flush=True)
    return 2 if isinstance(error, InputError) else 1


def _missing(error: ModuleNotFoundError) -> PrebuildError:
    """What to do about a module that is not there.

    :raises ModuleNotFoundError: it is none that a user could install, so that this is a fault of ours.
    """
    name = error.name or ""
    if name.startswith("aiter_flydsl_prebuild."):
        # In a checkout Python takes the sources of the working folder, which lack what an installation maps in.
        tree = Path(__file__).parent.parent.parent
        return InputError(f"{tree} is a source tree: call aiter-flydsl-prebuild in place of python -m, or go elsewhere")
    top = name.partition(".")[0]
    if top not in MODULES:
        raise error
    return MissingError("this command", [top])
