"""Finding packs and FlyDSL on sys.path with a few stats: what even a process that never needs a kernel can afford.

Imports nothing that a bare interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


SUFFIX = ".fkpack"
FOLDER = "flydsl_kernels"
"""The folder inside a package that holds its packs."""

KERNEL_PACKAGES = ("aiter", "aiter_flydsl_prebuild")
"""Packages whose folder is looked at without being asked."""

KERNELS_NAMESPACE = "aiter_flydsl_kernels"
"""What wheels of kernels alone share: a package of it for each arch."""

PACKS_VARIABLE = "AITER_FLYDSL_PREBUILD_PACKS"
"""Further packs: files, or folders that hold some, joined as in PATH."""

MODE_VARIABLE = "AITER_FLYDSL_PREBUILD"

BUILD_VARIABLE = "AITER_FLYDSL_PREBUILD_BUILD"
"""The setuptools hook: ``0`` switches it off whatever a project's table says, ``1`` on although it is not enabled."""

CACHE_VARIABLE = "FLYDSL_RUNTIME_CACHE_DIR"
RUN_ONLY_VARIABLE = "FLYDSL_RUNTIME_RUN_ONLY"

STAMPS = ".aiter-flydsl-prebuild"
"""The folder in a cache root that holds the stamps; FlyDSL looks only at folders named after launchers."""

TEMPORARY = ".afp-"
"""How the name of a file begins that is being written; it is renamed when it is whole."""

# aiter/__init__.py points FlyDSL at this folder of its own package when it exists and the variable is not set.
_BUNDLED = ("aiter", "jit", "flydsl_cache")


def mode_of(environ: Mapping[str, str]) -> str | None:
    """``off``, ``on`` or ``strict``, as MODE_VARIABLE says; None where it says something else."""
    value = environ.get(MODE_VARIABLE, "").strip().lower()
    value = {"": "on", "0": "off", "1": "on"}.get(value, value)
    return value if value in ("off", "on", "strict") else None


def package_folders(name: str) -> list[str]:
    """Where a package is, or would be: its own word if it is imported, what finders say, and below sys.path.

    Nothing is imported, neither the package nor its parents.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return []
    # The empty entry is the working folder, also for join; that it may have been deleted is no error here.
    return _found_by_import(name) + [os.path.join(entry, *name.split(".")) for entry in sys.path]


def finders() -> list[Any]:
    """The finders of sys.meta_path that may be asked: this project's own seeds when it is."""
    return [finder for finder in sys.meta_path if getattr(finder, "__module__", "") != f"{__package__}.startup"]


# They find nothing but what lies below sys.path.
_OF_PATHS = ("_frozen_importlib", "_frozen_importlib_external")


def _found_by_import(name: str) -> list[str]:
    """Where the import system finds a package that is not simply below sys.path, as an editable install may not be."""
    folders: list[str] | None = None
    full = ""
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        module = sys.modules.get(full)
        homes = list(getattr(module, "__path__", ())) if module else _asked(full, folders)
        if not homes:
            homes = [os.path.join(folder, part) for folder in folders or ()]
        folders = homes
    return folders or []


def _asked(name: str, path: list[str] | None) -> list[str]:
    """The folders of a package by the finders of sys.meta_path; ``path`` is its parent's, None at the top."""
    # setuptools' editable installs serve namespace packages by an entry that is no path, with a hook of its own.
    entries = sys.path if path is None else path
    hooked = any(entry and not os.path.isabs(entry) for entry in entries)
    for finder in finders():
        module = getattr(finder, "__module__", "")
        if module in _OF_PATHS and not (hooked and module == "_frozen_importlib_external"):
            continue
        try:
            spec = finder.find_spec(name, path)
            folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        except (
            Exception
        ):  # Any program may have put it there, and a namespace below a parent that is not imported fails.
            continue
        if folders:
            return folders
    return []


def bundled_folder() -> str | None:
    """The cache folder inside an installed AITER, if it ships one: laid out as FlyDSL's, and not to be run from."""
    for home in package_folders(_BUNDLED[0]):
        folder = os.path.join(home, *_BUNDLED[1:])
        if os.path.isdir(folder):
            return os.path.realpath(folder)
    return None


