"""Finding a linker, and the folder that FlyDSL takes for ROCm; with the real linkers of this machine and with fakes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.errors import CheckError, PrebuildError
from aiter_flydsl_prebuild.flydsl import toolchain as module
from aiter_flydsl_prebuild.flydsl.cache import bitcode_digest
from aiter_flydsl_prebuild.flydsl.toolchain import Toolchain, find_bitcode, find_toolchain, scrubbed_environment, survey
from processes import SUPPORT

REAL = [candidate for candidate in survey() if candidate.problem is None]
ZIG = next((candidate for candidate in REAL if candidate.kind == "ziglang"), None)

needs_linker = pytest.mark.skipif(not REAL, reason="no linker on this machine")
needs_zig = pytest.mark.skipif(ZIG is None, reason="ziglang is not installed")
needs_flydsl = pytest.mark.skipif(
    not importlib.util.find_spec("flydsl") or not importlib.util.find_spec("torch"), reason="FlyDSL or torch is missing"
)

FAKE = """#!{python}
import os, sys
sys.path[:] = []
if "--version" in sys.argv:
    print({version!r})
else:
    print({complaint!r}, file=sys.stderr)
    if {complaint!r}:
        sys.exit(1)
    source, target = sys.argv[-3], sys.argv[-1]
    os.write(os.open(target, os.O_WRONLY | os.O_CREAT), os.read(os.open(source, os.O_RDONLY), 10**6))
"""


def fake(path: Path, version: str = "LLD 99.0.0 (compatible with GNU linkers)", complaint: str = "") -> Path:
    """A program that passes for a linker, as far as trying one out goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE.format(python=sys.executable, version=version, complaint=complaint))
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without any linker, and an empty home."""
    monkeypatch.setattr(module, "DEFAULT_ROCM", tmp_path / "opt-rocm")
    monkeypatch.setattr(module, "DISTRIBUTION_LLVM", tmp_path / "usr-lib")
    monkeypatch.setattr(module, "_package_folder", lambda name: None)
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}


def bitcode(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "ocml.bc").write_bytes(b"BC ocml")
    (folder / "ockl.bc").write_bytes(b"BC ockl")
    return folder


def compile_tiny(toolchain: Toolchain, folder: Path) -> Path:
    """Compiles tests/support/tiny.py with the real FlyDSL; returns the cache entry."""
    environment = scrubbed_environment(os.environ, rocm_root=toolchain.rocm_root, arch="gfx950", cache_dir=folder)
    environment["COMPILE_ONLY"] = "1"
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "tiny.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (entry,) = folder.rglob("*.pkl")
    return entry


CLOSED = """
import json, os, sys
from aiter_flydsl_prebuild.builder import doctor
from aiter_flydsl_prebuild.flydsl import toolchain
from aiter_flydsl_prebuild.errors import CheckError
doctor.examine()  # loads what this user may load, and the other perhaps not
if os.geteuid() == 0:
    os.setgid(12345); os.setuid(12345)
environment = json.loads(sys.argv[1])
findings = {finding.name: finding.detail for finding in doctor.examine(environment)}
try:
    toolchain.find_toolchain(environment)
except CheckError as error:
    assert "no linker" in str(error), error
