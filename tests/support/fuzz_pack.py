"""A coverage-guided fuzzer of the pack reader and of seeding what it lets through.

    pip install atheris
    python tests/support/fuzz_pack.py --minutes 10 [--corpus FOLDER]

An input is one byte that says what follows, and that:

====  ==================================================================================================
byte  what follows
====  ==================================================================================================
0     a pack, taken as it is
1     a pack whose outer sha256 is put right, so that mutations get past it
2     a manifest (its length in four bytes first) and payloads, which are compressed and framed as a pack
3     as 2, with the first eight bytes as claims about the two unpacked sizes
====  ==================================================================================================

Whatever the input, the reader either takes the pack or raises PackError in one line; what it takes is seeded, and
nothing is ever written outside the cache folder. ``tests/support/corpus`` keeps the inputs that reached new code;
``test_fuzz_corpus.py`` replays them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"

# What a mutation puts into a manifest: what a reader may trip over.
INTERESTING: list[Any] = [
    *(None, True, False, 0, 1, -1, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 1.5, float("inf"), float("nan"), ""),
    *("a", "/etc/passwd", "../../x", "..", ".", "a/b.pkl", "a/../b.pkl", "gemm/\x00.pkl", "\ud800", "a\nb", "\x1b[2J"),
    *("0" * 64, "A" * 64, "f" * 63, "call-key", "artifact-key", "gfx950", "x" * 5000),
    *([], {}, [[]], [{}], {"": ""}, {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {}}}}}}}}}}, [0] * 300),
]


def as_pack(data: bytes) -> bytes:
    """The pack that an input stands for."""
    from aiter_flydsl_prebuild.packs.format import MAGIC, zstd

    kind, rest = (data[0] % 4, data[1:]) if data else (0, b"")
    if kind == 0:
        return rest
    if kind == 1:
        return rest[:8] + hashlib.sha256(rest[40:]).digest() + rest[40:]
    claims, rest = (rest[:8], rest[8:]) if kind == 3 else (b"", rest)
    size = int.from_bytes(rest[:4], "little")
    manifest, payloads = rest[4 : 4 + size], rest[4 + size :]
    sizes = struct.unpack("<2I", claims) if len(claims) == 8 else (len(manifest), len(payloads))
    packed = [bytes(zstd().compress(part, 1)) for part in (manifest, payloads)]
    content = struct.pack("<4Q", len(packed[0]), sizes[0], len(packed[1]), sizes[1]) + packed[0] + packed[1]
    return MAGIC + hashlib.sha256(content).digest() + content


def from_manifest(manifest: bytes, payloads: bytes, kind: int = 2) -> bytes:
    """The input that stands for a manifest and payloads."""
    claims = struct.pack("<2I", len(manifest), len(payloads)) if kind == 3 else b""
    return bytes([kind]) + claims + struct.pack("<I", len(manifest)) + manifest + payloads


class WriteOutside(Exception):
    """Something was written where nothing may be."""


class Sandbox:
    """A folder for one pack and one cache; whoever writes elsewhere in this process while armed is found out."""

    def __init__(self, folder: Path) -> None:
        self.pack = folder / "a.fkpack"
        self.cache = folder / "cache"
        self.armed = False
        sys.dont_write_bytecode = True
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            path, _, flags = arguments
            changed = [path] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and isinstance(path, str) else []
        elif event in ("os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.rmdir", "os.chmod"):
            changed = [os.fspath(a) for a in arguments[:2] if isinstance(a, (str, Path))]
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "pickle.find_class"):
            raise WriteOutside(f"{event} {arguments!r:.200}")
        else:
            return
        for path in changed:
            if not os.path.normpath(path).startswith(f"{self.cache}"):
                raise WriteOutside(f"{event} {path}")


def try_input(data: bytes, sandbox: Sandbox, whole: Callable[[bytes], bytes] = as_pack) -> str:
    """Read and seed the pack of an input; returns ``taken`` or the reader's line. Raises what must never be raised."""
    from aiter_flydsl_prebuild import seeding, stamps
    from aiter_flydsl_prebuild.flydsl.install import Install
    from aiter_flydsl_prebuild.packs.format import Pack, PackError, read_header
    from aiter_flydsl_prebuild.target import Target

    sandbox.pack.write_bytes(whole(data))
    path = str(sandbox.pack)
    try:
        sandbox.armed = True
        read_header(path)
        pack = Pack(path)
        texts = list(pack.payloads())
        for kernel in pack.kernels:
            pack.entries(kernel, texts)
    except PackError as error:
        if len(str(error).splitlines()) != 1 or not str(error).isprintable():
            raise AssertionError(f"not one line: {error}") from error
        return str(error)
    finally:
        sandbox.armed = False

    # A machine that the pack fits, whatever it asks for.
    abi = next(iter(pack.identities), "cp311")
    known = pack.identities.get(abi) or ["0" * 64]
    install = Install("/nowhere", pack.version, abi, known[0], {"flydsl/__init__.py": "0" * 64})
    machine = stamps.Machine(Target([pack.arch], {}), {})
    machine._read = (install, "0" * 64)
    try:
        sandbox.armed = True
        seeded, _ = seeding._seed_pack(path, machine, str(sandbox.cache), {})
    finally:
        sandbox.armed = False
    there = {p.relative_to(sandbox.cache).as_posix() for p in sandbox.cache.rglob("*") if not p.is_dir()}
    if there != set(seeded.files):
        raise WriteOutside(f"other files than reported: {there ^ set(seeded.files)}")
    shutil.rmtree(sandbox.cache, ignore_errors=True)
    return "taken"


