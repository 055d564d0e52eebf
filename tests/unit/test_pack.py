from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.packing import make_manifest, missing_kernel
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.packs.format import Pack, PackError, read_header
from aiter_flydsl_prebuild.packs.manifest import to_json
from packs import ABOUT, FIELDS, flydsl_here, forge, make_compiled, make_job, make_pack

TEXTS = [f"module {{ {index} }}" * 50 for index in range(5)]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "a.fkpack", [make_compiled(f"k{i}", text) for i, text in enumerate(TEXTS)])


def manifest_of(path: Path) -> tuple[dict[str, Any], bytes]:
    pack = Pack(str(path))
    return to_json(pack.manifest), "".join(pack.payloads()).encode()


def test_what_goes_in_comes_out(pack: Path) -> None:
    read = Pack(str(pack))
    texts = list(read.payloads())
    assert [read.entries(kernel, texts)[0].ir_text for kernel in read.kernels] == TEXTS
    assert [kernel.name for kernel in read.kernels] == [f"k{i}" for i in range(5)]
    assert read.entries(read.kernels[0], texts)[0].fields == FIELDS
    assert read_header(str(pack)) == read.header
    assert read.arch == "gfx950"


def test_equal_payloads_are_stored_once(tmp_path: Path) -> None:
    path = make_pack(tmp_path / "a.fkpack", [make_compiled(f"k{i}", "module { same }") for i in range(9)])
    assert len(Pack(str(path)).manifest.payloads) == 1


def test_the_order_of_jobs_does_not_show(tmp_path: Path) -> None:
    kernels = [make_compiled(f"k{i}", text) for i, text in enumerate(TEXTS)]
    one = make_pack(tmp_path / "a.fkpack", kernels)
    other = make_pack(tmp_path / "b.fkpack", kernels[::-1])
    assert one.read_bytes() == other.read_bytes()


def test_one_key_with_two_codes_fails_the_build() -> None:
    key = "0" * 64
    kernels = [make_compiled("a", "module { a }", key), make_compiled("b", "module { b }", key)]
    with pytest.raises(
        CheckError, match=r"a \(N=128, K=256, scales 32x32, mxscale_bmm\) and b .* different code under one key"
    ):
        make_manifest("gfx950", flydsl_here(), kernels, [], ABOUT)


def test_one_key_with_one_code_is_fine() -> None:
    key = "0" * 64
    kernels = [make_compiled("a", "module { a }", key), make_compiled("b", "module { a }", key)]
    manifest, payloads = make_manifest("gfx950", flydsl_here(), kernels, [], ABOUT)
    assert (len(manifest.kernels), len(payloads)) == (2, 1)


def test_missing_kernels_are_listed() -> None:
    manifest, _ = make_manifest(
        "gfx950", flydsl_here(), [make_compiled()], [missing_kernel(make_job("lost"), "LLVM said no")], ABOUT
    )
    assert [(m.name, m.reason) for m in manifest.missing] == [("lost", "LLVM said no")]