print(findings["linker"])
"""


def test_folders_that_may_not_be_read_are_passed_over(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    (closed / "rocm").mkdir()
    closed.chmod(0)
    environment = {
        "PATH": os.pathsep.join([str(closed / "bin"), str(closed), os.environ["PATH"]]),
        "HOME": str(closed),
        "ROCM_PATH": str(closed / "rocm"),
        "FLYDSL_RUNTIME_CACHE_DIR": str(closed / "cache"),
        "TMPDIR": "/tmp",
    }
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, json.dumps(environment)],
        env={**os.environ, "TMPDIR": "/tmp"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    closed.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert f"ROCM_PATH: {closed / 'rocm'}: this user may not read it" in done.stdout


def test_bitcode_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    file = bitcode(tmp_path / "rocm" / "amdgcn" / "bitcode") / "ockl.bc"
    file.unlink()
    file.mkdir()  # what root cannot read either
    with pytest.raises(PrebuildError, match=r"ockl.bc: the device bitcode cannot be read: Is a directory"):
        bitcode_digest(str(tmp_path / "rocm"))


# ---- real linkers ---------------------------------------------------------------------------------------------------


@needs_linker
@needs_flydsl
@pytest.mark.parametrize("candidate", REAL, ids=lambda candidate: f"{candidate.kind}-{candidate.version}")
def test_flydsl_compiles_with_each_real_linker(
    bare: dict[str, str], tmp_path: Path, candidate: module.Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_candidates", lambda environment: iter([candidate]))
    # A builder's leftovers must not reach the compile.
    monkeypatch.setenv("FLYDSL_GPU_ARCH", "gfx942")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "9.4.2")
    toolchain = find_toolchain({**bare, "PATH": os.environ["PATH"]})
    assert toolchain.linker_version == candidate.version
    assert not (toolchain.rocm_root / "amdgcn").exists()
    entry = compile_tiny(toolchain, tmp_path / "cache")
    assert entry.stat().st_size > 1000


@needs_linker
def test_a_linker_behind_rocm_path_comes_first(bare: dict[str, str], tmp_path: Path) -> None:
    rocm = tmp_path / "rocm"
    linker = rocm / "lib" / "llvm" / "bin" / "ld.lld"
    linker.parent.mkdir(parents=True)
    command = " ".join(REAL[0].command)
    linker.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    linker.chmod(0o755)
    fake(tmp_path / "bin" / "ld.lld")
    found = find_toolchain({**bare, "ROCM_PATH": str(rocm), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    assert (found.kind, found.linker, found.linker_version) == ("ROCM_PATH", linker, REAL[0].version)
    assert found.skipped == ()


@needs_zig
def test_ziglang_alone_will_do(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("ziglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    monkeypatch.setattr(module, "_package_folder", lambda name: folder if name == "ziglang" else None)
    found = find_toolchain(bare)
    assert found.kind == "ziglang"
    script = found.rocm_root / "llvm" / "bin" / "ld.lld"
    assert script.read_text().splitlines() == ["#!/bin/sh", f'exec {folder}/zig ld.lld "$@"']
    # As MLIR calls it: with a bare name for argv[0].
    done = subprocess.run(["ld.lld", "--version"], executable=script, capture_output=True, text=True, check=True)
    assert "LLD" in done.stdout


# ---- the search -----------------------------------------------------------------------------------------------------


def test_without_any_linker_the_message_says_what_was_tried_and_what_to_do(bare: dict[str, str]) -> None:
    with pytest.raises(CheckError) as raised:
        find_toolchain(bare)
    text = str(raised.value)
    for words in ("ROCM_PATH: not set", "opt-rocm: not there", "rocm-sdk-core: not installed", "on PATH", "ziglang"):
        assert words in text
    assert "pip install 'aiter-flydsl-prebuild[cross]'" in text


def test_the_order_of_the_search(bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, zig = tmp_path / "site", tmp_path / "site" / "ziglang"
    packages = {"rocm_sdk": site / "rocm_sdk", "ziglang": zig}
    monkeypatch.setattr(module, "_package_folder", packages.get)
    environment = {**bare, "ROCM_PATH": str(tmp_path / "mine"), "ROCM_HOME": str(tmp_path / "other")}
    places = [
        ("ROCM_PATH", tmp_path / "mine/llvm/bin/ld.lld"),
        ("ROCM_HOME", tmp_path / "other/llvm/bin/ld.lld"),
        (str(tmp_path / "opt-rocm"), tmp_path / "opt-rocm/llvm/bin/ld.lld"),
        ("rocm-sdk", site / "_rocm_sdk_core/lib/llvm/bin/ld.lld"),
        ("PATH", tmp_path / "bin/ld.lld"),
        ("PATH", tmp_path / "bin/ld.lld-22"),
        ("PATH", tmp_path / "usr-lib/llvm-21/bin/ld.lld"),
        ("PATH", tmp_path / "bin/ld.lld-20"),
        ("ziglang", zig / "zig"),
    ]
    for number, (_, path) in enumerate(places):
        fake(path, version=f"LLD {number}.0")
    assert [(c.kind, c.command[0]) for c in survey(environment) if c.command] == [(k, str(p)) for k, p in places]
    for number, (kind, path) in enumerate(places[:-1]):
        found = find_toolchain(environment)
        assert (found.kind, found.linker, found.linker_version) == (kind, path, f"LLD {number}.0")
        path.unlink()


def test_one_linker_with_two_names_is_tried_once(bare: dict[str, str], tmp_path: Path) -> None:
    real = fake(tmp_path / "usr-lib" / "llvm-22" / "bin" / "ld.lld")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ld.lld-22").symlink_to(real)
    assert [c.where for c in survey(bare) if c.kind == "PATH"] == [str(tmp_path / "bin" / "ld.lld-22")]


def break_it(kind: str) -> Callable[[Path], object]:
    return {
        "not LLD": lambda path: fake(path, version="GNU ld (GNU Binutils) 2.40"),
        "too old": lambda path: fake(path, version="LLD 14.0.6", complaint="ld.lld: error: unknown abi version: "),
        "exit status 1: ld.lld: error: no": lambda path: fake(path, complaint="ld.lld: error: no such emulation"),
        "cannot be run": lambda path: fake(path).write_text("#!/nowhere/at/all\n"),
    }[kind]


@pytest.mark.parametrize("reason", ["not LLD", "too old", "exit status 1: ld.lld: error: no", "cannot be run"])
def test_a_broken_candidate_is_skipped_and_the_reason_kept(bare: dict[str, str], tmp_path: Path, reason: str) -> None:
    rocm = tmp_path / "rocm"
    break_it(reason)(rocm / "llvm" / "bin" / "ld.lld")
    good = fake(tmp_path / "bin" / "ld.lld")
    found = find_toolchain({**bare, "ROCM_PATH": str(rocm)})
    assert found.linker == good
    first = found.skipped[0]
    assert first.kind == "ROCM_PATH"
    assert reason in (first.problem or "")


@needs_linker
def test_the_object_that_linkers_are_tried_with_is_one_that_readers_accept(tmp_path: Path) -> None:
    elffile = pytest.importorskip("elftools.elf.elffile")
    (tmp_path / "empty.o").write_bytes(module.empty_object())
    with (tmp_path / "empty.o").open("rb") as file:
        elf = elffile.ELFFile(file)
        assert elf.header["e_machine"] == "EM_AMDGPU"
        assert [section.name for section in elf.iter_sections()] == ["", ".shstrtab"]


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_the_folder_is_private_and_in_the_users_cache(bare: dict[str, str], tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    root = find_toolchain(bare).rocm_root
    assert root.parent == tmp_path / "home" / ".cache" / "aiter-flydsl-prebuild"
    assert root.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in root.parent.iterdir()} == {".lock", root.name}, "nothing is left over"
    elsewhere = find_toolchain({**bare, "XDG_CACHE_HOME": str(tmp_path / "xdg")}).rocm_root
    assert elsewhere.parent == tmp_path / "xdg" / "aiter-flydsl-prebuild"
    relative = find_toolchain({**bare, "XDG_CACHE_HOME": "xdg"}).rocm_root
    assert relative == root, "the XDG specification says to ignore a relative path"


def test_the_folder_is_kept_while_right_and_made_again_when_not(bare: dict[str, str], tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    root = find_toolchain(bare).rocm_root
    script, inode = root / "llvm" / "bin" / "ld.lld", root.stat().st_ino
    text = script.read_text()
    assert find_toolchain(bare).rocm_root.stat().st_ino == inode

    def tamper_script() -> None:
        script.write_text("#!/bin/sh\nexit 0\n")

    def add_bitcode() -> None:
        bitcode(root / "amdgcn" / "bitcode")

    def open_up() -> None:
        root.chmod(0o777)

    def replace_by_file() -> None:
        shutil.rmtree(root)
        root.write_text("")

    for tamper in (tamper_script, add_bitcode, open_up, replace_by_file):
        tamper()
        assert find_toolchain(bare).rocm_root == root
        assert script.read_text() == text
        assert not (root / "amdgcn").exists()
        assert root.stat().st_mode & 0o777 == 0o700


def test_a_linker_that_moved_gets_a_folder_of_its_own(bare: dict[str, str], tmp_path: Path) -> None:
    first = fake(tmp_path / "bin" / "ld.lld")
    before = find_toolchain(bare).rocm_root
    (tmp_path / "another place").mkdir()
    first.rename(tmp_path / "another place" / "ld.lld")
    after = find_toolchain({**bare, "PATH": str(tmp_path / "another place")})
    assert after.rocm_root != before
    said = subprocess.run(
        [after.rocm_root / "llvm/bin/ld.lld", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("LLD 99"), "a path with a space is quoted"


@pytest.mark.parametrize("case", ["a file in the way", "others can write", "cannot be run there"])
def test_a_home_that_will_not_do_is_replaced_by_a_temporary_folder(
    bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    cache = tmp_path / "home" / ".cache"
    if case == "a file in the way":
        # Stands for a read-only home: root may write to any folder.
        cache.write_text("")
    elif case == "others can write":
        (cache / "aiter-flydsl-prebuild").mkdir(parents=True)
        (cache / "aiter-flydsl-prebuild").chmod(0o777)
    else:
        run = module._run

        def refuse(command: list[str], environment: dict[str, str]) -> str:
            if command[0].startswith(str(cache)):
                raise PermissionError(13, "Permission denied")
            return run(command, environment)

        monkeypatch.setattr(module, "_run", refuse)
    root = find_toolchain(bare).rocm_root
    assert tmp_path not in root.parents
    assert root.parent.stat().st_mode & 0o777 == 0o700
    assert (root / "llvm" / "bin" / "ld.lld").is_file()


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root can write anywhere")
def test_a_read_only_home(bare: dict[str, str], tmp_path: Path) -> None:
    """In a process of its own, which leaves nothing behind."""
    home = tmp_path / "home"
    home.chmod(0o555)
    linker = fake(tmp_path / "bin" / "ld.lld", version="LLD 98.0")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "from aiter_flydsl_prebuild.flydsl.toolchain import find_toolchain\n"
        "found = find_toolchain()\n"
        "assert (found.rocm_root / 'llvm' / 'bin' / 'ld.lld').is_file()\n"
        "print(found.linker_version, found.rocm_root)\n"
    )
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    environment = {**bare, "TMPDIR": str(scratch), "PATH": f"{linker.parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [*drop, sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip().rpartition(" ")
    assert said[0] == "LLD 98.0"
    assert scratch in Path(said[2]).parents
    assert list(scratch.iterdir()) == []
    assert list(home.iterdir()) == []


def test_concurrent_builders_agree(bare: dict[str, str], tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from aiter_flydsl_prebuild.flydsl import rocm_folder\n"
        "base, start = Path(sys.argv[1]), float(sys.argv[2])\n"
        "time.sleep(max(0, start - time.time()))\n"
        "for n in range(200):\n"
        "    root = rocm_folder.publish(base, f'#!/bin/sh\\n# {n}\\n', None)\n"
        "    assert (root / 'llvm' / 'bin' / 'ld.lld').read_text().endswith(f'{n}\\n')\n"
    )
    base = tmp_path / "base"
    base.mkdir()
    command = [sys.executable, "-c", script, str(base), str(time.time() + 1)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert len(list(base.iterdir())) == 200 + len([".lock"])
    with ThreadPoolExecutor(4) as pool:
        assert len({found.rocm_root for found in pool.map(lambda _: find_toolchain(bare), range(8))}) == 1


# ---- bitcode --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout", ["amdgcn/bitcode", "lib/llvm/amdgcn/bitcode", "lib/llvm/lib/clang/22/amdgcn/bitcode"]
)
def test_bitcode_is_linked_into_a_folder_of_its_own(bare: dict[str, str], tmp_path: Path, layout: str) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    rocm = tmp_path / "rocm"
    folder = bitcode(rocm / layout)
    found = find_toolchain({**bare, "ROCM_PATH": str(rocm)})
    assert (found.kind, found.bitcode, found.bitcode_source) == ("PATH", folder, "ROCM_PATH")
    assert not (found.rocm_root / "amdgcn").exists()
    root = found.rocm_root_with_bitcode()
    assert root is not None
    assert root != found.rocm_root
    assert (root / "amdgcn" / "bitcode" / "ocml.bc").read_bytes() == b"BC ocml"
    assert (root / "llvm" / "bin" / "ld.lld").read_text() == (found.rocm_root / "llvm" / "bin" / "ld.lld").read_text()
    assert found.rocm_root_with_bitcode() == root


def test_bitcode_without_ocml_does_not_count(bare: dict[str, str], tmp_path: Path) -> None:
    (bitcode(tmp_path / "rocm" / "amdgcn" / "bitcode") / "ocml.bc").unlink()
    assert find_bitcode({**bare, "ROCM_PATH": str(tmp_path / "rocm")}) is None


def test_the_fingerprint_follows_names_and_contents(bare: dict[str, str], tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    none = find_toolchain(bare)
    assert (none.fingerprint.linker, none.fingerprint.bitcode) == ("LLD 99.0.0", None)
    assert none.rocm_root_with_bitcode() is None
    seen = set()
    for name in ("one", "two", "three"):
        folder = bitcode(tmp_path / name / "amdgcn" / "bitcode")
        if name == "two":
            (folder / "ockl.bc").write_bytes(b"BC other")
        if name == "three":
            (folder / "ockl.bc").rename(folder / "other.bc")
        seen.add(find_toolchain({**bare, "ROCM_PATH": str(tmp_path / name)}).fingerprint.bitcode)
    assert len(seen) == 3
    assert None not in seen


@needs_flydsl
def test_the_fingerprint_is_flydsls_own_digest(bare: dict[str, str], tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "ld.lld")
    bitcode(tmp_path / "rocm" / "amdgcn" / "bitcode")
    found = find_toolchain({**bare, "ROCM_PATH": str(tmp_path / "rocm")})
    script = (
        "import json, sys\n"
        "import flydsl.compiler.backends.rocm as rocm\n"
        "hashing = getattr(rocm, '_hash_device_bitcode', None)\n"
        "print(json.dumps(hashing and hashing(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", script, str(found.rocm_root_with_bitcode())]
    own = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    if own is None:
        pytest.skip("this FlyDSL hashes no bitcode")
    assert found.fingerprint.bitcode == own


# ---- the environment ------------------------------------------------------------------------------------------------


def test_the_environment_is_scrubbed(tmp_path: Path) -> None:
    kept = {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "LD_LIBRARY_PATH": "/l",
        "PYTHONPATH": "/p",
        "TZ": "Z",
    }
    dropped = (
        *("FLYDSL_COMPILE_OPT_LEVEL", "FLYDSL_RUNTIME_RUN_ONLY", "ARCH", "HSA_OVERRIDE_GFX_VERSION", "COMPILE_ONLY"),
        *(
            "HIP_VISIBLE_DEVICES",
            "ROCM_ROOT",
            "ROCR_VISIBLE_DEVICES",
            "GPU_ARCHS",
            "AITER_JIT_DIR",
            "LLVM_PATH",
            "SECRET",
        ),
    )
    base = {
        **kept,
        **dict.fromkeys(dropped, "x"),
        "ROCM_PATH": "/old",
        "FLYDSL_GPU_ARCH": "gfx942",
        "PYTHONHASHSEED": "7",
    }
    assert scrubbed_environment(base, rocm_root=Path("/r"), arch="gfx950", cache_dir=tmp_path) == {
        **kept,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "ROCM_PATH": "/r",
        "ROCM_HOME": "/r",
        "FLYDSL_GPU_ARCH": "gfx950",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path),
    }
