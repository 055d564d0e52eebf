"""What a kernel's first call still costs after seeding: paid before serving, and measured.

FlyDSL keeps what a first call makes for its process alone: the look-up and the loaded code, and from 0.5 on the trace
before them. So every kernel of the installed packs is called once, in the process that will serve, through its source's
own op. Where there is no GPU a call ends at the look-up (COMPILE_ONLY): that measures the host's part.

A server need not have the packages of a build: this takes the standard library, torch, FlyDSL and the kernels' source.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .discovery import find_packs, folder_in_use, look_for_packs, rocm_root
from .errors import PrebuildError
from .fitting import fit
from .flydsl import cache
from .flydsl.install import read_install
from .model.job import Job
from .monitor import start as start_monitor
from .packs.format import Pack
from .processes import environment
from .progress import Progress
from .seeding import seed
from .sources import SOURCES, load_source
from .sources.base import Source, job_of
from .state import FirstCalls, write_first_calls
from .target import target_arches

_PROGRESS = functools.partial(Progress, action="calling")


@dataclass(frozen=True)
class FirstCall:
    """The first call of a kernel in this process: ``seconds`` until it returned, and what it raised."""

    kernel: str
    seconds: float
    error: str | None = None


@dataclass
class WarmReport:
    """What :func:`warm` did. Without a GPU ``launched`` is False, and all ``seconds`` are the host's part alone.

    ``compiled`` kernels were not in FlyDSL's cache; ``problems`` say why others were not called.
    """

    launched: bool
    calls: list[FirstCall] = field(default_factory=list)
    compiled: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every kernel was called, and none compiled."""
        return not (self.problems or self.compiled or any(call.error for call in self.calls))

    def to_json(self) -> dict[str, Any]:
        """As ``warm --json`` prints it."""
        return {"ok": self.ok, **asdict(self)}


def warm(
    packages: Iterable[str] = (),
    *,
    progress: Callable[[int], Progress] | None = _PROGRESS,
    trusted: str | None = None,
) -> WarmReport:
    """Seed, then call each kernel that the installed packs have for this process once, as it will be when serving.

    On a GPU the calls run, on tensors of the kernel's shape without content; its memory must have room for one layer.
    Without one, the source may use its stand-ins: do that in a process that does not serve. Raises nothing for a kernel
    that cannot be called: that is in the report.

    :param packages: packages beside the known ones that carry packs.
    :param progress: makes the display for a number of kernels; lines on stderr by default, None for silence.
    :param trusted: a source outside this project that may be imported. A pack names its source, and sources are code.
    """
    packages = tuple(packages)
    started = time.perf_counter()
    try:
        import torch
    except ImportError as error:
        # A process without torch serves nothing; where kernels are installed, that is worth a line.
        missing = f"torch cannot be imported, so no kernel can be called: {error}" if find_packs(packages) else None
        return WarmReport(False, problems=[missing] if missing else [])
    report = WarmReport(bool(torch.cuda.is_available()))
    # That a variable leads to no pack was logged by seeding, and is nothing that a first call could be hurt by.
    unused = look_for_packs()[1]
    report.problems += [problem for problem in seed(packages).problems if problem not in unused]
    monitor = start_monitor()
    compiled = monitor.compiled
    tasks: list[tuple[str, Callable[[], None]]] = []
    for path in find_packs(packages):
        try:
            tasks += _tasks(Pack(path), trusted, report.launched)
        except Exception as error:  # A server's start is worth more than what this saves.
            report.problems.append(f"{path}: its kernels cannot be called: {error or type(error).__name__}")
    where: contextlib.AbstractContextManager[Any] = torch.device("cuda")
    finish: Callable[[], None] | None = torch.cuda.synchronize
    if not report.launched:
        # FlyDSL takes another arch where neither a GPU nor the environment names one.
        where, finish = environment(COMPILE_ONLY="1", FLYDSL_GPU_ARCH=next(iter(target_arches()), "")), None
    with where, progress(len(tasks)) if progress else contextlib.nullcontext() as display:
        for label, call in tasks:
            report.calls.append(_timed(label, call, finish))
            if display is not None:
                display.advance(report.calls[-1].error is None, label)
    report.compiled = monitor.compiled - compiled
    report.seconds = time.perf_counter() - started
    _remember(report)
    return report


def _tasks(pack: Pack, trusted: str | None, launched: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Label and call of each kernel of a pack that fits here.

    :raises PrebuildError: a source is not to be had, or not trusted.
    """
    arches = target_arches()
    placements = fit(pack, arches, read_install(), cache.bitcode_digest(rocm_root())).placements
    fitting = {id(placement.kernel) for placement in placements}
    jobs = [job_of(pack.manifest, kernel) for kernel in pack.kernels if id(kernel) in fitting]
    for name in dict.fromkeys(job.source for job in jobs):
        if name not in (*SOURCES, trusted):
            raise PrebuildError(f"{name} is not a source of this project; it has to be named as trusted")
        mine = [job for job in jobs if job.source == name]
        source = load_source(name, mine[0].options)
        if launched:
            source.go_live(pack.arch)
            yield from _live(source, mine)
        else:
            yield from ((job.label, functools.partial(source.compile, job)) for job in mine)


def _live(source: Source, jobs: list[Job]) -> Iterator[tuple[str, Callable[[], None]]]:
    """A call for each kernel that the source's dispatch picks on this GPU; others serve GPUs with other tables."""
    wanted: dict[Any, dict[str, Job]] = {}
    for job in jobs:
        wanted.setdefault(job.shape, {})[job.name] = job
    for shape, named in wanted.items():
        for tokens in range(1, max(last for job in named.values() for _, last in job.tokens) + 1):
            name = source.resolve(shape, tokens)
            if name in named:
                yield named.pop(name).label, functools.partial(source.call, shape, tokens)
            if not named:
                break


def _timed(label: str, call: Callable[[], None], finish: Callable[[], None] | None) -> FirstCall:
    begun = time.perf_counter()
    error = None
    try:
        call()
        if finish is not None:
            finish()
    except Exception as raised:
        error = f"{type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}"
    return FirstCall(label, round(time.perf_counter() - begun, 4), error)


def _remember(report: WarmReport) -> None:
    """Leave what was measured for ``status``; a folder that cannot be written to has nothing to say."""
    install = read_install()
    if report.ok and report.calls and install is not None:
        slowest = max(report.calls, key=lambda call: call.seconds)
        total = round(sum(call.seconds for call in report.calls), 3)
        measured = FirstCalls(
            install.version, report.launched, len(report.calls), total, slowest.kernel, slowest.seconds
        )
        with contextlib.suppress(OSError):
            write_first_calls(folder_in_use(), measured)
