"""The proof: in a clean process, compiling forbidden, every token count goes through the real dispatch.

This half prepares that process (environment, cache folder, the wheel's contents) and judges what it reports;
:mod:`.prover` is what runs in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from ...discovery import FOLDER, PACKS_VARIABLE, SUFFIX, find_packs, look_for_packs
from ...dispatch.rules import RULES
from ...errors import CheckError, InputError
from ...flydsl.install import ambiguity, read_install
from ...flydsl.toolchain import find_toolchain, scrubbed_environment
from ...model.job import Options
from ...model.shape import LAYER, kernel_label
from ...model.tokens import Range, spelled
from ...packs.format import Pack, PackError
from ...packs.manifest import MissingKernel
from ...scratch import scratch_folder
from ...sources import SOURCES
from ...target import ARCH_VARIABLE

# FlyDSL compiler/jit_function.py, all versions: what a miss says where compiling is forbidden.
_WOULD_COMPILE = "no usable AOT cache"


@dataclass(frozen=True)
class Proof:
    """What a proof found.

    ``dispatches`` token counts were resolved, over all shapes; FlyDSL was called ``calls`` times and found ``kernels``
    distinct kernels; ``compiled`` files are new in its cache. Each of ``misses`` names a kernel, its shape and the
    token counts that would compile; ``uncovered`` lists token counts that no row serves; ``payloads`` were parsed by
    FlyDSL; ``problems`` are faults of another kind, a line each.
    """

    cold: bool
    dispatches: int
    calls: int
    kernels: int
    compiled: int
    misses: tuple[dict[str, Any], ...]
    uncovered: tuple[dict[str, Any], ...]
    payloads: int
    problems: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """A proof holds when nothing compiled and nothing is amiss; a cold run, when something did compile."""
        if self.problems or self.misses or not self.kernels:
            return False
        return self.compiled > 0 if self.cold else self.compiled == 0 and self.payloads > 0

    def to_json(self) -> dict[str, Any]:
        """The proof as ``verify --json`` prints it."""
        return {
            "ok": self.ok,
            "cold": self.cold,
            "dispatches": self.dispatches,
            "calls": self.calls,
            "kernels": self.kernels,
            "compiled": self.compiled,
            "misses": list(self.misses),
            "uncovered": list(self.uncovered),
            "payloads": self.payloads,
            "problems": list(self.problems),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Proof:
        """The inverse of :meth:`to_json`."""
        values = {name.name: found[name.name] for name in fields(cls)}
        for name in ("misses", "uncovered", "problems"):
            values[name] = tuple(values[name])
        return cls(**values)

    @classmethod
    def failed(cls, problem: str, *, cold: bool) -> Proof:
        """One that could not be run."""
        return cls(cold, 0, 0, 0, 0, (), (), 0, (problem,), 0.0)

    def complaints(self) -> list[str]:
        """What is wrong, a line each, for people."""
        lines = list(self.problems)
        for miss in self.misses:
            counts = spelled(miss["tokens"])
            # FlyDSL's own words for "would compile" are long and hold nothing that is not in this line.
            what = "would compile" if _WOULD_COMPILE in miss["reason"] else f"fails: {miss['reason']}"
            lines.append(f"{_label(miss)}{f', tokens {counts}' if counts else ''}: {what}")
        if not self.cold and self.compiled:
            lines.append(f"FlyDSL compiled {self.compiled} kernels although it was forbidden to")
        if self.cold and not self.compiled and not self.misses:
            lines.append("the cold run compiled nothing, so that the warm run proves nothing")
        if not self.kernels and not lines:
            lines.append("no kernel was called: nothing is proven")
        return lines


def _label(miss: dict[str, Any]) -> str:
    return kernel_label(miss["name"], **{name: miss[name] for name in LAYER})


@dataclass(frozen=True)
class Subject:
    """What is proven: the packs, the folders to find them on, the packages they are in, and the wheel if it is one."""

    packs: tuple[Path, ...]
    search: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    wheel: Path | None = None


def open_subject(wheel: Path | None, folder: Path, packages: Sequence[str] = ()) -> Subject:
    """The packs of a wheel (unpacked into ``folder``), of a pack file, or, for None, of this environment.

    :param packages: packages of this environment that carry packs, beside the known ones.

    :raises InputError: no such file, not a wheel, or no packs in it or in a place that was named.
    """
    if wheel is None:
        found, empty = look_for_packs(packages)
        if empty:
            raise InputError(empty)
        installed = tuple(map(Path, found))
        if not installed:
            raise InputError("no pack of kernels is installed here; name a wheel, or install one")
        return Subject(installed, (), tuple(packages))
    if wheel.is_dir():
        raise InputError(f"{wheel}: is a folder; name a wheel or a pack that build made")
    if not wheel.exists():
        raise InputError(f"{wheel}: no such file; name a wheel or a pack that build made")
    if wheel.name.endswith(SUFFIX):
        return Subject((wheel,))
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(SUFFIX)]
            for name in archive.namelist():
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise InputError(f"{wheel}: holds the path {name}; refused")
            archive.extractall(folder)
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError) as error:
        raise InputError(f"{wheel}: not a wheel, or damaged: {error}") from error
    except OSError as error:
        raise InputError(f"{wheel}: cannot be unpacked: {error.strerror or error}") from error
    if not names:
        raise InputError(f"{wheel}: holds no pack of kernels")
    inside = {
        ".".join(PurePosixPath(name).parent.parts[:-1]) for name in names if PurePosixPath(name).parent.name == FOLDER
    }
    return Subject(tuple(folder / name for name in names), (folder,), tuple(sorted(inside)), wheel)


def prove(
    subject: Subject,
    *,
    cold: bool = False,
    exhaustive: bool = False,
    tokens: Range | None = None,
    trusted: str | None = None,
) -> Proof:
    """Run the proof for packs of one source, in a process of its own.

    :param cold: the same dispatch and calls without the kernels and with compiling allowed. What is compiled is
        compared with the packs, where the linker is the one they were built with.
    :param tokens: prove these token counts in place of those that the packs were built for.
    :param trusted: a source outside this project that may be imported. A pack names its source, and importing one is
        running its code.
    :raises PackError: a pack is damaged.
    :raises CheckError: the process ended without a result, or the packs are of several sources or arches
        (:func:`.verifying.verify` proves these one after the other).
    :raises InputError: the packs' source is neither this project's nor the trusted one.
    """
    packs = [Pack(str(path)) for path in subject.packs]
    requests = [request_of(pack) for pack in packs]
    if any(request != requests[0] for request in requests[1:]):
        names = ", ".join(path.name for path in subject.packs)
        raise CheckError(f"{names}: of several sources, arches, tables or token limits; one proof is for one of them")
    request = requests[0]
    source = request["source"]
    if source not in (*SOURCES, trusted):
        raise InputError(f"the kernels are of {source}, which runs code of its own: --source {source} allows it")
    install = read_install()
    if install is None:
        raise CheckError(f"FlyDSL is not installed: pip install flydsl=={packs[0].version}")
    if twice := ambiguity(install):
        raise CheckError(twice)
    with scratch_folder("proof") as folder:
        root, linker = _rocm_root(packs, cold, folder)
        request |= {
            "whole": tokens in (None, request["tokens"]),
            "tokens": tokens or request["tokens"],
            "packs": [str(path.resolve()) for path in subject.packs],
            "packages": list(subject.packages),
            "search": [str(path) for path in subject.search],
            "cold": cold,
            "exhaustive": exhaustive,
            "same_linker": all(pack.manifest.toolchain.linker == linker for pack in packs),
            "parent": os.getpid(),
        }
        environment = scrubbed_environment(os.environ, rocm_root=root, arch=packs[0].arch, cache_dir=folder / "cache")
        environment["TMPDIR"] = str(folder)
        # FlyDSL: a miss raises instead of compiling (RUN_ONLY), a hit returns without launching (COMPILE_ONLY).
        environment["COMPILE_ONLY"] = "1"
        if not cold:
            environment["FLYDSL_RUNTIME_RUN_ONLY"] = "1"
        if not subject.search and (given := [p for p in request["packs"] if p not in find_packs(environ=environment)]):
            environment[PACKS_VARIABLE] = os.pathsep.join(given)
        environment[ARCH_VARIABLE] = packs[0].arch
        return _run(request, environment, folder / "result.json", cold)


def judge(proof: Proof, missing: Iterable[MissingKernel]) -> None:
    """Let a proof pass that misses nothing but the kernels that are known to be missing.

    :raises CheckError: anything else is wrong with it.
    """
    expected = {kernel.label for kernel in missing}
    surprise = any(_label(miss) not in expected for miss in proof.misses)
    if surprise or proof.problems or proof.compiled or not proof.kernels or not proof.payloads:
        complaints = "\n".join(proof.complaints())
        raise CheckError(f"the proof failed, no wheel is written:\n{complaints}")


def request_of(pack: Pack) -> dict[str, Any]:
    """What the proof must know of a pack.

    :raises PackError: it is of a dispatch rule that is not known here.
    """
    manifest = pack.manifest
    plan = manifest.plan
    if plan.rule not in RULES:
        raise PackError(f"{pack.path}: its dispatch rule {plan.rule} is not known to this version: {', '.join(RULES)}")
    return {
        "source": manifest.source.name,
        "identity": {"digest": manifest.source.digest},
        "arch": pack.arch,
        "cu_num": list(plan.cu_num),
        "tokens": plan.tokens,
        "rule": plan.rule,
        "options": Options.from_json(plan.options).to_json(),
        "tables": [table.sha256 for table in plan.tables],
    }


def _rocm_root(packs: Sequence[Pack], cold: bool, folder: Path) -> tuple[Path, str | None]:
    """The proof's ROCm folder, with bitcode where kernels need it, and its linker, which only a cold run needs."""
    needs_bitcode = any(kernel.bitcode for pack in packs for kernel in pack.kernels)
    if not cold and not needs_bitcode:
        return folder / "no-rocm", None
    toolchain = find_toolchain()
    root = toolchain.rocm_root_with_bitcode() if needs_bitcode else toolchain.rocm_root
    if root is None:
        raise CheckError(
            "kernels of this pack link device bitcode, and none was found here; install ROCm's device libraries"
        )
    return root, toolchain.linker_version


def _run(request: dict[str, Any], environment: dict[str, str], result: Path, cold: bool) -> Proof:
    command = [sys.executable, "-m", f"{__package__}.prover", str(result)]
    run = subprocess.run(
        command,
        input=json.dumps(request),
        env=environment,
        cwd=result.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if not result.exists():
        said = (run.stdout + run.stderr).strip().splitlines() or ["it said nothing"]
        how = f"signal {-run.returncode}" if run.returncode < 0 else f"status {run.returncode}"
        raise CheckError(f"the proof's process ended with {how} before it had a result: {said[-1]}")
    found = json.loads(result.read_text(encoding="utf-8"))
    return Proof(
        cold=cold,
        dispatches=found.get("dispatches", 0),
        calls=found.get("calls", 0),
        kernels=found.get("kernels", 0),
        compiled=found.get("compiled", 0),
        misses=tuple(found.get("misses", ())),
        uncovered=tuple(found.get("uncovered", ())),
        payloads=found.get("payloads", 0),
        problems=tuple(found["problems"]),
        seconds=found.get("seconds", 0.0),
    )