def stub_toolchain() -> None:
    """No FlyDSL is needed to fuzz the reader: the key of its files is a constant here."""
    from aiter_flydsl_prebuild.flydsl import cache as flydsl_cache

    flydsl_cache.toolchain_key = lambda install, bitcode: "toolchain"


# ---- mutations -------------------------------------------------------------------------------------------------------


def mutate(data: bytes, rng: random.Random, plain: Any) -> bytes:
    """One mutation: of the bytes, by ``plain(bytes)``, or of the manifest's JSON, with the payload table kept true."""
    kind = data[0] % 4 if data else 0
    if kind < 2 or rng.random() < 0.3:
        return bytes([rng.randrange(4) if rng.random() < 0.05 else kind]) + bytes(plain(data[1:]))
    skip = 9 if kind == 3 else 1
    size = int.from_bytes(data[skip : skip + 4], "little")
    raw, payloads = data[skip + 4 : skip + 4 + size], data[skip + 4 + size :]
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError):
        return bytes([kind]) + bytes(plain(data[1:]))
    if rng.random() < 0.2:
        payloads = bytes(plain(payloads))
    try:
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            manifest = _mutate_json(manifest, rng)
        if rng.random() < 0.5 and isinstance(manifest, dict):
            _describe_payloads(manifest, payloads)
        raw = json.dumps(manifest).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data
    if rng.random() < 0.01:
        depth = rng.choice((5, 100, 900, 100_000))
        raw = raw.replace(b'"fields": {', b'"fields": {"deep": ' + b"[" * depth + b"]" * depth + b", ", 1)
    return from_manifest(raw, payloads, kind)