def find_packs(packages: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> list[str]:
    """Paths of the packs of ``packages``, of the known packages and of PACKS_VARIABLE, each once."""
    return look_for_packs(packages, environ)[0]


def look_for_packs(
    packages: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> tuple[list[str], list[str]]:
    """:func:`find_packs`, and a line for each place that was named by the user and holds no pack."""
    names = tuple(packages)
    found: dict[str, None] = {}
    lines = []
    for name in (*names, *(known for known in KERNEL_PACKAGES if known not in names)):
        homes = package_folders(name)
        packs = [pack for home in homes for pack in _packs_in(os.path.join(home, FOLDER))]
        found.update(dict.fromkeys(packs))
        if name in names and not packs:
            lines.append(_without_packs(name, homes))
    for home in package_folders(KERNELS_NAMESPACE):
        for arch in listed(home):
            found.update(dict.fromkeys(_packs_in(os.path.join(home, arch, FOLDER))))
    for place in filter(None, environ.get(PACKS_VARIABLE, "").split(os.pathsep)):
        packs = [os.path.realpath(place)] if place.endswith(SUFFIX) else _packs_in(place)
        found.update(dict.fromkeys(packs))
        if not packs:
            lines.append(f"{PACKS_VARIABLE} names {place}, {_what_is_wrong_with(place)}")
    return list(found), lines


def _packs_in(folder: str) -> list[str]:
    return [os.path.realpath(os.path.join(folder, name)) for name in listed(folder) if name.endswith(SUFFIX)]


def _without_packs(name: str, homes: list[str]) -> str:
    there = [home for home in homes if os.path.isdir(home)]
    if there:
        return f"package {name} ({there[0]}) holds no pack of kernels ({os.path.join(FOLDER, '*' + SUFFIX)})"
    return f"package {name} is not installed in this environment; use the name that Python imports"


def _what_is_wrong_with(place: str) -> str:
    if place.endswith(".whl"):
        return f"which is a wheel: install it, or name a folder with the {SUFFIX} files of it"
    try:
        os.listdir(place)
    except NotADirectoryError:
        return f"which is neither a pack (*{SUFFIX}) nor a folder"
    except OSError as error:
        return f"which cannot be read: {error.strerror or error}"
    return "a folder without a pack of kernels"


def listed(folder: str) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def locate_flydsl(search: list[str] | None = None) -> tuple[str, str] | None:
    """``(folder that holds the flydsl package, its dist-info folder or "")``, or None without FlyDSL.

    The first match on ``sys.path`` wins, as for an import. importlib.metadata would do the same, at ten times the cost.
    """
    for entry in sys.path if search is None else search:
        if os.path.isfile(os.path.join(entry, "flydsl", "__init__.py")):
            folder = os.path.abspath(entry)
            infos = flydsl_metadata(folder)
            return folder, infos[0] if len(infos) == 1 else ""
    for home in _found_by_import("flydsl") if search is None else ():
        if os.path.isfile(os.path.join(home, "__init__.py")):
            # The metadata of an editable install is where pip put it.
            infos = [info for entry in sys.path for info in flydsl_metadata(entry)]
            return os.path.dirname(home), infos[0] if len(infos) == 1 else ""
    return None


def flydsl_metadata(folder: str) -> list[str]:
    """Paths of FlyDSL's dist-info folders in a folder: one, unless something went wrong with an update."""
    try:
        # Not listed(): a folder of packages has hundreds of names, and sorting them costs as much as reading them.
        names = [name for name in os.listdir(folder) if name.startswith("flydsl-") and name.endswith(".dist-info")]
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names)]


ROOT_VARIABLES = ("ROCM_PATH", "ROCM_ROOT", "ROCM_HOME")
"""The variables that name a ROCm root, in FlyDSL's order."""

DEFAULT_ROCM = "/opt/rocm"
"""Where FlyDSL looks when none of them is set."""


def rocm_root(environ: Mapping[str, str] = os.environ) -> str:
    """The ROCm folder that FlyDSL's native code takes: the first variable that is set, even if empty (0.5.0)."""
    for name in ROOT_VARIABLES:
        if name in environ:
            return environ[name]
    return DEFAULT_ROCM


def bitcode_files(root: str) -> list[str]:
    """Paths of the device bitcode below a ROCm folder, in FlyDSL's order."""
    folder = os.path.join(root, "amdgcn", "bitcode")
    return [os.path.join(folder, name) for name in listed(folder) if name.endswith(".bc")]


def default_cache_dir() -> str:
    """Where FlyDSL keeps its cache when nothing says otherwise (``utils/env.py``, RuntimeEnvManager.cache_dir)."""
    return os.path.join(os.path.expanduser("~"), ".flydsl", "cache")


def folder_in_use(environ: Mapping[str, str] = os.environ) -> str:
    """The cache root that FlyDSL reads in a process with this environment, which it takes as it stands."""
    return environ.get(CACHE_VARIABLE, default_cache_dir())


_SECOND = 10**9


class UncertainError(ValueError):
    """A file system does not tell when a file was changed."""


def state_of(path: str) -> str:
    """A line that changes whenever the content of a file, or the list of a folder, does.

    It holds the time of the last change of the inode (ctime), which no program can set, the inode's number, the size
    and the time of modification. Image builders and packagers set the latter to a constant, but writing, replacing,
    renaming or unpacking a file gives it a new ctime: that of the layer's extraction in a container. On overlayfs it is
    the one of the layer that holds the file, so that a replaced layer shows too.

    :raises UncertainError: the ctime is a whole second. Then the file system has none of its own: squashfs and erofs
        images report the time of modification in its place, and Lustre keeps seconds.
    :raises OSError: there is no such file.
    """
    state = os.stat(path)
    if state.st_ctime_ns % _SECOND == 0:
        raise UncertainError(path)
    return f"{path} {state.st_ctime_ns} {state.st_mtime_ns} {state.st_ino} {state.st_size}"


def states(paths: Iterable[str]) -> str:
    """The lines of several files. Raises what :func:`state_of` raises."""
    return "\n".join(map(state_of, paths))


def unchanged(lines: str) -> bool:
    """Whether the files of lines of :func:`states` still are as they were."""
    try:
        return not lines or states(line.rsplit(" ", 4)[0] for line in lines.split("\n")) == lines
    except (OSError, UncertainError):
        return False
