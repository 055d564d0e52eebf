"""Whether installers make of a wheel what its packs need: RECORD, METADATA and WHEEL, against the files and the packs.

The RECORD is checked by PyPA's ``installer``, requirements, names and tags by ``packaging``. What a wheel may hold is
the binary distribution format of the Python Packaging User Guide.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from installer.exceptions import InstallerError
from installer.records import parse_record_file
from installer.sources import WheelFile
from packaging.markers import default_environment
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ...discovery import SUFFIX
from ...flydsl.cache import python_tag
from ...packs.format import Pack

FLYDSL = "flydsl"

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


def wheel_problems(path: Path, packs: Sequence[Pack]) -> list[str]:
    """What is wrong with a wheel that holds these packs, beside the packs themselves; a line each, none where all is
    well."""
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        return [f"{path.name}: installers do not take a wheel of this name: {error}"]
    with WheelFile.open(path) as wheel, zipfile.ZipFile(path) as archive:
        try:
            folder = wheel.dist_info_dir
        except (InstallerError, ValueError) as error:
            return [f"{path.name}: {error}"]
        names = [name for name in archive.namelist() if not name.endswith("/")]
        found = list(_record_problems(path, wheel, folder, names))
        texts = {}
        for part in ("METADATA", "WHEEL"):
            try:
                texts[part] = archive.read(f"{folder}/{part}")
            except KeyError:
                found.append(f"{path.name} has no {folder}/{part}")
    if "METADATA" in texts:
        try:
            metadata = Metadata.from_email(texts["METADATA"], validate=False)
            if canonicalize_name(metadata.name) != name or metadata.version != version:
                found.append(
                    f"METADATA is of {metadata.name} {metadata.version}, the wheel's name says {name} {version}"
                )
            found += _requirement_problems(metadata.requires_dist or [], packs, _is_kernels_alone(names))
        except Exception as error:  # An ExceptionGroup of packaging's own, or ValueError.
            found.append(f"METADATA cannot be read: {_first_line(error)}")
    if "WHEEL" in texts:
        stated = HeaderParser().parsestr(texts["WHEEL"].decode(errors="replace")).get_all("Tag") or []
        found += _tag_problems(frozenset(tag for text in stated for tag in parse_tag(text)), tags, packs)
    return found


def _record_problems(path: Path, wheel: WheelFile, folder: str, names: Sequence[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{path.name} holds {name} {count} times"
    try:
        wheel.validate_record()
    except wheel.validation_error as error:
        # Each names the wheel's whole path, nearly all as "In PATH, …".
        for issue in getattr(error, "issues", [str(error)]):
            yield issue.replace(str(path), path.name).removeprefix(f"In {path.name}, ")
    try:
        listed = Counter(line[0] for line in parse_record_file(wheel.read_dist_info("RECORD").splitlines()))
    except Exception:  # Said above.
        return
    for name, count in listed.items():
        if count > 1:
            yield f"RECORD lists {name} {count} times"
        if name not in names and PurePosixPath(name).name not in _SIGNATURES:
            yield f"RECORD lists {name}, which is not in the wheel"


def _is_kernels_alone(names: Sequence[str]) -> bool:
    """Whether a wheel holds packs and nothing that could be of use without them."""
    code = [name for name in names if not name.split("/")[0].endswith(".dist-info") and not name.endswith(SUFFIX)]
    return all(PurePosixPath(name).name == "__init__.py" for name in code)


def _requirement_problems(wanted: Sequence[Requirement], packs: Sequence[Pack], alone: bool) -> Iterator[str]:
    """Where pip would put another FlyDSL beside a pack than the one that its kernels are for."""
    flydsl = [requirement for requirement in wanted if canonicalize_name(requirement.name) == FLYDSL]
    for pack in packs:
        name = Path(pack.path).name
        applying = {str(one): one for abi in sorted(pack.identities) for one in flydsl if _applies(one, abi)}
        for text, requirement in applying.items():
            if not requirement.specifier.contains(pack.version, prereleases=True):
                yield f"METADATA requires {text}, {name} is for flydsl {pack.version}: no kernel of it would be used"
        if alone and not applying:
            yield (
                f"METADATA requires no flydsl, so pip installs {name} beside any or none; "
                f"a wheel of kernels alone requires flydsl=={pack.version}"
            )


def _applies(requirement: Requirement, abi: str) -> bool:
    """Whether pip takes a requirement under a CPython ABI, as ``cp311``, without any extra."""
    if requirement.marker is None:
        return True
    environment = {**default_environment(), "extra": ""}
    digits = abi.removeprefix("cp").rstrip("t")
    if digits.isdigit():
        version = f"{digits[0]}.{digits[1:]}"
        environment |= {"python_version": version, "python_full_version": f"{version}.0"}
    return requirement.marker.evaluate({key: str(value) for key, value in environment.items()})


def _tag_problems(stated: frozenset[Tag], tags: frozenset[Tag], packs: Sequence[Pack]) -> Iterator[str]:
    """Where the wheel's tags let pip install it under a Python that its packs are not for."""
    if stated != tags:
        ours, theirs = (", ".join(sorted(map(str, some))) or "none" for some in (tags, stated))
        yield f"the wheel's name has the tags {ours}, its WHEEL file {theirs}"
    served = {abi for pack in packs for abi in pack.identities}
    anywhere = all(python_tag(pack.generation, pack.identities) is None for pack in packs)
    # An ABI tag such as cp313t says more than the interpreter's; abi3, none and py3 take later Pythons, too.
    pythons = {tag.abi if tag.abi.startswith("cp") else tag.interpreter for tag in tags}
    for python in sorted(pythons):
        exact = python.startswith("cp") and not any(tag.abi == "abi3" and tag.interpreter == python for tag in tags)
        if (exact and python not in served) or not (exact or anywhere):
            have = ", ".join(sorted(served))
            yield f"its tag {python} lets pip install it where its kernels cannot be used: they are for {have} alone"


def _first_line(error: BaseException) -> str:
    inner = getattr(error, "exceptions", (error,))
    return (str(inner[0]).splitlines() or [type(error).__name__])[0]
