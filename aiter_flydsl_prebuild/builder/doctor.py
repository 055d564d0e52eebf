"""What this machine has and lacks for building and using prebuilt kernels. Imports neither torch nor FlyDSL."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from ..discovery import CACHE_VARIABLE, ROOT_VARIABLES, bundled_folder
from ..errors import CheckError
from ..flydsl import cache as flydsl_cache
from ..flydsl.install import ambiguity, checked, interpreter_abi, known_identities, read_install
from ..flydsl.toolchain import HOW_TO_GET_A_LINKER, find_toolchain, survey
from ..packs.format import zstd
from ..places import choose, defeated
from ..sources.environment import Finding
from ..target import driver_arches
from .machine import available_memory, default_workers

MEMORY_PER_WORKER = 0.7
"""GB (10^9 bytes) that a build worker needs; less than this free is worth a warning."""

# Module, distribution, what it is for. rich is not here: without it there is just less to look at.
_LIBRARIES = (
    ("pebble", "pebble", "the compile workers"),
    ("elftools", "pyelftools", "reading code objects"),
    ("msgpack", "msgpack", "reading kernel metadata"),
    ("numpy", "numpy", "FlyDSL, which imports it"),
    ("setuptools", "setuptools", "building wheels"),
    ("installer", "installer", "checking wheels"),
    ("packaging", "packaging", "checking wheels"),
    *(() if sys.version_info >= (3, 11) else (("tomli", "tomli", "reading pyproject.toml"),)),
)

_SETTINGS = ("ARCH", "COMPILE_ONLY", "GPU_ARCHS", "HSA_OVERRIDE_GFX_VERSION", *ROOT_VARIABLES)


def examine(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Finding]:
    """Everything that matters, in the order in which it is needed.

    ``environment`` stands for ``os.environ``; ``root`` is where ``proc``, ``sys`` and ``dev`` are, for tests. Linkers
    are run, which takes up to about a second; the folder that FlyDSL gets as ROCM_PATH is made if it was not there.
    """
    environment = os.environ if environment is None else environment
    return [
        _python(),
        _torch(),
        _flydsl(),
        *_libraries(),
        _zstd(),
        *_linker_and_bitcode(environment),
        _machine(root),
        _gpu(root),
        _cache(environment),
        _settings(environment),
    ]


def ok(findings: Sequence[Finding]) -> bool:
    """Whether ``build`` has all that it needs."""
    return all(finding.status != "missing" for finding in findings)


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as objects with the members of :class:`Finding`."""
    return [asdict(finding) for finding in findings]


def render(findings: Sequence[Finding], stream: TextIO | None = None) -> None:
    """Prints the findings for people, on stdout unless ``stream`` is given: a table with rich, plain lines without."""
    stream = sys.stdout if stream is None else stream
    if importlib.util.find_spec("rich") is None:
        for finding in findings:
            print(f"{finding.status:8} {finding.name}: {finding.detail}", file=stream)
            if finding.advice:
                print(f"         -> {finding.advice}", file=stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "found"):
        table.add_column(title, overflow="fold")
    colours = {"ok": "green", "warning": "yellow", "missing": "red"}
    for finding in findings:
        found = Text(finding.detail)
        if finding.advice:
            found.append(f"\n-> {finding.advice}", style="bold")
        table.add_row(Text(finding.status, style=colours[finding.status]), Text(finding.name), found)
    Console(file=stream).print(table)


# ---- software --------------------------------------------------------------------------------------------------------


def _python() -> Finding:
    detail = f"{platform.python_implementation()} {platform.python_version()} ({interpreter_abi()}), {sys.executable}"
    return Finding("Python", "ok", detail)


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        advice = "install torch (a CPU build will do): FlyDSL imports it, though its metadata does not say so"
        return Finding("torch", "missing", "not installed", advice)
    return Finding("torch", "ok", _version("torch"))


def _flydsl() -> Finding:
    install = read_install()
    if install is None:
        return Finding("FlyDSL", "missing", "not installed", "pip install flydsl, in the release that the server runs")
    if twice := ambiguity(install):
        detail, _, advice = twice.partition(": ")
        return Finding("FlyDSL", "missing", detail, advice)
    generation = flydsl_cache.generation(install.version)
    detail = f"{install.version or 'unknown version'}, cache generation {generation or 'unknown'}, {install.root}"
    if generation is None:
        advice = "use FlyDSL 0.3.1 to 0.4.2 or 0.5, or a version of this project that knows this FlyDSL"
        return Finding("FlyDSL", "missing", detail, advice)
    if damage := checked(install, "all").damage:
        return Finding("FlyDSL", "missing", f"{detail}: {damage.partition('; ')[0]}", damage.partition("; ")[2])
    known = known_identities().get(install.version, {}).get(install.abi, [])
    if install.identity not in known:
        advice = "kernels made here are used only where exactly this FlyDSL runs"
        return Finding("FlyDSL", "warning", f"{detail}: not a released wheel", advice)
    return Finding("FlyDSL", "ok", detail)


