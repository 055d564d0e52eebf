"""The small distribution of its own: ``aiter-flydsl-kernels-<arch>``, a pack and nothing else, built by setuptools.

The same hook that puts a pack into someone else's wheel makes this one: a project of three files is written, its
``[tool.aiter-flydsl-prebuild]`` table names the finished pack, and setuptools builds it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from ... import __version__
from ...discovery import BUILD_VARIABLE, KERNELS_NAMESPACE, SUFFIX
from ...errors import CheckError
from ...packs.format import Pack
from ...scratch import scratch_folder
from ..epoch import FIRST, source_date_epoch
from .wheelcheck import wheel_problems

_PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = {name}
version = {version}
description = {description}
readme = "README.md"
requires-python = ">=3.10"
{license}dependencies = {dependencies}

[tool.setuptools]
packages = [{package}]

[tool.aiter-flydsl-prebuild]
package = {package}
pack = {pack}
"""

_README = """\
# {name}

{kernels} precompiled FlyDSL kernels for {arch}, for flydsl {flydsl} ({where}), from the source `{source}`, for {first}
to {last} tokens. Made by aiter-flydsl-prebuild {version}, which puts them into FlyDSL's cache at run time:

    import aiter_flydsl_prebuild
    aiter_flydsl_prebuild.seed()

`aiter-flydsl-prebuild inspect` lists what is inside.
"""


def build_wheel(
    pack_path: Path,
    out: Path,
    accept: Callable[[Path], None] = lambda wheel: None,
    number: int | None = None,
) -> Path:
    """Build the kernels' own wheel around a pack; returns its path in ``out``, a folder.

    :param accept: sees the wheel before it is there, and raises where it must not be.
    :param number: orders wheels for one FlyDSL (:func:`wheel_version`).

    Honours SOURCE_DATE_EPOCH; without it the stamps in the wheel are those of 1980, so that two builds are alike.

    :raises CheckError: setuptools failed, with the last of what it said, or made something else.
    :raises InputError: SOURCE_DATE_EPOCH is no time that a wheel can hold.
    """
    pack = Pack(str(pack_path))
    name = f"aiter-flydsl-kernels-{pack.arch}"
    with scratch_folder("wheel") as folder:
        project = folder / "project"
        # A package for each arch: two such wheels must not share a file.
        package = project / KERNELS_NAMESPACE / pack.arch
        package.mkdir(parents=True)
        (package / "__init__.py").write_text('"""Precompiled FlyDSL kernels; aiter_flydsl_prebuild reads them."""\n')
        plan, source = pack.manifest.plan, pack.manifest.source
        text = _README.format(
            name=name,
            kernels=len(pack.kernels),
            arch=pack.arch,
            flydsl=pack.version,
            where=", ".join(sorted(pack.identities)),
            source=source.name,
            first=plan.tokens[0],
            last=plan.tokens[1],
            version=__version__,
        )
        (project / "README.md").write_text(text)
        pyproject = _PYPROJECT.format(
            name=json.dumps(name),
            version=json.dumps(wheel_version(pack, number)),
            description=json.dumps(f"Precompiled FlyDSL kernels for {pack.arch} and flydsl {pack.version}"),
            dependencies=json.dumps([f"aiter-flydsl-prebuild>={__version__}", f"flydsl=={pack.version}"]),
            license=f"license = {json.dumps(source.license)}\n" if source.license else "",
            package=json.dumps(f"{KERNELS_NAMESPACE}.{pack.arch}"),
            pack=json.dumps(str(pack_path.resolve())),
        )
        (project / "pyproject.toml").write_text(pyproject)
        return _run_backend(project, out.resolve(), pack_path, accept)


def wheel_version(pack: Pack, number: int | None = None) -> str:
    """The version of a pack's own wheel: FlyDSL's, with what tells the wheel from others for that FlyDSL.

    Installers take the highest version of an index, and nothing of the same version. A digest of the content makes
    other kernels another version, but does not order them; time does. So it is ``0.5.0.postN`` with a ``number``, which
    indexes such as PyPI take; else ``0.5.0+TIME.kDIGEST`` with SOURCE_DATE_EPOCH; else ``0.5.0+kDIGEST``: the same
    kernels give the same version, and versions in that order replace each other (PEP 440).

    :raises InputError: SOURCE_DATE_EPOCH is no time that a wheel can hold.
    """
    from packaging.version import Version

    flydsl = Version(pack.version)
    if number is not None and not (flydsl.is_devrelease or flydsl.is_postrelease or flydsl.local):
        return f"{flydsl.public}.post{number}"
    epoch = source_date_epoch()
    if number is None and epoch is not None:
        number = int(time.strftime("%Y%m%d%H%M%S", time.gmtime(epoch)))
    parts = [flydsl.local, None if number is None else str(number), f"k{pack.header.pack_id[:8]}"]
    return f"{flydsl.public}+{'.'.join(part for part in parts if part)}"


def unordered(wheel: Path, number: int | None) -> str | None:
    """What to say where another wheel lies beside a new one, and nothing tells pip which is newer."""
    if number is not None or source_date_epoch() is not None:
        return None
    name = wheel.name.partition("-")[0]
    others = sorted(other.name for other in wheel.parent.glob(f"{name}-*.whl") if other != wheel)
    if not others:
        return None
    return (
        f"{wheel.parent} holds {', '.join(others)} as well, and pip does not know which is newer: "
        "build with --number N, or set SOURCE_DATE_EPOCH"
    )


def _run_backend(project: Path, out: Path, pack: Path, accept: Callable[[Path], None]) -> Path:
    """Call setuptools' build backend in a process of its own, and check that what comes back holds the pack."""
    with scratch_folder("wheel", beside=out) as folder:
        script = f"import os; os.umask(0o022); import setuptools.build_meta as b; b.build_wheel({str(folder)!r})"
        run = subprocess.run(
            [sys.executable, "-c", script],
            cwd=project,
            env={**_environment(), BUILD_VARIABLE: "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        built = list(folder.glob("*.whl"))
        if run.returncode or len(built) != 1:
            said = (run.stdout + run.stderr).strip().splitlines()
            raise CheckError(f"setuptools could not build the wheel: {said[-1] if said else 'it said nothing'}")
        with zipfile.ZipFile(built[0]) as archive:
            inside = [archive.read(name) for name in archive.namelist() if name.endswith(SUFFIX)]
        if inside != [pack.read_bytes()]:
            raise CheckError("setuptools built a wheel that does not hold the kernels that were proven")
        if wrong := wheel_problems(built[0], [Pack(str(pack))]):
            raise CheckError("\n".join(["setuptools built a wheel that pip would not install right:", *wrong]))
        accept(built[0])
        return built[0].replace(out / built[0].name)


def _environment() -> dict[str, str]:
    """What the build of the wheel may see: nothing that would show in its bytes but SOURCE_DATE_EPOCH."""
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    # Without SOURCE_DATE_EPOCH the wheel is the same on any day.
    epoch = source_date_epoch() or FIRST
    return {"SOURCE_DATE_EPOCH": str(epoch), **{name: os.environ[name] for name in kept if name in os.environ}}
