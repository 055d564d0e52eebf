"""The rules about FlyDSL's cache, against the FlyDSL that is installed."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.discovery import default_cache_dir, rocm_root
from aiter_flydsl_prebuild.errors import PrebuildError
from aiter_flydsl_prebuild.flydsl import cache
from aiter_flydsl_prebuild.flydsl.install import read_install
from packs import install_here
from processes import flydsl_environment, run_python

artifact_generation = pytest.mark.skipif(
    (install := read_install()) is None or cache.generation(install.version) != cache.ARTIFACT_KEY,
    reason="needs a FlyDSL whose keys are artifact keys (0.5)",
)


def entry_of(tiny: dict[str, Any]) -> cache.Entry:
    return cache.decode_entry((tiny["root"] / tiny["path"]).read_bytes())


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.3.0", None),
        ("0.3.1", cache.CALL_KEY),
        ("0.3.4.1", cache.CALL_KEY),
        ("0.4.2", cache.CALL_KEY),
        ("0.5.0", cache.ARTIFACT_KEY),
        ("0.5.3", cache.ARTIFACT_KEY),
        ("0.6.0", None),
        ("", None),
        ("main", None),
    ],
)
def test_generation(version: str, expected: str | None) -> None:
    assert cache.generation(version) == expected


@artifact_generation
def test_toolchain_key_is_flydsls_own(tiny_entry: dict[str, Any]) -> None:
    install = install_here()
    assert cache.toolchain_key(install, cache.NO_BITCODE) == tiny_entry["toolchain_key"]


@artifact_generation
def test_toolchain_key_follows_the_bitcode(toolchain: Any, tmp_path: Path) -> None:
    rocm = tmp_path / "rocm"
    (rocm / "amdgcn" / "bitcode").mkdir(parents=True)
    for name in ("ocml.bc", "ockl.bc", "note.txt"):
        (rocm / "amdgcn" / "bitcode" / name).write_bytes(name.encode())
    script = "from flydsl.compiler.jit_function import _flydsl_key; print(_flydsl_key())"
    environment = flydsl_environment(toolchain, tmp_path, ROCM_PATH=str(rocm))
    run = run_python(["-c", script], environment)
    install = install_here()
    assert cache.toolchain_key(install, cache.bitcode_digest(str(rocm))) == run.stdout.strip()
    assert cache.bitcode_digest(str(rocm)) != cache.NO_BITCODE


@artifact_generation
def test_disk_key_is_the_name_that_flydsl_wrote(tiny_entry: dict[str, Any]) -> None:
    key = cache.disk_key(tiny_entry["toolchain_key"], tiny_entry["artifact_key"])
    assert cache.artifact_path("tiny", key) == tiny_entry["path"]


@artifact_generation
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ROCM_HOME": "/a"},
        {"ROCM_ROOT": "/b", "ROCM_HOME": "/a"},
        {"ROCM_PATH": "/c", "ROCM_ROOT": "/b", "ROCM_HOME": "/a"},
        {"ROCM_PATH": "", "ROCM_ROOT": "/b"},
    ],
)
def test_rocm_root_is_the_one_flydsl_takes(values: dict[str, str]) -> None:
    script = "from flydsl._mlir._mlir_libs import _mlirDialectsFlyROCDL as native; print(native.rocm_path())"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_")}
    run = run_python(["-c", script], {**clean, **values})
    assert run.returncode == 0, run.stderr
    assert rocm_root(values) == run.stdout.strip()


def test_default_cache_folder_is_flydsls(toolchain: Any, tmp_path: Path) -> None:
    environment = flydsl_environment(toolchain, tmp_path)
    del environment["FLYDSL_RUNTIME_CACHE_DIR"]
    run = run_python(["-c", "from flydsl.utils import env; print(env.runtime.cache_dir)"], environment)
    assert run.stdout.strip() == default_cache_dir()


def test_keyed_variables_cover_flydsls(toolchain: Any, tmp_path: Path) -> None:
    script = "from flydsl.compiler.jit_function import _CACHE_INVALIDATING_ENV_VARS as names; print(*names)"
    run = run_python(["-c", script], flydsl_environment(toolchain, tmp_path))
    assert set(run.stdout.split()) <= set(cache.KEYED_VARIABLES)


def test_flydsl_reads_what_is_written_here(tiny_entry: dict[str, Any], toolchain: Any, tmp_path: Path) -> None:
    """Every field of an entry that was decoded and encoded again is what FlyDSL's own compile made."""
    original = tiny_entry["root"] / tiny_entry["path"]
    again = tmp_path / "again.pkl"
    again.write_bytes(cache.encode_entry(entry_of(tiny_entry)))
    script = (
        "import pickle, sys, flydsl.compiler\n"
        "a, b = ({k: v for k, v in vars(pickle.load(open(p, 'rb'))).items() if k not in ('_lock', '_source_ir')}"
        " for p in sys.argv[1:])\n"
        "print(sorted(a), a == b)"
    )
    run = run_python(["-c", script, str(original), str(again)], flydsl_environment(toolchain, tmp_path))
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith("True")
    assert "_ir_text" in run.stdout


def test_encoding_is_the_same_every_time(tiny_entry: dict[str, Any]) -> None:
    entry = entry_of(tiny_entry)
    assert cache.encode_entry(entry) == cache.encode_entry(
        cache.Entry(entry.ir_text, dict(reversed(entry.fields.items())))
    )
    assert cache.decode_entry(cache.encode_entry(entry)) == entry


def test_decoding_runs_nothing() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (sys.exit, (3,))

    with pytest.raises(PrebuildError, match="not a plain value"):
        cache.decode_entry(pickle.dumps(Evil()))


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps({"ir_text": "x"})])
def test_decoding_refuses_what_is_no_entry(data: bytes) -> None:
    with pytest.raises(PrebuildError, match="a cache entry"):
        cache.decode_entry(data)


def test_decoding_refuses_an_entry_without_text() -> None:
    state = (
        b"\x80\x04cflydsl.compiler.jit_executor\nCompiledArtifact\n)\x81"
        + pickle.dumps({"entry": "f"}, 3)[2:-1]
        + b"b."
    )
    with pytest.raises(PrebuildError, match="has no compiled text"):
        cache.decode_entry(state)
