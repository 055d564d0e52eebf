"""The main job, as the README tells it: build a wheel, install it, prove it; and every way in which it can be wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.proof import proof
from aiter_flydsl_prebuild.flydsl.install import interpreter_abi
from aiter_flydsl_prebuild.model.shape import LAYER, kernel_label
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import to_json
from packs import files_of, forge, make_wheel, pack_in
from processes import ROOT, SUPPORT, prebuild, run_python, start_interruptible, wait_until

WITH_TEST_SOURCES = {**os.environ, "PYTHONPATH": str(SUPPORT)}


def altered(wheel: Path, folder: Path, change: Any) -> Path:
    """The wheel's pack with its manifest (and payloads) changed, and all outer hashes right."""
    path = pack_in(wheel, folder)
    pack = Pack(str(path))
    manifest = to_json(pack.manifest)
    return forge(path, manifest, change(manifest, "".join(pack.payloads()).encode()))


def verify(path: Path) -> dict[str, Any]:
    """A proof that must fail; what it says."""
    run = prebuild("verify", path, "--json")
    assert run.returncode == 1, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.slow
def test_the_wheel_holds(wheel: Path, tmp_path: Path) -> None:
    run = prebuild("verify", wheel, "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    proof = json.loads(run.stdout)
    assert proof["dispatches"] == 18 * 32
    assert proof["compiled"] == 0
    assert proof["misses"] == proof["problems"] == []
    assert proof["kernels"] == proof["payloads"] == len(Pack(str(pack_in(wheel, tmp_path))).kernels)
    assert proof["calls"] >= proof["kernels"]


@pytest.mark.slow
def test_without_the_wheel_a_server_compiles(wheel: Path) -> None:
    run = prebuild("verify", wheel, "--cold", "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    proof = json.loads(run.stdout)
    assert proof["compiled"] == proof["kernels"] > 0


@pytest.mark.slow
def test_exhaustive_calls_every_token_count(wheel: Path) -> None:
    run = prebuild("verify", wheel, "--exhaustive", "--tokens", "1..8", "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    proof = json.loads(run.stdout)
    assert proof["calls"] == proof["dispatches"] == 18 * 8


@pytest.mark.slow
def test_two_builds_give_one_wheel(wheel: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "FLYDSL_COMPILE_OPT_LEVEL": "0", "ARCH": "gfx942", "TMPDIR": str(tmp_path)}
    run = prebuild("build", "--tokens", "1..32", "--out", tmp_path / "again", "--workers", "1", environment=environment)
    assert run.returncode == 0, run.stderr
    (again,) = (tmp_path / "again").iterdir()
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"], "the build left something behind"


@pytest.mark.slow
def test_a_relative_folder_an_odd_umask_and_a_switched_off_hook_change_nothing(wheel: Path, tmp_path: Path) -> None:
    script = "import os, sys; os.umask(0o077); from aiter_flydsl_prebuild.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "AITER_FLYDSL_PREBUILD_BUILD": "0", "SETUPTOOLS_USE_DISTUTILS": "stdlib"}
    command = ["-c", script, "build", "--tokens", "1..32"]
    run = run_python(command, environment, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("epoch", ["abc", "9999999999999"])
def test_a_date_that_is_none(epoch: str, tmp_path: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run = prebuild("build", "--tokens", "1..1", "--out", tmp_path / "dist", environment=environment)
    assert run.returncode == 2
    assert f"SOURCE_DATE_EPOCH={epoch} is " in run.stderr
    assert "compiling" not in run.stderr
    assert not (tmp_path / "dist").exists()


def test_a_folder_that_takes_nothing_is_said_before_compiling(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "dist", Path("/proc/dist")):
        run = prebuild("build", "--out", out)
        assert run.returncode == 2
        assert f"{out}: cannot be written to" in run.stderr
        assert "compiling" not in run.stderr


def test_usage_errors_are_json_too() -> None:
    run = prebuild("plan", "--cu-num", "0", "--json")
    assert run.returncode == 2
    assert "is not a positive whole number" in json.loads(run.stdout)["error"]
    assert prebuild("build", "--out").returncode == 2


def test_an_output_that_is_full(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "aiter_flydsl_prebuild", "plan"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == "aiter-flydsl-prebuild: No space left on device\n"


def test_the_wheel_is_well_formed(wheel: Path, tmp_path: Path) -> None:
    for command in (["twine", "check", "--strict"], ["check_wheel_contents"]):
        run = run_python(["-m", *command, str(wheel)], dict(os.environ))
        assert run.returncode == 0, run.stdout + run.stderr
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    pack = Pack(str(pack_in(wheel, tmp_path)))
    assert f"Requires-Dist: flydsl=={pack.version}\n" in metadata
    assert "Requires-Dist: aiter-flydsl-prebuild>=" in metadata
    assert wheel.name.endswith(
        "-py3-none-any.whl" if len(pack.identities) > 1 else f"-{interpreter_abi()}-none-any.whl"
    )
    assert wheel.stat().st_size <= 3000 * len(pack.kernels)


def test_the_manifest_says_what_is_inside(wheel: Path, tmp_path: Path) -> None:
    run = prebuild("inspect", wheel, "--json")
    (pack,) = json.loads(run.stdout)["packs"]
    assert (pack["arch"], pack["plan"]["tokens"], pack["missing"]) == ("gfx950", [1, 32], [])
    assert pack["toolchain"]["linker"]
    for kernel in pack["kernels"]:
        (entry,) = kernel["entries"]
        (code,) = entry["code"]
        assert code["vgpr"] > 0
        assert code["wavefront"] == 64
        assert (code["vgpr_spills"], code["sgpr_spills"], code["scratch"], code["lds"]) == (0, 0, 0, 0)
        assert kernel["bitcode"] is None


def test_one_kernel_can_be_read_out(wheel: Path, tmp_path: Path) -> None:
    name = Pack(str(pack_in(wheel, tmp_path))).kernels[0].name
    run = prebuild("inspect", wheel, "--kernel", name, "--extract", tmp_path / "out", "--json")
    written = json.loads(run.stdout)["extracted"]
    assert run.returncode == 0
    assert all(Path(path).name.startswith(name) for path in written)
    assert Path(next(p for p in written if p.endswith(".hsaco"))).read_bytes().startswith(b"\x7fELF")
    assert prebuild("inspect", wheel, "--kernel", "other").returncode == 2


def test_a_pack_that_the_variable_names_is_proven_as_any_other(wheel: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The proof's process does not get that variable of the caller's."""
    pack = pack_in(wheel, tmp_path)
    monkeypatch.setenv("AITER_FLYDSL_PREBUILD_PACKS", str(pack))
    given: dict[str, str] = {}

    def run(request: dict[str, Any], environment: dict[str, str], result: Path, cold: bool) -> None:
        given.update(environment)

    monkeypatch.setattr(proof, "_run", run)
    proof.prove(proof.Subject((pack,), (), ()))
    assert given["AITER_FLYDSL_PREBUILD_PACKS"] == str(pack)


@pytest.mark.slow
def test_a_kernel_that_is_missing_is_named_with_its_tokens(wheel: Path, tmp_path: Path) -> None:
    lost: dict[str, Any] = {}

    def remove(manifest: dict[str, Any], payloads: bytes) -> bytes:
        lost.update(manifest["kernels"].pop(3))
        return payloads

    (miss,) = verify(altered(wheel, tmp_path, remove))["misses"]
    assert [miss[key] for key in ("name", "n", "k", "tokens")] == [lost[key] for key in ("name", "n", "k", "tokens")]
    people = prebuild("verify", altered(wheel, tmp_path, lambda m, p: m["kernels"].pop(3) and p))
    first, last = lost["tokens"][0]
    label = kernel_label(lost["name"], **{name: lost[name] for name in LAYER})
    assert f"{label}, tokens {first}..{last}: would compile" in people.stdout


def test_a_damaged_pack_is_refused(wheel: Path, tmp_path: Path) -> None:
    path = pack_in(wheel, tmp_path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    run = prebuild("verify", path, "--json")
    assert run.returncode == 1
    assert "damaged: its bytes do not match its sha256" in run.stderr


@pytest.mark.slow
def test_a_payload_of_nonsense_fails_although_every_hash_is_right(wheel: Path, tmp_path: Path) -> None:
    def spoil(manifest: dict[str, Any], payloads: bytes) -> bytes:
        import hashlib

        place = manifest["payloads"][0]
        nonsense = b"nonsense " * (place["size"] // 9 + 1)
        payloads = nonsense[: place["size"]] + payloads[place["size"] :]
        place["sha256"] = hashlib.sha256(payloads[: place["size"]]).hexdigest()
        return payloads

    found = verify(altered(wheel, tmp_path, spoil))
    assert found["misses"] == [], "a hit alone proves nothing"
    assert any("FlyDSL cannot read it" in problem for problem in found["problems"])


@pytest.mark.slow
def test_another_kernels_code_fails(wheel: Path, tmp_path: Path) -> None:
    def swap(manifest: dict[str, Any], payloads: bytes) -> bytes:
        entries = [kernel["entries"][0] for kernel in manifest["kernels"]]
        other = next(e for e in entries if e["payload"] != entries[0]["payload"])
        entries[0]["payload"] = other["payload"]
        return payloads

    found = verify(altered(wheel, tmp_path, swap))
    assert any("its code object is not the one that the manifest describes" in p for p in found["problems"])


@pytest.mark.slow
def test_a_pack_for_another_flydsl_fails_with_the_reason(wheel: Path, tmp_path: Path) -> None:
    def rename(manifest: dict[str, Any], payloads: bytes) -> bytes:
        manifest["flydsl"]["version"] = "0.4.99"
        return payloads

    found = verify(altered(wheel, tmp_path, rename))
    assert any("kernels are for flydsl 0.4.99, installed is" in problem for problem in found["problems"])
    assert found["kernels"] == 0


@pytest.mark.slow
def test_a_table_that_changed_since_the_build_fails(wheel: Path, tmp_path: Path) -> None:
    def forget(manifest: dict[str, Any], payloads: bytes) -> bytes:
        manifest["plan"]["tables"][0]["sha256"] = "0" * 64
        manifest["source"]["digest"] = "0" * 64
        return payloads

    problems = verify(altered(wheel, tmp_path, forget))["problems"]
    assert any("is not the tuned table that the kernels were built from" in problem for problem in problems)
    assert any("is not the one that the kernels were built from" in problem for problem in problems)


@pytest.mark.slow
def test_exchanged_keys_are_found_by_compiling_again(wheel: Path, tmp_path: Path) -> None:
    """A manifest that gives two kernels each other's keys is consistent in itself: only the compiler knows better."""

    def exchange(manifest: dict[str, Any], payloads: bytes) -> bytes:
        one, *others = (kernel["entries"][0] for kernel in manifest["kernels"])
        other = next(entry for entry in others if entry["payload"] != one["payload"])
        for key in ("artifact_key", "paths"):
            if key in one:
                one[key], other[key] = other[key], one[key]
        return payloads

    path = altered(wheel, tmp_path, exchange)
    run = prebuild("verify", path, "--cold", "--json")
    assert run.returncode == 1
    problems = json.loads(run.stdout)["problems"]
    assert len([p for p in problems if "compiling it again gives other code than the pack holds" in p]) == 2


LIES: dict[str, tuple[Any, str]] = {
    "registers": (lambda k: k["entries"][0]["code"][0].update(vgpr=1), "is not the one that the manifest describes"),
    "tokens": (lambda k: k.update(tokens=[[1, 2]]), "serves other token counts than the manifest says"),
    "shape": (lambda k: k.update(n=k["n"] + 16), "is in the pack, and no token count reaches it"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LIES)
def test_a_manifest_that_describes_something_else_fails(wheel: Path, tmp_path: Path, what: str) -> None:
    lie, line = LIES[what]

    def change(manifest: dict[str, Any], payloads: bytes) -> bytes:
        lie(manifest["kernels"][0])
        return payloads

    assert any(line in problem for problem in verify(altered(wheel, tmp_path, change))["problems"])


BROKEN_PLANS: dict[str, Any] = {
    "no plan": lambda m: m.pop("plan"),
    "no source": lambda m: m.pop("source"),
    "tokens are a word": lambda m: m["plan"].update(tokens="all"),
    "one token count": lambda m: m["plan"].update(tokens=[1]),
    "no such rule": lambda m: m["plan"].update(rule="x"),
    "tables are none": lambda m: m["plan"].update(tables=None),
    "options are a list": lambda m: m["plan"].update(options=[1]),
    "no toolchain": lambda m: m.update(toolchain=None),
    "no code facts": lambda m: m["kernels"][0]["entries"][0].pop("code"),
    "no n": lambda m: m["kernels"][0].pop("n"),
}


@pytest.mark.parametrize("what", BROKEN_PLANS)
def test_a_broken_manifest_is_one_line(wheel: Path, tmp_path: Path, what: str) -> None:
    def change(manifest: dict[str, Any], payloads: bytes) -> bytes:
        BROKEN_PLANS[what](manifest)
        return payloads

    run = prebuild("verify", altered(wheel, tmp_path, change))
    assert run.returncode == 1
    said = "its dispatch rule x is not known to this version" if what == "no such rule" else "broken manifest"
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_wheel_cannot_bring_its_own_torch(wheel: Path, tmp_path: Path) -> None:
    torch = f"open({str(tmp_path / 'ran')!r}, 'w')".encode()
    evil = make_wheel(tmp_path / wheel.name, {**files_of(wheel), "torch.py": torch})
    assert prebuild("verify", evil).returncode == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_more_tokens_than_it_was_built_for(wheel: Path) -> None:
    run = prebuild("verify", wheel, "--tokens", "1..256", "--json")
    assert run.returncode == 1
    assert min(miss["tokens"][0][0] for miss in json.loads(run.stdout)["misses"]) > 32


@pytest.fixture(scope="module")
def server(wheel: Path, project_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel and this project installed by pip.

    torch and FlyDSL come from the test environment by a path file: they are not what is tested, and gigabytes.
    """
    root = tmp_path_factory.mktemp("server")
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", str(project_wheel), str(wheel)], check=True)
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(run_python(["-c", script], dict(os.environ), python).stdout.strip())
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text("\n".join(shared) + "\n")
    return python


@pytest.mark.slow
def test_an_installed_wheel_serves(server: Path, tmp_path: Path) -> None:
    run = run_python(["-m", "aiter_flydsl_prebuild", "verify", "--json"], dict(os.environ), server, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(run.stdout)["compiled"] == 0

    environment = {
        **os.environ,
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
    }
    script = (
        "import aiter_flydsl_prebuild as p\n"
        "r = p.seed()\n"
        "print(r.kernels == r.written > 0, p.__file__, p.seed().written)"
    )
    run = run_python(["-c", script], environment, server, cwd=tmp_path)
    assert run.stdout.split() == ["True", run.stdout.split()[1], "0"]
    assert str(server.parent.parent) in run.stdout
    state = json.loads(run_python(["-m", "aiter_flydsl_prebuild", "status", "--json"], environment, server).stdout)
    (pack,) = state["packs"]
    assert pack["in_place"] == pack["files"] == pack["fitting"] == pack["kernels"]


def test_in_a_checkout_the_module_says_what_to_call(server: Path) -> None:
    command = ["-m", "aiter_flydsl_prebuild", "plan"]
    done = run_python(command, dict(os.environ), server, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.endswith("is a source tree: call aiter-flydsl-prebuild in place of python -m, or go elsewhere\n")
    assert run_python(command, dict(os.environ), server, cwd="/").returncode == 0


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_stops_the_build(tmp_path: Path) -> None:
    arguments = ("build", "--source", "sources_for_tests:Raises", "--tokens", "1..8", "--out", tmp_path / "dist")
    run = prebuild(*arguments, environment=WITH_TEST_SOURCES)
    assert run.returncode == 1
    assert "1 of 18 kernels could not be compiled, no wheel is written" in run.stderr
    assert "(N=512, K=5120, scales 32x32, mxscale_bmm): RuntimeError: no such instruction on gfx950" in run.stderr
    assert not (tmp_path / "dist").exists()


@pytest.mark.slow
def test_keep_going_leaves_it_out_and_says_so(tmp_path: Path) -> None:
    arguments = ("build", "--source", "sources_for_tests:Aborts", "--tokens", "1..8", "--out", tmp_path, "--json")
    run = prebuild(*arguments, "--keep-going", environment=WITH_TEST_SOURCES)
    assert run.returncode == 1, run.stderr
    built = json.loads(run.stdout)
    assert built["kernels"] == 17
    assert "SIGABRT" in built["failed"][0]
    assert "LLVM ERROR: Cannot select" in built["failed"][0]
    (pack,) = json.loads(prebuild("inspect", built["wheel"], "--json").stdout)["packs"]
    ((name, n, tokens),) = [(job["name"], job["n"], job["tokens"]) for job in pack["missing"]]
    assert (name.startswith("refgemm_mxfp8_"), n, tokens) == (True, 512, [[1, 8]])
    untrusted = prebuild("verify", built["wheel"], "--json", environment=WITH_TEST_SOURCES)
    assert untrusted.returncode == 2
    assert "which runs code of its own: --source sources_for_tests:Aborts allows it" in untrusted.stderr
    trust = ("--source", "sources_for_tests:Aborts")
    proof = prebuild("verify", built["wheel"], "--json", *trust, environment=WITH_TEST_SOURCES)
    assert proof.returncode == 1
    assert [miss["tokens"] for miss in json.loads(proof.stdout)["misses"]] == [[[1, 8]]]


@pytest.mark.slow
def test_a_kernel_that_eats_all_memory_is_one_kernel_less(tmp_path: Path) -> None:
    arguments = ("build", "--source", "sources_for_tests:Hungry", "--tokens", "1..1", "--out", tmp_path, "--json")
    done = prebuild(*arguments, "--keep-going", environment=WITH_TEST_SOURCES)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["kernels"], len(found["failed"])) == (17, 1)
    assert "MemoryError" in found["failed"][0]


@pytest.mark.slow
def test_a_compile_that_hangs_is_stopped(tmp_path: Path) -> None:
    arguments = ("build", "--source", "sources_for_tests:Hangs", "--tokens", "1..1", "--out", tmp_path)
    run = prebuild(*arguments, "--timeout", "0.2", "--keep-going", environment=WITH_TEST_SOURCES)
    assert run.returncode == 1
    assert "18 of 18 kernels could not be compiled" in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)])
def test_a_signal_stops_at_once_and_leaves_nothing(tmp_path: Path, number: int, status: int) -> None:
    (tmp_path / "tmp").mkdir()
    build = start_interruptible(
        [
            sys.executable,
            "-m",
            "aiter_flydsl_prebuild",
            "build",
            "--source",
            "sources_for_tests:Hangs",
            "--out",
            "dist",
        ],
        env={**WITH_TEST_SOURCES, "TMPDIR": str(tmp_path / "tmp")},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    assert wait_until(lambda: bool(list((tmp_path / "tmp").rglob("compiling"))))
    build.send_signal(number)
    started = time.monotonic()
    _, said = build.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert build.returncode == status
    assert ("interrupted: no wheel was written; the kernel store" in said) == (number == signal.SIGINT)
    assert "Traceback" not in said
    assert not (tmp_path / "dist").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout.split()
    assert left == []
