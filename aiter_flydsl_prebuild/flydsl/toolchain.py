"""The linker and the device bitcode that FlyDSL wants, found without ROCm or root, and a build's environment.

FlyDSL carries its own compiler but no linker: MLIR's ROCDL serializer, inside ``libFlyPythonCAPI``, runs
``$ROCM_PATH/llvm/bin/ld.lld`` and, for a kernel that calls an ocml or ockl function, reads
``$ROCM_PATH/amdgcn/bitcode`` (root: ROCM_PATH, ROCM_ROOT, ROCM_HOME, else /opt/rocm). Only this layout will do: the
ROCm SDK wheels keep both under ``lib/llvm``, distributions under ``/usr/lib/llvm-NN``, and ziglang has no such file.
So the linker that was found is put behind a small per-user folder with the right layout::

    <cache>/aiter-flydsl-prebuild/toolchain-<hash>/llvm/bin/ld.lld      a two-line script, always
    <cache>/aiter-flydsl-prebuild/toolchain-<hash>/amdgcn/bitcode       a link, in the variant with bitcode only

``<cache>`` is the user's cache folder (paths.py). The hash covers the folder's contents: a linker that moved gets
another folder. A script, never a link: the ``ld.lld`` of a ROCm SDK wheel finds its libraries relative to the path it
was called by, and fails when that is a bare name, as it is when MLIR calls it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shlex
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import discovery
from ..arch import ARCHES
from ..discovery import ROOT_VARIABLES
from ..errors import CheckError
from ..scratch import scratch_folder
from .cache import bitcode_digest
from .rocm_folder import cache_base, publish, temporary_base

DEFAULT_ROCM = Path(discovery.DEFAULT_ROCM)
"""Where FlyDSL looks when no variable names a root."""

DISTRIBUTION_LLVM = Path("/usr/lib")
"""Debian and Ubuntu install LLD as ``llvm-NN/bin/ld.lld`` below this folder."""

HOW_TO_GET_A_LINKER = (
    "install one of: PyPI's ziglang (pip install 'aiter-flydsl-prebuild[cross]'), your distribution's lld "
    "(version 19 or newer), ROCm or its SDK wheel (then set ROCM_PATH if it is not in /opt/rocm)"
)

_PROBE_SECONDS = 60.0

# What a build worker may see of the caller's environment. Everything else is dropped: some FLYDSL_* variables enter
# the cache key by their raw value, an inherited architecture makes kernels that the server cannot find, and HIP_*,
# HSA_*, ROCM_* and AITER_* describe the builder's machine, which must not matter.
_ALLOWED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "TZ", "XDG_CACHE_HOME"),
        *("LANG", "LANGUAGE", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        # What Python needs to find the same packages as the caller.
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "CONDA_PREFIX"),
        # numpy's import needs these on processors that its OpenBLAS misdetects.
        *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    }
)
# AITER_CONFIG_…: the tuned tables that a server of AITER reads; FlyDSL knows nothing of them.
_ALLOWED_PREFIXES = ("LC_", "AITER_CONFIG_")


@dataclass(frozen=True)
class Candidate:
    """One place where a linker was looked for.

    ``command`` is what runs it, empty where nothing was found; ``problem`` is None for a linker that works, else one
    line that says why it cannot be used; ``version`` is the linker's own name and version.
    """

    kind: str
    where: str
    command: tuple[str, ...] = ()
    version: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Fingerprint:
    """What this toolchain adds to a kernel's identity: the linker, and the bitcode where a kernel uses it.

    ``bitcode`` is the sha256 that FlyDSL 0.5.0 computes over the same files (:func:`flydsl.cache.bitcode_digest`), None
    where there is none.
    """

    linker: str
    bitcode: str | None


@dataclass(frozen=True)
class Toolchain:
    """A linker that works, behind a folder that FlyDSL accepts as ROCM_PATH.

    ``kind`` is ``ROCM_PATH`` (or the variable that named the root), ``/opt/rocm``, ``rocm-sdk``, ``PATH`` or
    ``ziglang``; ``rocm_root`` holds ``llvm/bin/ld.lld`` and no bitcode, so that a compile under it proves that the
    kernel needs none; ``skipped`` lists the earlier candidates that could not be used.
    """

    kind: str
    linker: Path
    linker_version: str
    rocm_root: Path
    bitcode: Path | None
    bitcode_source: str | None
    skipped: tuple[Candidate, ...] = ()

    @property
    def fingerprint(self) -> Fingerprint:
        """Reads every bitcode file. Raises PrebuildError where one cannot be read."""
        root = self.rocm_root_with_bitcode()
        return Fingerprint(self.linker_version, None if root is None else bitcode_digest(str(root)))

    def rocm_root_with_bitcode(self) -> Path | None:
        """The folder to compile a kernel under that does call ocml or ockl; None where no bitcode was found.

        Raises OSError where the folder cannot be made.
        """
        if self.bitcode is None:
            return None
        script = (self.rocm_root / "llvm" / "bin" / "ld.lld").read_text()
        return publish(self.rocm_root.parent, script, self.bitcode)


def find_toolchain(environment: Mapping[str, str] | None = None) -> Toolchain:
    """The first linker that works, of: ROCM_PATH, /opt/rocm, the ROCm SDK wheel, an ld.lld on PATH, PyPI's ziglang.

    A linker works when it calls itself LLD and links an empty gfx950 object. ``environment`` stands for ``os.environ``.
    Raises CheckError when there is none: the message lists what was tried, and how to get a linker.
    """
    environment = os.environ if environment is None else environment
    skipped: list[Candidate] = []
    for candidate in survey(environment):
        if candidate.problem is not None or candidate.version is None:
            skipped.append(candidate)
            continue
        try:
            root = _rocm_root(candidate.command, environment)
        except OSError as error:
            raise CheckError(f"{candidate.where} works, but no folder could be made for it: {error}") from error
        bitcode, source = find_bitcode(environment) or (None, None)
        linker = Path(candidate.command[0])
        return Toolchain(candidate.kind, linker, candidate.version, root, bitcode, source, tuple(skipped))
    tried = "\n".join(f"  {candidate.kind}: {candidate.where}: {candidate.problem}" for candidate in skipped)
    raise CheckError(f"no linker for AMD GPU code was found. Tried:\n{tried}\nTo get one, {HOW_TO_GET_A_LINKER}.")


def survey(environment: Mapping[str, str] | None = None) -> Iterator[Candidate]:
    """Every candidate in the order of :func:`find_toolchain`, each tried out as it is reached."""
    environment = os.environ if environment is None else environment
    for candidate in _candidates(environment):
        yield candidate if candidate.problem is not None else _try_out(candidate, environment)


def find_bitcode(environment: Mapping[str, str] | None = None) -> tuple[Path, str] | None:
    """The ROCm device bitcode, and what led to it: a variable, ``/opt/rocm`` or ``rocm-sdk``. None without any."""
    environment = os.environ if environment is None else environment
    for kind, root in _rocm_roots(environment):
        for folder in _bitcode_folders(root):
            if os.access(folder / "ocml.bc", os.R_OK):
                return folder.resolve(), kind
    return None


def scrubbed_environment(base: Mapping[str, str], *, rocm_root: Path, arch: str, cache_dir: Path) -> dict[str, str]:
    """The environment for build workers and for the proof: an allow-list of ``base``, and the target.

    Sets ROCM_PATH and ROCM_HOME to ``rocm_root``, FLYDSL_GPU_ARCH to ``arch`` (without it FlyDSL asks the machine, and
    assumes gfx942 on one without a GPU: ``get_rocm_arch`` in ``flydsl/runtime/device.py``) and FLYDSL_RUNTIME_CACHE_DIR
    to ``cache_dir``. PYTHONHASHSEED is 0, so that no order of a set can reach a trace, and OMP_NUM_THREADS is 1: the
    workers are the parallelism.
    """
    kept = {name: value for name, value in base.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)}
    return kept | {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "ROCM_PATH": str(rocm_root),
        "ROCM_HOME": str(rocm_root),
        "FLYDSL_GPU_ARCH": arch,
        "FLYDSL_RUNTIME_CACHE_DIR": str(cache_dir),
    }


def worker_environment(base: Mapping[str, str], *, rocm_root: Path, arch: str, folder: Path) -> dict[str, str]:
    """:func:`scrubbed_environment` for a worker that compiles; what it leaves when it is killed is in ``folder``."""
    environment = scrubbed_environment(base, rocm_root=rocm_root, arch=arch, cache_dir=folder / "unused")
    # FlyDSL: compile and write the cache entry, do not launch.
    return {**environment, "TMPDIR": str(folder), "COMPILE_ONLY": "1"}


# ---- candidates ------------------------------------------------------------------------------------------------------


def _candidates(environment: Mapping[str, str]) -> Iterator[Candidate]:
    roots = [_in_rocm_root(kind, root) for kind, root in _rocm_roots(environment)]
    found = {candidate.kind for candidate in roots}
    if found.isdisjoint(ROOT_VARIABLES):
        yield Candidate("ROCM_PATH", "ROCM_PATH", problem="not set")
    yield from (candidate for candidate in roots if candidate.kind != "rocm-sdk")
    if not os.path.isdir(DEFAULT_ROCM):
        yield Candidate(str(DEFAULT_ROCM), str(DEFAULT_ROCM), problem="not there")
    if "rocm-sdk" not in found:
        yield Candidate("rocm-sdk", "rocm-sdk-core", problem="not installed")
    yield from (candidate for candidate in roots if candidate.kind == "rocm-sdk")
    on_path = list(_on_path(environment))
    if not on_path:
        yield Candidate("PATH", "ld.lld", problem="neither ld.lld nor ld.lld-NN on PATH, nor an llvm-NN in /usr/lib")
    for path in on_path:
        yield Candidate("PATH", str(path), (str(path),))
    yield _ziglang()


def _rocm_roots(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Every ROCm root to look into, with what names it; a root named twice counts once."""
    named = [(name, Path(environment[name])) for name in ROOT_VARIABLES if environment.get(name)]
    if os.path.isdir(DEFAULT_ROCM):
        named.append((str(DEFAULT_ROCM), DEFAULT_ROCM))
    named += [("rocm-sdk", folder) for folder in _sdk_folders()]
    first: dict[Path, str] = {}
    for kind, root in named:
        first.setdefault(root, kind)
    return [(kind, root) for root, kind in first.items()]


