"""Arguments that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..builder.setting_kinds import FLAG, SIZE, TOKENS, Kind
from ..builder.settings import BuildSettings, Group, Setting, settings
from ..errors import CheckError, InputError

if TYPE_CHECKING:
    from ..packs.format import Pack


_TITLES: dict[Group, str] = {
    "gates": "gates, which the wheel must pass",
    "execution": "executing kernels on a CPU",
}


def add_settings(parser: argparse.ArgumentParser, *groups: Group) -> None:
    """The flags of groups of the build's settings."""
    titled = {group: parser.add_argument_group(_TITLES[group]) for group in groups if group in _TITLES}
    for one in settings(BuildSettings, *groups):
        add_setting(titled.get(one.group, parser), one)


def add_setting(parser: argparse._ActionsContainer, one: Setting) -> None:
    """The flag of one setting."""
    assert one.flag is not None
    if one.kind is FLAG:
        parser.add_argument(one.flag, action="store_true", help=one.help)
        return
    many: dict[str, Any] = {"nargs": "+"} if one.kind.many else {}
    text = f"{one.help} (default: {one.default_text})".replace("%", "%%")
    parser.add_argument(one.flag, type=_type(one.kind), default=one.default, metavar=one.metavar, help=text, **many)


def _type(kind: Kind) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind.from_text(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def days(text: str) -> float:
    """A number of days from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, 0 or more")
    return value


size = _type(SIZE)
tokens = _type(TOKENS)


def asked(args: argparse.Namespace) -> BuildSettings:
    """The settings that were given; those that the command does not have are the default."""
    given: dict[str, Any] = {}
    for one in settings():
        if hasattr(args, one.name):
            value = getattr(args, one.name)
            given[one.name] = tuple(value) if one.kind.many else value
    return BuildSettings(**given)


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
    from ..packs.format import PackError

    try:
        yield
    except PackError as error:
        raise CheckError(str(error).replace(f"{folder}/", f"{wheel}: ")) from None


def opened(wheel: Path) -> list[Pack]:
    """The packs of a wheel, read and checked.

    :raises CheckError: one is damaged.
    """
    from ..builder.proof.proof import open_subject
    from ..packs.format import Pack
    from ..scratch import scratch_folder

    with scratch_folder("open") as folder, naming(wheel, folder):
        return [Pack(str(path)) for path in open_subject(wheel, folder).packs]