def test_every_damaged_byte_is_noticed(pack: Path) -> None:
    data = pack.read_bytes()
    for position in range(0, len(data), 7):
        pack.write_bytes(data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        with pytest.raises(PackError, match=r"a\.fkpack: "):
            Pack(str(pack))


def test_every_cut_is_noticed(pack: Path) -> None:
    data = pack.read_bytes()
    for size in (0, 1, 8, 40, 71, 72, len(data) // 2, len(data) - 1):
        pack.write_bytes(data[:size])
        with pytest.raises(PackError, match=r"not a pack|truncated"):
            Pack(str(pack))
    pack.write_bytes(data + b"x")
    with pytest.raises(PackError, match="truncated or damaged"):
        Pack(str(pack))


def test_a_newer_format_is_named(pack: Path) -> None:
    pack.write_bytes(b"FKPACK99" + pack.read_bytes()[8:])
    with pytest.raises(PackError, match="format b'99' is not known to this version; update"):
        read_header(str(pack))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="No such file"):
        Pack(str(tmp_path / "none"))
    with pytest.raises(PackError, match="Is a directory"):
        read_header(str(tmp_path))


def test_a_claim_beyond_reason_is_refused_unread(pack: Path, tmp_path: Path) -> None:
    manifest, payloads = manifest_of(pack)
    forged = forge(tmp_path / "f.fkpack", manifest, payloads, payload_size=1 << 50)
    with pytest.raises(PackError, match="claims 1125899906"):
        Pack(str(forged))


@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_a_stream_of_another_size_than_claimed_is_refused(pack: Path, tmp_path: Path, change: int) -> None:
    manifest, payloads = manifest_of(pack)
    manifest["payloads"][-1]["size"] += change
    forged = forge(tmp_path / "f.fkpack", manifest, payloads, payload_size=len(payloads) + change)
    with pytest.raises(PackError, match=r"not of the size|does not match its sha256"):
        list(Pack(str(forged)).payloads())


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    forged = forge(tmp_path / "f.fkpack", b" " * (64 << 20), b"", manifest_size=100)
    with pytest.raises(PackError, match="not of the size"):
        Pack(str(forged))


def entry_key(manifest: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = manifest["kernels"][0]["entries"][0]
    return entry


BREAKAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "launcher climbs": lambda m: entry_key(m).update(launcher="../../etc"),
    "launcher is absolute": lambda m: entry_key(m).update(launcher="/tmp/x"),
    "launcher is empty": lambda m: entry_key(m).update(launcher=""),
    "launcher is a number": lambda m: entry_key(m).update(launcher=3),
    "key is a path": lambda m: entry_key(m).update(artifact_key="../" + "0" * 61),
    "key is in capitals": lambda m: entry_key(m).update(artifact_key="A" * 64),
    "path climbs": lambda m: entry_key(m).update(artifact_key=None, paths={"cp311": "../x.pkl"}),
    "path climbs below": lambda m: entry_key(m).update(artifact_key=None, paths={"cp311": "a/...pkl"}),
    "path is absolute": lambda m: entry_key(m).update(artifact_key=None, paths={"cp311": "/a/x.pkl"}),
    "path is deep": lambda m: entry_key(m).update(artifact_key=None, paths={"cp311": "a/b/x.pkl"}),
    "path is no entry": lambda m: entry_key(m).update(artifact_key=None, paths={"cp311": "a/x.lock"}),
    "no key at all": lambda m: entry_key(m).update(artifact_key=None),
    "payload out of range": lambda m: entry_key(m).update(payload=99),
    "payload below zero": lambda m: entry_key(m).update(payload=-1),
    "payload is true": lambda m: entry_key(m).update(payload=True),
    "fields are a list": lambda m: entry_key(m).update(fields=[]),
    "no entries": lambda m: m["kernels"][0].update(entries=[]),
    "bitcode is a word": lambda m: m["kernels"][0].update(bitcode="yes"),
    "two kernels claim one key": lambda m: m["kernels"][1]["entries"][0].update(
        artifact_key=entry_key(m)["artifact_key"]
    ),
    "payloads overlap": lambda m: m["payloads"][1].update(offset=0),
    "payloads leave a gap": lambda m: m["payloads"].pop(),
    "payload without hash": lambda m: m["payloads"][0].update(sha256=""),
    "another format": lambda m: m.update(format=2),
    "no arch": lambda m: m.pop("arch"),
    "no kernels": lambda m: m.pop("kernels"),
    "identities are a list": lambda m: m["flydsl"].update(identities=[]),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_a_broken_manifest_is_refused_whole(pack: Path, tmp_path: Path, what: str) -> None:
    manifest, payloads = manifest_of(pack)
    BREAKAGES[what](manifest)
    with pytest.raises(PackError, match="broken manifest") as caught:
        Pack(str(forge(tmp_path / "f.fkpack", manifest, payloads)))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("manifest", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_no_manifest_at_all(tmp_path: Path, manifest: bytes) -> None:
    with pytest.raises(PackError, match=r"broken manifest|damaged"):
        Pack(str(forge(tmp_path / "f.fkpack", manifest, b"")))


def test_a_payload_that_is_not_its_hash_is_refused(pack: Path, tmp_path: Path) -> None:
    manifest, payloads = manifest_of(pack)
    manifest["payloads"][2]["sha256"] = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(PackError, match="payload 2 does not match its sha256"):
        list(Pack(str(forge(tmp_path / "f.fkpack", manifest, payloads))).payloads())
