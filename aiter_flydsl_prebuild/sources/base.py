"""What a source of kernels is: the one interface between this project and whoever writes the kernels."""

from __future__ import annotations

import functools
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dispatch.reach import Reach
from ..errors import InputError
from ..model.job import NO_OPTIONS, Job, Options
from ..model.shape import LAYER, Shape
from ..model.tokens import Range, merge_ranges
from ..packs.manifest import LeftOut, Manifest, MissingKernel, PackedKernel

if TYPE_CHECKING:
    from ..execution.problem import Problem
    from .environment import Finding

_OWN = __name__.partition(".")[0]


def job_of(manifest: Manifest, kernel: PackedKernel | MissingKernel) -> Job:
    """The job of a kernel that a pack has, or lacks."""
    shape = Shape(gfx=manifest.arch, cu_num=0, **dict(zip(LAYER, kernel.layer, strict=True)))
    options = Options.from_json(manifest.plan.options)
    return Job(kernel.source, manifest.arch, kernel.name, shape, kernel.tokens, options, cu_num=kernel.cu_num)


Remember = Callable[[str, Callable[[], Any]], Any]
"""Asks something that takes long, or recalls the answer under a key that holds all it depends on."""


def ask_again(key: str, ask: Callable[[], Any]) -> Any:
    """Remembers nothing."""
    return ask()


class Source(ABC):
    """Kernels of one origin, and the run-time dispatch that a server uses for them.

    Everything below that touches FlyDSL is called in processes whose environment is scrubbed and whose cache folder is
    set; a source sets nothing of that itself.
    """

    def __init__(self, name: str, options: Options = NO_OPTIONS, remember: Remember = ask_again) -> None:
        """Made by :func:`sources.load_source`, in each process that needs it; a class with more to set calls this.

        :param name: what the manifest and the command line call it.
        :param options: what the user chose; :meth:`check_options` looks at them.
        :param remember: for questions whose answers take long; a build's store keeps them.
        """
        self.name = name
        self.options = options
        self.remember = remember

    def check_options(self) -> None:
        """Raise InputError unless this source knows its :attr:`options`."""
        unknown = [name for name, values in asdict(self.options).items() if values]
        if unknown:
            raise InputError(f"the source {self.name} has no {' and no '.join(unknown)} to choose from")

    def rule(self) -> str:
        """The rule of :data:`dispatch.rules.RULES` that the run-time dispatch follows."""
        return "newest"

    def untuned_shapes(self, arch: str) -> list[Shape]:
        """Shapes that a plan has although no table needs to: with cu_num 0, for GPUs that no row is for."""
        return []

    def layer(self, n: int, k: int, block: str | None, arch: str) -> list[Shape]:
        """What a linear layer with weight [n, k] is to this source, op by op, with cu_num 0.

        :param block: the weight's scale block, None for one scale per channel, or where the source has but one.
        :raises InputError: the source has no kernels for such a layer.
        """
        raise InputError(f"the source {self.name} cannot tell what a layer gets")

    def refine(self, reach: Reach, arch: str) -> tuple[Reach, tuple[LeftOut, ...]]:
        """What the tables alone do not tell: the reach with what a heuristic adds, without what cannot be built.

        What is left out of shapes that have no kernel yet is listed, too, with 0 kernels.
        """
        return reach, ()

    def requirements(self) -> list[str]:
        """What pip is to install so that these kernels can be built, beside this project."""
        return ["flydsl", "torch"]

    def examine(self, arch: str) -> list[Finding]:
        """What ``doctor --source`` says of this source, beside what every build needs."""
        return []

    @abstractmethod
    def tables(self) -> list[Path]:
        """The tuned tables that the run-time dispatch reads."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """What tells this source's kernels from another version's: ``digest`` (of its code) does, the rest describes.

        The others are ``version``, ``license`` and, where it is known, ``commit``.
        """

    def inputs(self, job: Job) -> dict[str, Any]:
        """All that decides what compiling ``job`` gives, beside its name, layer and arch, as JSON can hold it.

        The code among it: by default the digest of all of the source's. A build takes a kernel from its store while
        nothing of this changes.
        """
        return {"code": self.identity()["digest"], "options": self.options.to_json(), "arguments": job.arguments}

    distribution: str | None = None
    """The name of the distribution that :attr:`package` comes in, where the installed metadata may not tell."""

    @property
    def package(self) -> str:
        """The top-level package whose :meth:`identity` this is: by default the one that the source's class is in."""
        return type(self).__module__.partition(".")[0]

    def bound_files(self, job: Job) -> dict[str, Path]:
        """The source files that decide what compiling ``job`` gives, by their paths below the import system's folders.

        ``theirs/kernels/gemm.py`` for the module ``theirs.kernels.gemm``. The manifest records their digests, and
        where FlyDSL's keys do not hold them (up to 0.4.2), a kernel is used only with exactly these files installed:
        too many leave kernels out needlessly, too few let a stale one be used. Files of several packages may be named.

        By default all Python files of the packages that the source's classes are in, sub-packages included, and of a
        class in a top-level module that module. This project's own classes are not counted.
        """
        return dict(_files_of_classes(type(self)))

    def cost(self, job: Job) -> float:
        """What compiling ``job`` takes, against its other jobs: only the balance of a build's parts depends on it.

        By default the elements of the tile, which are the first ``AxB`` in the name.
        """
        tile = re.search(r"(\d+)x(\d+)", job.name)
        return float(int(tile[1]) * int(tile[2])) if tile else 1.0

    def watched(self) -> str:
        """A digest of all files whose change could change the source's answers; by default of what identifies it."""
        return self.identity()["digest"]

    @abstractmethod
    def compile(self, job: Job) -> None:
        """Make the call that the server makes for ``job``, on arguments without content.

        FlyDSL compiles it into its cache folder and does not launch (COMPILE_ONLY). Raises what FlyDSL raises.
        """

    @abstractmethod
    def resolve(self, shape: Shape, tokens: int) -> str | None:
        """The kernel that the run-time dispatch picks for a token count, None where it picks none of this source's."""

    @abstractmethod
    def call(self, shape: Shape, tokens: int) -> None:
        """Call the op for a token count, from its dispatch down to FlyDSL. Raises what FlyDSL raises."""

    def go_live(self, arch: str) -> None:
        """From here on, :meth:`resolve` and :meth:`call` are a server's own, on this process's GPU.

        Their tensors are on torch's default device. A source that replaces parts of its library where there is no GPU
        leaves that here.

        :raises PrebuildError: its library cannot be used here.
        """
        return None

    def problems(self, job: Job, seed: int) -> Iterator[Problem]:
        """Problems to execute the kernel of ``job`` on, each with a numpy reference (:mod:`execution.problem`).

        They are the same for the same seed. None where the source has no reference for the op. Called in the process
        that executes, in which FlyDSL may not compile. Each is made when it is asked for: a layer can be large.
        """
        return iter(())

    def traits(self, job: Job) -> frozenset[str]:
        """What a sample of kernels to execute must have once each; by default the parts of the name, and the op."""
        return frozenset({job.shape.op, str(job.shape.w_scale_block), *job.name.split("_")})

    def beside_tables(self, arch: str) -> tuple[list[Job], tuple[LeftOut, ...]]:
        """Compiles that no token count leads to; the proof calls :meth:`compile` for each again."""
        return [], ()

    def jobs(self, reach: Reach, arch: str) -> list[Job]:
        """The compiles that a plan needs: each distinct kernel once."""
        return jobs_of(self.name, reach, arch, self.options)