def _in_rocm_root(kind: str, root: Path) -> Candidate:
    for relative in ("llvm/bin/ld.lld", "lib/llvm/bin/ld.lld"):
        path = root / relative
        if os.path.isfile(path):
            return Candidate(kind, str(path), (str(path.absolute()),))
    try:
        os.stat(root / "llvm")
    except PermissionError:
        return Candidate(kind, str(root), problem="this user may not read it")
    except OSError:
        pass
    return Candidate(kind, str(root), problem="holds neither llvm/bin/ld.lld nor lib/llvm/bin/ld.lld")


def _sdk_folders() -> list[Path]:
    """The folders that AMD's ROCm SDK wheels install beside the package ``rocm_sdk``.

    The wheel rocm-sdk-core fills ``_rocm_sdk_core`` (rocm-sdk-devel, once unpacked, ``_rocm_sdk_devel``), plus a
    suffix in some builds. On PyPI itself these names are placeholders; AMD serves the real wheels from its own index.
    """
    beside: list[Path] = []
    for module in ("_rocm_sdk_core", "rocm_sdk_core", "rocm_sdk"):
        location = _package_folder(module)
        if location is not None and location.parent not in beside:
            beside.append(location.parent)
    return [
        folder
        for site in beside
        for name in ("_rocm_sdk_core*", "_rocm_sdk_devel*")
        for folder in _matching(site, name)
        if os.path.isdir(folder)
    ]


