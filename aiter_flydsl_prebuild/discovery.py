"""Finding packs and FlyDSL on sys.path with a few stats: what even a process that never needs a kernel can afford.

Imports nothing that a bare interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    """Where a package is, or would be: its own word if it is imported (also in editable form), else below sys.path."""
    module = sys.modules.get(name)
    homes = list(getattr(module, "__path__", ())) if module else []
    # The empty entry is the working folder, also for join; that it may have been deleted is no error here.
    return homes + [os.path.join(entry, *name.split(".")) for entry in sys.path]


def bundled_folder() -> str | None:
    """The cache folder inside an installed AITER, if it ships one: laid out as FlyDSL's, and not to be run from."""
    for home in package_folders(_BUNDLED[0]):
        folder = os.path.join(home, *_BUNDLED[1:])
        if os.path.isdir(folder):
            return os.path.realpath(folder)
    return None


def find_packs(packages: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> list[str]:
    """Paths of the packs of ``packages``, of the known packages and of PACKS_VARIABLE, each once."""
    names = (*packages, *(p for p in KERNEL_PACKAGES if p not in packages))
    homes = [home for name in names for home in package_folders(name)]
    homes += [os.path.join(home, arch) for home in package_folders(KERNELS_NAMESPACE) for arch in _listed(home)]
    folders = [os.path.join(home, FOLDER) for home in homes]
    found: dict[str, None] = {}
    for place in [*folders, *filter(None, environ.get(PACKS_VARIABLE, "").split(os.pathsep))]:
        if place.endswith(SUFFIX):
            found[os.path.realpath(place)] = None
            continue
        found.update((os.path.realpath(os.path.join(place, n)), None) for n in _listed(place) if n.endswith(SUFFIX))
    return list(found)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def locate_flydsl(search: list[str] | None = None) -> tuple[str, str] | None:
    """``(folder that holds the flydsl package, its dist-info folder or "")``, or None without FlyDSL.

    The first match on ``sys.path`` wins, as for an import. importlib.metadata would do the same, at ten times the cost.
    """
    for entry in sys.path if search is None else search:
        if not os.path.isfile(os.path.join(entry, "flydsl", "__init__.py")):
            continue
        folder = os.path.abspath(entry)
        infos = [n for n in os.listdir(folder) if n.startswith("flydsl-") and n.endswith(".dist-info")]
        return folder, os.path.join(folder, infos[0]) if len(infos) == 1 else ""
    return None


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
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(".bc")]


def default_cache_dir() -> str:
    """Where FlyDSL keeps its cache when nothing says otherwise (``utils/env.py``, RuntimeEnvManager.cache_dir)."""
    return os.path.join(os.path.expanduser("~"), ".flydsl", "cache")


def folder_in_use(environ: Mapping[str, str] = os.environ) -> str:
    """The cache root that FlyDSL reads in a process with this environment, which it takes as it stands."""
    return environ.get(CACHE_VARIABLE, default_cache_dir())


def fingerprint(arches: list[str], environ: Mapping[str, str] = os.environ) -> str:
    """Changes whenever the fit of a pack could: FlyDSL's RECORD, the device bitcode, the arches, the Python."""
    found = locate_flydsl()
    watched = [os.path.join(found[1], "RECORD")] if found and found[1] else []
    watched += bitcode_files(rocm_root(environ))
    return "\n".join([sys.implementation.cache_tag or sys.version, *arches, *map(file_state, watched)])


def file_state(path: str) -> str:
    """A line that changes when a file does."""
    try:
        state = os.stat(path)
    except OSError:
        return f"{path} is not there"
    return f"{path} {state.st_mtime_ns} {state.st_size}"