def jobs_of(source: str, reach: Reach, arch: str, options: Options) -> list[Job]:
    """One job for each distinct kernel of a plan: name, op, N, K and scale blocks, whichever cu_num reaches it."""
    found: dict[Shape, dict[str, tuple[Range, ...]]] = {}
    units: dict[tuple[Shape, str], set[int]] = {}
    for entry in reach.shapes:
        layer = entry.shape._replace(cu_num=0)
        kernels = found.setdefault(layer, {})
        for kernel in entry.kernels:
            before = kernels.get(kernel.name)
            kernels[kernel.name] = kernel.tokens if before is None else merge_ranges(before + kernel.tokens)
            units.setdefault((layer, kernel.name), set()).add(entry.shape.cu_num)
    return [
        Job(source, arch, name, shape, tokens, options, cu_num=tuple(sorted(units[shape, name])))
        for shape, kernels in found.items()
        for name, tokens in kernels.items()
    ]


@functools.cache
def _files_of_classes(source: type) -> dict[str, Path]:
    """The files of :meth:`Source.bound_files`' default."""
    found: dict[str, Path] = {}
    for base in source.__mro__:
        top, *parts = base.__module__.split(".")
        if top in ("builtins", "abc", _OWN):
            continue
        file = Path(inspect.getfile(base)).resolve()
        if not parts and file.name != "__init__.py":
            found[file.name] = file
            continue
        folder = file.parent
        below = "/".join([top, *parts] if file.name == "__init__.py" else [top, *parts[:-1]])
        found |= {f"{below}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.py")}
    return found
