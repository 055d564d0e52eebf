"""Packs made by hand, for tests of what reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiter_flydsl_prebuild.builder.compiling import Compiled, CompiledEntry
from aiter_flydsl_prebuild.builder.packing import compress, encode_pack, make_manifest, missing_kernel, write_pack
from aiter_flydsl_prebuild.flydsl import cache
from aiter_flydsl_prebuild.flydsl.install import Install, interpreter_abi, known_identities, read_install
from aiter_flydsl_prebuild.model.job import Job
from aiter_flydsl_prebuild.model.shape import Shape
from aiter_flydsl_prebuild.packs.format import MAGIC
from aiter_flydsl_prebuild.packs.manifest import (
    About,
    CodeFacts,
    FlyDSL,
    PackageFacts,
    PlanFacts,
    ShapeFacts,
    SourceFacts,
    ToolchainFacts,
    to_json,
)

FIELDS = {"entry": "gemm", "processor_refs": [], "link_libs": [], "uses_explicit_module": False}
ABOUT = About(
    source=SourceFacts("reference", "0" * 64, license="MIT"),
    toolchain=ToolchainFacts("LLD", None),
    plan=PlanFacts((1, 8), "newest", (), (), (), (), (), {}, ()),
)


def make_shape(n: int = 128, k: int = 256, cu_num: int = 256, **changes: Any) -> ShapeFacts:
    """A shape of a plan that rows serve for every token count."""
    shape = Shape("mxscale_bmm", "gfx950", cu_num, n, k, "32x32", None)
    return ShapeFacts(shape, (), (), ())._replace(**changes)


def install_here() -> Install:
    """The installed FlyDSL."""
    install = read_install()
    assert install is not None
    return install


def closed_to_others() -> str | None:
    """Why another user cannot see the installed FlyDSL, if so."""
    site = Path(install_here().root)
    closed = [folder for folder in (site, *site.parents) if not folder.stat().st_mode & 0o001]
    return f"the installed FlyDSL is closed to other users by {closed[0]}" if closed else None


def open_to_others(folder: Path) -> None:
    """Let other users find what is in a folder of the tests."""
    for path in (folder, *list(folder.parents)[:-1]):
        path.chmod(path.stat().st_mode | 0o055)


def make_job(name: str = "kernel", n: int = 128, k: int = 256) -> Job:
    shape = Shape("mxscale_bmm", "gfx950", 0, n, k, "32x32", None)
    return Job("reference", "gfx950", name, shape, ((1, 8),))


def make_compiled(
    name: str = "kernel",
    text: str = "module {}",
    key: str | None = None,
    path: str | None = None,
    bitcode: str | None = None,
    files: tuple[tuple[str, str], ...] = (),
) -> Compiled:
    """A compiled kernel of the 0.5 generation, or, with ``path``, of the older one."""
    artifact = None if path else key or hashlib.sha256(name.encode()).hexdigest()
    paths = ((interpreter_abi(), path),) if path else ()
    entry = CompiledEntry(artifact, paths, cache.Entry(text, dict(FIELDS)), ())
    return Compiled(make_job(name), (entry,), bitcode, files=files)


CODE = CodeFacts(
    symbol="gemm_0",
    vgpr=128,
    agpr=0,
    sgpr=40,
    lds=1024,
    scratch=0,
    vgpr_spills=0,
    sgpr_spills=0,
    workgroup=256,
    wavefront=64,
    code_object_bytes=4096,
    code_object_sha256="a" * 64,
)


def make_described(name: str, text: str = "module {}", key: str | None = None, **code: Any) -> Compiled:
    """A compiled kernel with facts of its code object."""
    made = make_compiled(name, text, key)
    return replace(made, entries=tuple(replace(entry, code=(CODE._replace(**code),)) for entry in made.entries))


def flydsl_here(**changes: Any) -> FlyDSL:
    """A pack's FlyDSL that is the installed one, all ABIs of it."""
    install = install_here()
    generation = cache.generation(install.version)
    assert generation is not None
    values = {
        "version": install.version,
        "generation": generation,
        "identities": known_identities()[install.version],
        **changes,
    }
    return FlyDSL(**values)


def make_pack(
    path: Path,
    compiled: list[Compiled],
    flydsl: FlyDSL | None = None,
    arch: str = "gfx950",
    missing: Sequence[tuple[Job, str]] = (),
    packages: dict[str, Any] | None = None,
    about: About = ABOUT,
) -> Path:
    if packages:
        described = {name: PackageFacts(**facts) for name, facts in packages.items()}
        about = about._replace(source=about.source._replace(packages=described))
    manifest, payloads = make_manifest(
        arch, flydsl or flydsl_here(), compiled, [missing_kernel(*one) for one in missing], about
    )
    write_pack(path, encode_pack(manifest, payloads))
    return path


def make_wheel(path: Path, files: dict[str, bytes], *, record: bool = True) -> Path:
    """A wheel of exactly these files; with ``record`` their RECORD is made, in place of any among them."""
    (folder,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    if record:
        files = {name: data for name, data in files.items() if name != f"{folder}/RECORD"}
        lines = [f"{name},{record_hash(data)},{len(data)}" for name, data in files.items()]
        files[f"{folder}/RECORD"] = "\n".join([*lines, f"{folder}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack_in(wheel: Path, folder: Path) -> Path:
    """The one pack of a wheel, as a file below ``folder``."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".fkpack"))
        return Path(archive.extract(name, folder))


def forge(path: Path, manifest: Any, payloads: bytes, **sizes: int) -> Path:
    """A pack whose outer hash is right whatever its manifest says."""
    raw = manifest if isinstance(manifest, bytes) else json.dumps(to_json(manifest)).encode()
    packed = (compress(raw), compress(payloads))
    header = struct.pack(
        "<4Q",
        len(packed[0]),
        sizes.get("manifest_size", len(raw)),
        len(packed[1]),
        sizes.get("payload_size", len(payloads)),
    )
    content = header + packed[0] + packed[1]
    path.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)
    return path
