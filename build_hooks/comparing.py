"""Whether a finished pack was compiled from the code that its wheel will meet: the project's own, or what is installed.

Nothing of it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from aiter_flydsl_prebuild.binding import InstalledCode, called, installed_version
from aiter_flydsl_prebuild.errors import CheckError, few
from aiter_flydsl_prebuild.fitting import other_code
from aiter_flydsl_prebuild.packs.format import Pack


class ProjectCode(InstalledCode):
    """The files of packages as the wheel's users will have them: those of the project that is built come first.

    :param own: where the project has a top-level package, None where it does not have it.
    """

    def __init__(self, own: Callable[[str], Path | None]) -> None:
        super().__init__()
        self._own = own

    def folders(self, package: str) -> list[str]:
        own = self._own(package)
        return super().folders(package) if own is None else [os.path.abspath(own)]

    def called(self, package: str, distribution: str | None) -> str:
        """Which code of a package this is, for a message."""
        if self._own(package) is not None:
            return f"this project has other code in {package}"
        version = installed_version(package, distribution, self.folders(package))
        return f"installed is {called(package, version)} with different code"


def compare(pack: Pack, name: str, code: ProjectCode) -> Iterator[str]:
    """What could not be compared, a line each.

    :raises CheckError: kernels of the pack were compiled from other code; every package is named.
    """
    other = other_code(pack, code)
    wrong = []
    for package, (kernels, files) in other.differing.items():
        known = pack.manifest.source.package(package)
        here = code.called(package, known.distribution)
        count = f"{len(kernels)} of {len(pack.kernels)} kernels"
        wrong.append(f"{name}: {count} were compiled from {called(package, known.version)}, {here} ({few(files)})")
    if wrong:
        raise CheckError("\n".join([*wrong, "build the pack again, or from the code that it was compiled from"]))
    for package, kernels in other.absent.items():
        yield f"{name}: {package} is not here, so that its code is not compared with that of {len(kernels)} kernels"
    if unbound := sum(kernel.files is None for kernel in pack.kernels):
        yield f"{name}: {unbound} kernels do not say which code they were compiled from, so that it is not compared"