def _describe_payloads(manifest: dict[str, Any], payloads: bytes) -> None:
    places = manifest.get("payloads")
    if not isinstance(places, list) or not places or not all(isinstance(p, dict) for p in places):
        return
    each = max(1, len(payloads) // len(places))
    for index, place in enumerate(places):
        offset = index * each
        size = each if index + 1 < len(places) else len(payloads) - offset
        content = payloads[offset : offset + max(size, 0)]
        place.update(offset=offset, size=size, sha256=hashlib.sha256(content).hexdigest())


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 2000:
        here = waiting.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, child in items:
            found.append((here, key))
            waiting.append(child)
    return found


def _mutate_json(value: Any, rng: random.Random) -> Any:
    nodes = _nodes(value)
    if not nodes:
        return rng.choice(INTERESTING)
    holder, key = rng.choice(nodes)
    what = rng.randrange(6)
    if what == 0:
        del holder[key]
    elif what == 1:
        other, at = rng.choice(nodes)
        if isinstance(holder, dict) or key < len(holder):
            # A copy, lest the value hold itself.
            holder[key] = json.loads(json.dumps(other[at])) if not isinstance(other, list) or at < len(other) else None
    elif what == 2 and isinstance(holder, list):
        holder.append(json.loads(json.dumps(holder[key])))
    elif what == 3 and isinstance(holder, dict):
        holder[str(rng.choice(INTERESTING))[:100]] = holder[key]
    elif what == 4 and isinstance(holder[key], str) and holder[key]:
        at = rng.randrange(len(holder[key]))
        holder[key] = holder[key][:at] + rng.choice(("/", "..", "0", "g", "\n", "A", "")) + holder[key][at + 1 :]
    else:
        holder[key] = json.loads(json.dumps(rng.choice(INTERESTING)))
    return value


# ---- running ---------------------------------------------------------------------------------------------------------


def first_inputs(folder: Path) -> None:
    """Valid packs of both generations, in every form of input."""
    sys.path.insert(0, str(HERE))
    from aiter_flydsl_prebuild.builder.packing import encode_pack, make_manifest, write_pack
    from aiter_flydsl_prebuild.flydsl.cache import CALL_KEY
    from aiter_flydsl_prebuild.packs.manifest import to_json
    from packs import ABOUT, flydsl_here, make_compiled

    portable = [make_compiled(f"k{i}", f"module {{ {i} }}") for i in range(3)]
    by_call = [make_compiled(f"k{i}", f"module {{ {i} }}", path=f"gemm_01/{i}.pkl") for i in range(2)]
    for name, kernels, flydsl in (
        ("portable", portable, flydsl_here(identities={"cp311": ["0" * 64]})),
        ("by-call", by_call, flydsl_here(generation=CALL_KEY, identities={"cp311": ["0" * 64]})),
    ):
        for kernel in kernels:
            object.__setattr__(kernel, "bitcode", None)
        typed, payloads = make_manifest("gfx950", flydsl, kernels, [], ABOUT)
        manifest = to_json(typed)
        for described in manifest["kernels"]:
            for entry in described["entries"]:
                if "paths" in entry:
                    entry["paths"] = {"cp311": next(iter(entry["paths"].values()))}
        write_pack(folder / "pack", encode_pack(manifest, payloads))
        whole = (folder / "pack").read_bytes()
        (folder / "pack").unlink()
        raw = json.dumps(manifest).encode()
        (folder / f"{name}-0").write_bytes(b"\0" + whole)
        (folder / f"{name}-1").write_bytes(b"\1" + whole)
        (folder / f"{name}-2").write_bytes(from_manifest(raw, b"".join(payloads)))
        (folder / f"{name}-3").write_bytes(from_manifest(raw, b"".join(payloads), 3))


def main() -> None:
    """Fuzz in this process; libFuzzer ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--runs", type=int, default=-1, help="stop after so many packs, too (default: only by time)")
    parser.add_argument(
        "--corpus", type=Path, help="grow this corpus, tests/support/corpus for ours (default: a temporary one)"
    )
    options = parser.parse_args()
    import atheris

    with atheris.instrument_imports(include=["aiter_flydsl_prebuild", "json"]):
        import aiter_flydsl_prebuild.packs.format
        import aiter_flydsl_prebuild.seeding  # noqa: F401
    stub_toolchain()

    work = Path(tempfile.mkdtemp(prefix="fuzz-pack-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    corpus = options.corpus or work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    CORPUS.mkdir(exist_ok=True)
    first_inputs(corpus)
    sandbox = Sandbox(work)
    rng = random.Random(1)
    # Without this the forms look alike to the fuzzer, and it drops all but one.
    whole = atheris.instrument_func(as_pack)
    described = [path.read_bytes() for path in sorted(corpus.iterdir()) if path.name.endswith(("-2", "-3"))]
    counts = {"packs": 0, "taken": 0}
    started = time.monotonic()

    def one(data: bytes) -> None:
        counts["packs"] += 1
        counts["taken"] += try_input(data, sandbox, whole) == "taken"
        if counts["packs"] % 20_000 == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            seconds = time.monotonic() - started
            print(f"{counts['packs']} packs, {counts['taken']} taken, {seconds:.0f} s, peak {peak} MB", flush=True)

    def custom(data: bytes, limit: int, seed: int) -> bytes:
        rng.seed(seed)
        if rng.random() < 0.1:
            data = rng.choice(described)
        return mutate(data, rng, lambda part: atheris.Mutate(bytes(part), limit))[:limit]

    flags = [f"-max_total_time={options.minutes * 60:.0f}", f"-runs={options.runs}", "-timeout=10", "-max_len=65536"]
    flags += ["-rss_limit_mb=2048", f"-artifact_prefix={work}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, str(corpus), str(CORPUS)], one, custom_mutator=custom)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
