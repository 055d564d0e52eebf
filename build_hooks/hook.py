"""The glue to setuptools: one more step of ``build``, and the right Python tag and bills of materials for the wheel.

``setuptools.finalize_distribution_options`` runs for every project that is built in an environment with this package;
all but those with a ``[tool.aiter-flydsl-prebuild]`` table are left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import Distribution
from setuptools.errors import SetupError

from aiter_flydsl_prebuild import __version__
from aiter_flydsl_prebuild.errors import PrebuildError

from .config import read_config

COMMAND = "build_flydsl_kernels"

LOADER = "aiter-flydsl-prebuild"


def finalize_distribution_options(dist: Distribution) -> None:
    """Extend the build of a project that asks for it."""
    # With a src_root (a build driven from elsewhere) that is the project's folder, not the current one.
    project = Path(getattr(dist, "src_root", None) or ".")
    try:
        config = read_config(project)
    except PrebuildError as error:
        raise SetupError(str(error)) from None
    if config is None:
        return
    from .command import build_flydsl_kernels

    dist.cmdclass.setdefault(COMMAND, build_flydsl_kernels)
    _add_to_build(dist)
    _extend_wheel(dist)
    if config.enabled and config.loader:
        _require_loader(dist)


def _add_to_build(dist: Distribution) -> None:
    base: Any = dist.get_command_class("build")
    if any(name == COMMAND for name, _ in base.sub_commands):
        return

    class build(base):  # type: ignore[misc]
        # A copy: the list of the class below is shared by every project that this process builds.
        sub_commands = [*base.sub_commands, (COMMAND, None)]  # noqa: RUF012

    dist.cmdclass["build"] = build


def _extend_wheel(dist: Distribution) -> None:
    """The kernels' Python tag on the wheel, and their bill of materials in its metadata (PEP 770)."""
    base: Any = dist.get_command_class("bdist_wheel")

    class bdist_wheel(base):  # type: ignore[misc]
        def get_tag(self) -> tuple[str, str, str]:
            python, abi, platform = super().get_tag()
            kernels = self.get_finalized_command(COMMAND).python_tag()
            # A wheel with extension modules has a narrower tag already.
            return (kernels if kernels and python.startswith("py") else python), abi, platform

        def write_wheelfile(self, wheelfile_base: str, *arguments: Any, **named: Any) -> None:
            # setuptools' own moment for what goes into the metadata and is known only after the build.
            super().write_wheelfile(wheelfile_base, *arguments, **named)
            self.get_finalized_command(COMMAND).write_bills(Path(wheelfile_base, "sboms"))

    dist.cmdclass["bdist_wheel"] = bdist_wheel


def _require_loader(dist: Distribution) -> None:
    """Have the wheel require this package, which puts its kernels in place at run time."""
    base: Any = dist.get_command_class("egg_info")

    class egg_info(base):  # type: ignore[misc]
        def run(self) -> None:
            # Here, since what pyproject.toml requires is known only after the distribution was made.
            wanted = list(self.distribution.install_requires or ())
            if not any(_names_loader(requirement) for requirement in wanted):
                wanted.append(f"{LOADER}>={__version__}")
                self.distribution.install_requires = wanted
                self.distribution.metadata.install_requires = wanted
            super().run()

    dist.cmdclass["egg_info"] = egg_info


def _names_loader(requirement: str) -> bool:
    """Whether a requirement is one of this project, with whatever extras, versions and markers."""
    # Only a project with the table comes here; setuptools from 71 brings packaging along.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        return canonicalize_name(Requirement(requirement).name) == LOADER
    except InvalidRequirement:
        return False  # setuptools says what is wrong with it
