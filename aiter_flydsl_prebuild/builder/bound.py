"""The code that kernels are compiled from, as a pack's manifest holds it: files and digests, packages and versions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import packages_distributions

from ..binding import UNKNOWN, find_package, installed_version, package_of
from ..digests import digest, file_digest
from ..model.job import Job
from ..packs.manifest import PackageFacts, SourceFile
from ..sources.base import Source

Files = tuple[SourceFile, ...]
"""Path below the import system's folders and sha256 of each file, sorted."""


def files_of(source: Source, job: Job) -> Files:
    """The files that a kernel is made from.

    :raises InputError: from the source, whose package is gone.
    """
    return tuple(sorted((path, file_digest(file)) for path, file in source.bound_files(job).items()))


def describe_packages(source: Source, files: Iterable[Files]) -> dict[str, PackageFacts]:
    """What the manifest says of each package that kernels are bound to: its distribution, version and code.

    :param files: of every kernel of a build, so that each part of it says the same.
    """
    by_package: dict[str, dict[str, str]] = {}
    for path, content in sorted({pair for some in files for pair in some}):
        by_package.setdefault(package_of(path), {})[path] = content
    distributions = packages_distributions()
    described = {}
    for package, contents in by_package.items():
        own = package == source.package
        known = source.identity() if own else {}
        distribution = source.distribution if own else None
        distribution = distribution or next(iter(distributions.get(package, ())), None)
        version = known.get("version") or installed_version(package, distribution, find_package(package))
        described[package] = PackageFacts(
            version or UNKNOWN, digest(contents), distribution=distribution, commit=known.get("commit")
        )
    return described
