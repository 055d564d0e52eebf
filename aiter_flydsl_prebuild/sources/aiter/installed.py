"""Where AITER is installed, which one it is, and what it has: all read from its files, nothing imported."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...dispatch import rules
from ...errors import CheckError, InputError

PACKAGE = "aiter"
DISTRIBUTION = "amd-aiter"
KERNEL_SOURCES = "ops/flydsl"
"""The folder of the package that holds the FlyDSL kernels: what a kernel function closes over is in there."""

_PADDING = "csrc/py_itfs_cu/gemm_common.cu"
_PADDING_MODULE = "jit/module_gemm_common.so"
# The tables end at 32768; a little beyond, to cross every step of the rule.
_COMPARED_M = 40_000


@dataclass(frozen=True)
class Installed:
    """An AITER: ``package`` is the folder of the Python package, ``root`` the one it lies in."""

    package: Path

    @property
    def root(self) -> Path:
        return self.package.parent

    def has(self, module: str, *texts: str) -> bool:
        """Whether a file of the package is there and holds all of ``texts``."""
        try:
            content = (self.package / module).read_text(encoding="utf-8")
        except OSError:
            return False
        return all(text in content for text in texts)


def find() -> Installed:
    """The AITER that ``import aiter`` would import.

    :raises InputError: there is none.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        raise InputError(
            "AITER is not installed: the source aiter needs it importable (pip install it, or put its checkout on "
            "PYTHONPATH)"
        )
    return Installed(Path(folders[0]).resolve())


def identity(aiter: Installed) -> dict[str, str]:
    """AITER's version, commit where known, and the digest of its kernel sources.

    The digest covers every Python file below :data:`KERNEL_SOURCES`, by path and content: FlyDSL keys on the sources of
    the kernel functions, and those are all in there. The commit comes from git in a checkout, else from the ``+g…``
    that setuptools-scm puts in the version.
    """
    digest = hashlib.sha256()
    kernels = aiter.package / KERNEL_SOURCES
    for path in sorted(kernels.rglob("*.py")):
        digest.update(path.relative_to(kernels).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    version = _version(aiter)
    found = {"version": version, "digest": digest.hexdigest(), "license": "MIT"}
    if commit := _commit(aiter, version):
        found["commit"] = commit
    return found


def _version(aiter: Installed) -> str:
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    # A distribution of that name may be another installation than the package that is found first.
    if distribution is not None and Path(str(distribution.locate_file(PACKAGE))).resolve() == aiter.package:
        return distribution.version
    match = None
    if (aiter.package / "_version.py").is_file():
        text = (aiter.package / "_version.py").read_text(encoding="utf-8")
        match = re.search(r"^(?:__version__ = )?version = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else "unknown"


def _commit(aiter: Installed, version: str) -> str | None:
    if (aiter.root / ".git").exists():
        command = ["git", "-C", str(aiter.root), "rev-parse", "HEAD"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            run = None
        if run is not None and run.returncode == 0:
            return run.stdout.strip()
    match = re.search(r"\+g([0-9a-f]{7,40})", version)
    return match[1] if match else None


@functools.cache
def rule(aiter: Installed) -> str:
    """The rule of :data:`rules.RULES` that this AITER pads token counts by.

    From its source (csrc/py_itfs_cu/gemm_common.cu, getPaddedM: the newest has a step below 16), which AITER's wheels
    carry too. Where AITER's compiled module is there, it is asked for every M, and must agree.

    :raises CheckError: the compiled module pads otherwise than the rule says.
    """
    sources = [aiter.root / _PADDING, aiter.root / "aiter_meta" / _PADDING]
    text = next((path.read_text(encoding="utf-8") for path in sources if path.is_file()), "")
    chosen = "newest" if not text or re.search(r"M\s*<\s*16\b", text) else "august"
    module = aiter.package / _PADDING_MODULE
    if module.is_file():
        check_padding(module, chosen)
    return chosen


def check_padding(module: Path, chosen: str) -> None:
    """Compare AITER's compiled getPaddedM with a rule, for every M up to 40000 and N on both sides of its limit.

    :raises CheckError: they differ, or the module cannot be loaded.
    """
    try:
        padded_m = ctypes.CDLL(str(module)).getPaddedM
    except (OSError, AttributeError) as error:
        raise CheckError(f"{module}: AITER's compiled padding cannot be loaded: {error}") from error
    padded_m.argtypes, padded_m.restype = [ctypes.c_int] * 4, ctypes.c_int
    for n in (4096, 4097):
        for level in (0, 1):
            for m in range(1, _COMPARED_M + 1):
                theirs, ours = padded_m(m, n, 128, level), rules.padded_m(m, n, level, chosen)
                if theirs != ours:
                    raise CheckError(
                        f"{module}: pads M={m}, N={n} to {theirs} at level {level}, the rule {chosen} to {ours}"
                    )