def _libraries() -> Iterator[Finding]:
    for module, distribution, purpose in _LIBRARIES:
        if importlib.util.find_spec(module) is None:
            advice = "pip install 'aiter-flydsl-prebuild[build]'"
            yield Finding(distribution, "missing", f"not installed; needed for {purpose}", advice)
        else:
            yield Finding(distribution, "ok", _version(distribution))
    if importlib.util.find_spec("rich") is None:
        yield Finding("rich", "warning", "not installed: no tables and progress bars", "pip install rich")
    else:
        yield Finding("rich", "ok", _version("rich"))


def _zstd() -> Finding:
    try:
        return Finding("zstd", "ok", zstd().__name__)
    except ImportError:
        advice = "pip install backports.zstd (servers need it too, before Python 3.14)"
        return Finding("zstd", "missing", "no decompressor for packs", advice)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "installed, version unknown"


def _linker_and_bitcode(environment: Mapping[str, str]) -> Iterator[Finding]:
    candidates = list(survey(environment))
    lines = [
        ": ".join(dict.fromkeys((candidate.kind, candidate.where, candidate.problem or f"works, {candidate.version}")))
        for candidate in candidates
    ]
    try:
        toolchain = find_toolchain(environment)
    except CheckError:
        yield Finding("linker", "missing", "\n".join(["none", *lines]), HOW_TO_GET_A_LINKER)
        return
    chosen = f"{toolchain.linker_version}, {toolchain.linker} (by {toolchain.kind}), as {toolchain.rocm_root}"
    broken = any(candidate.problem and candidate.command for candidate in toolchain.skipped)
    advice = "an earlier candidate is there but does not work" if broken else ""
    yield Finding("linker", "warning" if broken else "ok", "\n".join([chosen, *lines]), advice)
    if toolchain.bitcode is None:
        yield Finding("device bitcode", "ok", "none found; only kernels that call ocml or ockl functions need it")
    else:
        detail = f"{toolchain.bitcode} (by {toolchain.bitcode_source}), sha256 {toolchain.fingerprint.bitcode}"
        yield Finding("device bitcode", "ok", detail)


# ---- machine and settings --------------------------------------------------------------------------------------------


def _machine(root: Path) -> Finding:
    free = available_memory(root) / 1e9
    workers = default_workers(MEMORY_PER_WORKER, root=root)
    detail = f"{len(os.sched_getaffinity(0))} cores, {free:.1f} GB of memory free: {workers} build workers"
    if free < MEMORY_PER_WORKER:
        return Finding("machine", "warning", detail, f"a worker needs about {MEMORY_PER_WORKER} GB")
    return Finding("machine", "ok", detail)


def _gpu(root: Path) -> Finding:
    arches = driver_arches(str(root / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes"))
    device = root / "dev" / "kfd"
    if not os.path.exists(device):
        return Finding("GPU", "ok", "no ROCm driver (/dev/kfd); none is needed to build")
    access = "" if os.access(device, os.R_OK | os.W_OK) else ", /dev/kfd is not accessible to this user"
    return Finding("GPU", "ok", f"ROCm driver with {', '.join(arches) or 'no GPU'}{access}")


def _cache(environment: Mapping[str, str]) -> Finding:
    name = "FlyDSL cache"
    if environment.get(CACHE_VARIABLE) == "":
        return Finding(name, "warning", "(empty)", f"unset {CACHE_VARIABLE} or name a folder: empty turns it off")
    folder, problems, usable = choose(environment, bundled_folder())
    said = "set" if folder == environment.get(CACHE_VARIABLE) else "by default"
    detail = f"{folder} ({said})"
    if not usable:
        return Finding(name, "warning", f"{detail}: not writable", "\n".join(problems))
    return Finding(
        name,
        "warning" if problems else "ok",
        detail + ("" if os.path.isdir(folder) else ", not made yet"),
        "\n".join(problems),
    )


def _settings(environment: Mapping[str, str]) -> Finding:
    names = sorted(n for n in environment if n in _SETTINGS or n.startswith(("FLYDSL_", "AITER_FLYDSL_PREBUILD_")))
    detail = ", ".join(f"{name}={environment[name]}" for name in names) or "nothing set that matters"
    defeat = defeated(environment)
    # Build workers get none of them (see scrubbed_environment); what counts is the process that runs the kernels.
    return Finding("settings", "warning" if defeat else "ok", detail, defeat or "")
