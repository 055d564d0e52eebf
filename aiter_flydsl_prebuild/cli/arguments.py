"""Arguments that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckError, InputError

if TYPE_CHECKING:
    from ..builder.gates import Gates
    from ..execution.running import Wish
    from ..pack import Pack
    from ..sources.base import Options


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def whole(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def days(text: str) -> float:
    """A number of days from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, 0 or more")
    return value


def size(text: str) -> int:
    """``20MB`` in bytes."""
    from ..builder.gates import parse_size

    try:
        return parse_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def wheel(parser: argparse.ArgumentParser) -> None:
    """WHEEL, by default what is installed."""
    parser.add_argument("wheel", nargs="?", type=Path, help="a wheel or a pack (default: what is installed)")


def packages(parser: argparse.ArgumentParser) -> None:
    """``--package``."""
    text = "a package that carries kernels, beside aiter and wheels of kernels (may be repeated)"
    parser.add_argument("--package", action="append", default=[], metavar="NAME", help=text)


def trusted(parser: argparse.ArgumentParser) -> None:
    """``--source`` of commands that run the code of a pack's source."""
    parser.add_argument("--source", metavar="NAME", help="a source outside this project whose code may be run")


def out(parser: argparse.ArgumentParser) -> None:
    """``--out`` of commands that make a wheel."""
    parser.add_argument(
        "--out", type=Path, default=Path("dist"), metavar="FOLDER", help="where the wheel goes (default: dist)"
    )


def store(parser: argparse.ArgumentParser, more: str = "") -> None:
    """``--store``."""
    default = "AITER_FLYDSL_PREBUILD_STORE, else the user's cache"
    text = f"the kernel store, a folder or an fsspec URL ({more}default: {default})"
    parser.add_argument("--store", metavar="WHERE", help=text)


def planning(parser: argparse.ArgumentParser) -> None:
    """What ``plan`` and ``build`` share: which kernels."""
    from ..builder.rules import RULES
    from ..sources import SOURCES

    parser.add_argument(
        "--source", default="reference", metavar="NAME", help=f"{', '.join(SOURCES)}, or package.module:Class"
    )
    parser.add_argument("--arch", default="gfx950", help="GPU architecture (default: gfx950)")
    parser.add_argument(
        "--cu-num",
        nargs="+",
        type=positive,
        default=[],
        metavar="N",
        help="compute units of the GPU (default: all that the tables have)",
    )
    parser.add_argument("--tokens", default="1..8192", metavar="FIRST..LAST", help="token counts (default: 1..8192)")
    parser.add_argument("--rule", choices=RULES, help="AITER's dispatch rule (default: that of the source)")
    for name, help_text in (
        ("kinds", "families of kernels (default: the source's own choice)"),
        ("dtypes", "output types of kernels whose tables do not fix them (default: bfloat16)"),
        ("models", "shape lists whose untuned shapes get the heuristic's kernels, or none (default: all)"),
    ):
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="NAME", help=help_text)


def gates(parser: argparse.ArgumentParser) -> None:
    """What ``build`` and ``check`` share: what a wheel must pass."""
    group = parser.add_argument_group("gates, which the wheel must pass")
    group.add_argument("--max-size", type=size, metavar="SIZE", help="of the wheel, as in 20MB")
    group.add_argument("--max-spills", type=whole, metavar="N", help="registers that a kernel may spill")
    group.add_argument(
        "--require-coverage", metavar="FIRST..LAST", help="token counts that every shape must be served for"
    )
    group.add_argument(
        "--known-bad",
        nargs="+",
        default=[],
        metavar="WHAT==VERSION",
        help="compilers that no kernel may come from: flydsl, linker",
    )
    group.add_argument(
        "--require-executed", action="store_true", help="every kernel was executed when it was built (build --execute)"
    )


def executing(parser: argparse.ArgumentParser) -> None:
    """What ``build`` and ``verify`` share of executing kernels."""
    group = parser.add_argument_group("executing kernels on a CPU")
    group.add_argument(
        "--execute", action="store_true", help="run kernels on an emulator and compare with a numpy reference"
    )
    group.add_argument(
        "--kernels",
        metavar="N|all",
        help="how many (default: as few as cover every tile, pipeline depth and flag of their names)",
    )
    group.add_argument("--seed", type=whole, default=0, metavar="S", help="of the operands (default: 0)")
    group.add_argument(
        "--emulator", type=Path, metavar="FOLDER", help="a tinygrad source checkout (default: TINYGRAD_SOURCE)"
    )


def asked_execution(args: argparse.Namespace) -> Wish | None:
    """What is to be executed; None for nothing.

    :raises InputError: --kernels is of another form, or given without --execute.
    """
    from ..execution.selection import parse_kernels

    kernels = parse_kernels(args.kernels)
    if not args.execute:
        if kernels is not None or args.emulator is not None:
            raise InputError("--kernels and --emulator say what --execute does; add it")
        return None
    from ..builder import needs
    from ..builder.machine import default_workers
    from ..execution.running import Wish

    needs.require("executing kernels", *needs.PROVING)
    workers = args.workers or default_workers(1.5)
    return Wish(kernels=kernels, seed=args.seed, emulator=args.emulator, workers=workers)


def asked_options(args: argparse.Namespace) -> Options:
    """The source's options."""
    from ..sources.base import Options

    return Options(tuple(args.kinds), tuple(args.dtypes), tuple(args.models))


def asked_gates(args: argparse.Namespace) -> Gates:
    """The gates.

    :raises InputError: one is not well-formed.
    """
    from ..builder.gates import Gates, parse_known_bad
    from ..builder.reach import parse_tokens

    return Gates(
        max_size=args.max_size,
        max_spills=args.max_spills,
        coverage=parse_tokens(args.require_coverage) if args.require_coverage else None,
        known_bad=tuple(map(parse_known_bad, args.known_bad)),
        executed=args.require_executed,
    )


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """A folder that can be written to, known before anything is compiled; it goes again if it stays empty.

    :raises InputError: it cannot be made, or not be written to.
    """
    existed = path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written to: {error.strerror or error}") from error
    try:
        yield path
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                path.rmdir()


@contextlib.contextmanager
def naming(wheel: Path | None, folder: Path) -> Iterator[None]:
    """Let complaints about a pack name the wheel that the user gave, not where it was unpacked.

    :raises CheckError: in place of a PackError.
    """
    from ..pack import PackError

    try:
        yield
    except PackError as error:
        raise CheckError(str(error).replace(f"{folder}/", f"{wheel}: ")) from None


def opened(wheel: Path) -> list[Pack]:
    """The packs of a wheel, read and checked.

    :raises CheckError: one is damaged.
    """
    from ..builder.proof import open_subject
    from ..builder.scratch import scratch_folder
    from ..pack import Pack

    with scratch_folder("open") as folder, naming(wheel, folder):
        return [Pack(str(path)) for path in open_subject(wheel, folder).packs]