def _package_folder(module: str) -> Path | None:
    """Where a package is installed, without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _on_path(environment: Mapping[str, str]) -> Iterator[Path]:
    """Each different ``ld.lld`` once: plain names first, then versioned ones, the newest first."""
    folders = [Path(part) for part in environment.get("PATH", os.defpath).split(os.pathsep) if part]
    plain = [folder / "ld.lld" for folder in folders]
    versioned = [path for folder in folders for path in _matching(folder, "ld.lld-*")]
    versioned += _matching(DISTRIBUTION_LLVM, "llvm-*/bin/ld.lld")
    versioned = [path for path in versioned if _llvm_release(path) is not None]
    versioned.sort(key=lambda path: -(_llvm_release(path) or 0))
    seen: set[str] = set()
    for path in plain + versioned:
        target = os.path.realpath(path)
        # LLD is one program that chooses its flavour by the name it is called by: compare targets, yield names.
        if os.path.isfile(path) and os.access(path, os.X_OK) and target not in seen:
            seen.add(target)
            yield path.absolute()


def _matching(folder: Path, pattern: str) -> list[Path]:
    """What matches below a folder, sorted; nothing where it may not be read, at which pathlib raises before 3.14."""
    return sorted(Path(found) for found in glob.glob(os.path.join(glob.escape(str(folder)), pattern)))


def _llvm_release(path: Path) -> int | None:
    match = re.search(r"(?:ld\.lld|/llvm)-(\d+)(?:/bin/ld\.lld)?$", str(path))
    return int(match[1]) if match else None


def _ziglang() -> Candidate:
    folder = _package_folder("ziglang")
    if folder is None:
        return Candidate("ziglang", "ziglang", problem="not installed")
    # The binary itself, not `python -m ziglang`: it saves a Python start for every kernel.
    return Candidate("ziglang", f"{folder / 'zig'} ld.lld", (str(folder / "zig"), "ld.lld"))


def _bitcode_folders(root: Path) -> list[Path]:
    """Where a ROCm installation may keep its bitcode: at the top, beside LLVM, or in clang's own resources."""
    beside_llvm = [root / llvm / "amdgcn" / "bitcode" for llvm in ("lib/llvm", "llvm")]
    in_clang = [_matching(root / llvm, "lib/clang/*/amdgcn/bitcode") for llvm in ("lib/llvm", "llvm")]
    return [root / "amdgcn" / "bitcode", *beside_llvm, *in_clang[0], *in_clang[1]]


