"""The build step: makes the pack, or takes a finished one, and lays it into the package."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from setuptools import Command
from setuptools.errors import SetupError

from aiter_flydsl_prebuild.discovery import FOLDER, SUFFIX
from aiter_flydsl_prebuild.errors import CheckError, InputError, PrebuildError
from aiter_flydsl_prebuild.flydsl.cache import python_tag
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.scratch import scratch_folder

from .comparing import ProjectCode, compare
from .config import read_config

if TYPE_CHECKING:
    from aiter_flydsl_prebuild.builder.settings import HookSettings

# In an editable install, beside the packs: the names of those that the hook made.
_RECORD = ".made-by-aiter-flydsl-prebuild"


class build_flydsl_kernels(Command):
    """``setup.py build_flydsl_kernels``: a sub-command of ``build`` (setuptools' SubCommand protocol)."""

    description = "compile FlyDSL kernels and put them into the package"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("build-lib=", "d", "directory to build into (default: build's build-lib)"),
    ]

    build_lib: str | None
    editable_mode: bool

    def initialize_options(self) -> None:
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))
        self._config = read_config(Path(getattr(self.distribution, "src_root", None) or "."))
        self._tag: str | None = None

    def run(self) -> None:
        """Put the pack in place. Packs of an earlier build, which a build folder keeps, go first."""
        config = self._config
        if config is None or (self.editable_mode and not config.editable):
            return
        self._remove_old(config)
        if not config.enabled:
            return
        folder = self._folder(config)
        if not folder.parent.is_dir():
            raise SetupError(f"FlyDSL kernels cannot go into {config.package}: this project has no such package")
        self._check_epoch()
        try:
            with scratch_folder("hook") as scratch:
                pack = self._finished(config, scratch) if config.pack else self._built(config, scratch)
                made = Pack(str(pack))
                if config.pack:
                    for line in compare(made, pack.name, ProjectCode(self._own_package)):
                        self.warn(line)
                self._tag = python_tag(made.generation, made.identities)
                folder.mkdir(parents=True, exist_ok=True)
                self._lay(pack, folder)
        except PrebuildError as error:
            if not config.optional:
                raise SetupError(f"FlyDSL kernels could not be built: {error}") from None
            self.warn(f"built without FlyDSL kernels: {error}")

    @staticmethod
    def _check_epoch() -> None:
        """Say before anything is compiled what would stop setuptools at the very end, with a traceback."""
        from aiter_flydsl_prebuild.builder.epoch import source_date_epoch

        try:
            source_date_epoch()
        except InputError as error:
            raise SetupError(str(error)) from None

    def _remove_old(self, config: HookSettings) -> None:
        """Remove packs that no step of this build makes, wherever an earlier one put them.

        setuptools never cleans its build folder, and packs everything that lies there into the wheel. In an editable
        install the folder is the project's own: there the hook removes only what it made, by its record.
        """
        if self.editable_mode:
            record = self._folder(config) / _RECORD
            old = [record.with_name(name) for name in _lines(record)]
        else:
            root = Path(self.build_lib or "build/lib")
            old = [path for path in root.rglob(f"{FOLDER}/*{SUFFIX}") if not self._is_source(path.relative_to(root))]
        for path in old:
            if path.is_file():
                path.unlink()
                self.warn(f"removed {path}, kernels of an earlier build")

    def _is_source(self, path: Path) -> bool:
        """Whether build_py copied a pack from the project's own files (and not from an editable install's)."""
        package = ".".join(path.parent.parent.parts)
        own = Path(self.get_finalized_command("build_py").get_package_dir(package), FOLDER, path.name)
        return own.is_file() and own.name not in _lines(own.with_name(_RECORD))

    def _lay(self, pack: Path, folder: Path) -> None:
        """Copy the pack into its folder, where it may lie already."""
        target = folder / pack.name
        if not (target.exists() and target.samefile(pack)):
            shutil.copyfile(pack, target)
            if self.editable_mode:
                (folder / _RECORD).write_text(f"{pack.name}\n", encoding="utf-8")

    def get_source_files(self) -> list[str]:
        """What an sdist needs for this step: a finished pack that lies in the project."""
        pack = self._config.pack if self._config is not None else None
        if pack is None or not pack.is_file():
            return []
        root = Path(getattr(self.distribution, "src_root", None) or ".").resolve()
        return [str(pack.resolve().relative_to(root))] if pack.resolve().is_relative_to(root) else []

    def get_outputs(self) -> list[str]:
        """The packs in the build folder."""
        if self._config is None:
            return []
        return sorted(str(path) for path in self._folder(self._config).glob(f"*{SUFFIX}"))

    def get_output_mapping(self) -> dict[str, str]:
        """No output is a copy of a source file."""
        return {}

    def python_tag(self) -> str | None:
        """The wheel's Python tag where the kernels need one: ``cp311``, ``cp311.cp312``."""
        return self._tag

    def write_bills(self, folder: Path) -> None:
        """Write the bill of materials of each pack in the build folder."""
        packs = [Path(path) for path in self.get_outputs()]
        if not packs:
            return
        from aiter_flydsl_prebuild.builder.wheels.sbom import SUFFIX as BILL
        from aiter_flydsl_prebuild.builder.wheels.sbom import bill_of_materials

        folder.mkdir(parents=True, exist_ok=True)
        for pack in packs:
            bill = bill_of_materials(Pack(str(pack)), pack.name)
            (folder / f"{pack.stem}{BILL}").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")

    def _folder(self, config: HookSettings) -> Path:
        if self.editable_mode:
            # An editable install imports the project where it is.
            return Path(self.get_finalized_command("build_py").get_package_dir(config.package), FOLDER)
        return Path(self.build_lib or "build/lib") / self._place(config)

    def _own_package(self, name: str) -> Path | None:
        """Where the project that is built has a top-level package or module, None where it has none of that name."""
        places = []
        if any(package.partition(".")[0] == name for package in self.distribution.packages or ()):
            places.append(Path(self.get_finalized_command("build_py").get_package_dir(name)))
        if self._config is not None:
            places += [self._config.source_path / name, self._config.source_path / f"{name}.py"]
        # A module is its file, a package its folder.
        return next((place for place in places if place.is_dir() or place.is_file()), None)

    @staticmethod
    def _place(config: HookSettings) -> Path:
        return Path(*config.package.split("."), FOLDER)

    def _built(self, config: HookSettings, folder: Path) -> Path:
        """A new pack."""
        # The build half is heavy, and most commands of a build never come here.
        from aiter_flydsl_prebuild.builder.building import build

        with _import_path(str(config.source_path.resolve())):
            built = build(config, folder)
        for kernel in built.failed:
            self.warn(f"built without the FlyDSL kernel {kernel}")
        self.announce(f"{built.kernels} FlyDSL kernels, {built.bytes} bytes, proven in {built.seconds:.0f} s", level=2)
        return built.path

    def _finished(self, config: HookSettings, folder: Path) -> Path:
        """The pack that the project names, which passes the same gates as a new one.

        :raises PrebuildError: it is no pack, its wheel does not hold one, or a gate is not passed.
        """
        from aiter_flydsl_prebuild.builder.gates import gates_of, refusal
        from aiter_flydsl_prebuild.builder.reports.reporting import subject_of, write

        assert config.pack is not None
        path = _unpacked(config.pack, folder)
        pack = Pack(str(path))
        if wrong := gates_of(config).check([pack], path.stat().st_size):
            raise CheckError(refusal(wrong))
        if config.report:
            write(subject_of(pack), config.report)
        return path


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError:
        return []


def _unpacked(pack: Path, folder: Path) -> Path:
    """A finished pack, out of its wheel if that was named.

    :raises PrebuildError: the wheel does not hold one pack.
    """
    if pack.suffix != ".whl":
        return pack
    from aiter_flydsl_prebuild.builder.proof.proof import open_subject

    found = open_subject(pack, folder).packs
    if len(found) != 1:
        raise InputError(f"{pack}: holds {len(found)} packs; name one of them")
    return found[0]


@contextmanager
def _import_path(folder: str) -> Iterator[None]:
    """Let this process and the build's workers import from a folder: the kernels may be in the project itself."""
    from aiter_flydsl_prebuild.processes import environment

    sys.path.insert(0, folder)
    try:
        with environment(PYTHONPATH=os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))):
            yield
    finally:
        sys.path.remove(folder)