# ---- trying a candidate out ------------------------------------------------------------------------------------------


def _try_out(candidate: Candidate, environment: Mapping[str, str]) -> Candidate:
    """The candidate with its version, or with the reason why it cannot be used."""

    def failed(problem: str) -> Candidate:
        return Candidate(candidate.kind, candidate.where, candidate.command, problem=problem)

    try:
        said = _run([*candidate.command, "--version"], environment)
        version = re.search(r"^.*?\bLLD \d.*?(?= \(compatible|$)", said, re.MULTILINE)
        if version is None:
            return failed(f"is not LLD: --version printed {_first_line(said)!r}")
        with scratch_folder("linker") as folder:
            source, target = folder / "empty.o", folder / "empty.so"
            source.write_bytes(empty_object())
            _run([*candidate.command, "-shared", str(source), "-o", str(target)], environment)
            if target.read_bytes()[18:20] != struct.pack("<H", _EM_AMDGPU):
                return failed("linked an AMD GPU object into something else")
    except subprocess.TimeoutExpired:
        return failed(f"gave no answer in {_PROBE_SECONDS:.0f} s")
    except subprocess.CalledProcessError as error:
        if "unknown abi version" in error.output:
            return failed("is too old for the code objects that FlyDSL makes (code object version 6)")
        return failed(f"failed with exit status {error.returncode}: {_first_line(error.output)}")
    except OSError as error:
        return failed(f"cannot be run: {error.strerror or error}")
    return Candidate(candidate.kind, candidate.where, candidate.command, version[0].strip())


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    """What the command printed. Raises CalledProcessError, TimeoutExpired or OSError."""
    return subprocess.run(
        command,
        check=True,
        timeout=_PROBE_SECONDS,
        env={name: value for name, value in environment.items() if name in _ALLOWED},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ).stdout


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "(nothing)")[:200]


_EM_AMDGPU = 224


def empty_object() -> bytes:
    """The smallest relocatable ELF file for gfx950, in code object version 6, to try a linker out with.

    FlyDSL asks for that version (``abi=600`` in ``flydsl/compiler/backends/rocm.py``); LLD 14, Debian 12's default,
    refuses it. The version number is no guide: AMD's own LLD learnt it earlier than LLVM's.
    """
    names = b"\0.shstrtab\0".ljust(16, b"\0")
    abi_hsa, abi_version_6 = 64, 4
    identity = struct.pack("<4s5B7x", b"\x7fELF", 2, 1, 1, abi_hsa, abi_version_6)
    header = struct.pack(
        *("<16sHHIQQQIHHHHHH", identity, 1, _EM_AMDGPU, 1),
        *(0, 0, 64 + len(names), ARCHES["gfx950"].elf_mach, 64, 0, 0, 64, 2, 1),
    )
    section = struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64, 11, 0, 0, 1, 0)
    return header + names + bytes(64) + section


# ---- the per-user folder ---------------------------------------------------------------------------------------------


def _rocm_root(command: tuple[str, ...], environment: Mapping[str, str]) -> Path:
    """A folder with the linker behind ``llvm/bin/ld.lld``: in the user's cache, else temporary. Raises OSError."""
    script = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
    try:
        root = publish(cache_base(environment), script, None)
        # A home may be mounted noexec.
        _run([str(root / "llvm" / "bin" / "ld.lld"), "--version"], environment)
    except (OSError, subprocess.SubprocessError):
        root = publish(temporary_base(), script, None)
    return root
