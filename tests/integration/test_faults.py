"""The short form of the fault suite, and the loader's faults that it does not reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import faults
from aiter_flydsl_prebuild import fitting, seed
from aiter_flydsl_prebuild.flydsl import cache as flydsl_cache
from aiter_flydsl_prebuild.packs.format import Pack
from packs import flydsl_here, forge, install_here, make_compiled, make_pack
from processes import SUPPORT, run_python

KERNELS = [make_compiled(f"k{i}", f"module {{ {i} }}") for i in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", faults.SCENARIOS)
def test_short(scenario: str) -> None:
    run = run_python([str(SUPPORT / "faults.py"), "--short", scenario], dict(os.environ))
    if run.stdout.startswith("skipped"):
        pytest.skip(run.stdout.strip())
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A server's environment, with three kernels in a pack that the loader finds."""
    pack = make_pack(tmp_path / "a.fkpack", KERNELS)
    (tmp_path / "home").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
        "AITER_FLYDSL_PREBUILD_PACKS": str(pack),
        "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
        "ROCM_PATH": str(tmp_path / "rocm"),
    }


STARTUP = (
    "from aiter_flydsl_prebuild.startup import at_startup; at_startup()\n"
    "from importlib.util import find_spec; find_spec('flydsl')\n"
)
SAY = "import os; print(os.environ.get('FLYDSL_RUNTIME_RUN_ONLY'), os.environ.get('FLYDSL_RUNTIME_CACHE_DIR'))"


def lines(environ: dict[str, str], script: str = STARTUP + SAY) -> list[str]:
    run = run_python(["-c", script], environ)
    assert run.returncode == 0, run.stderr
    return (run.stdout + run.stderr).splitlines()


def test_strict_forbids_compiling_in_every_process(environ: dict[str, str]) -> None:
    environ["AITER_FLYDSL_PREBUILD"] = "strict"
    assert [lines(environ) for _ in range(3)] == [["1 None"]] * 3


def test_a_folder_that_aiter_bundles_is_avoided_in_every_process(environ: dict[str, str], tmp_path: Path) -> None:
    bundled = tmp_path / "site" / "aiter" / "jit" / "flydsl_cache" / "gemm_01"
    bundled.mkdir(parents=True)
    (bundled / "23.pkl").write_bytes(b"prebuilt")
    environ["PYTHONPATH"] = str(tmp_path / "site")
    cache = tmp_path / "home" / ".flydsl" / "cache"
    assert [lines(environ) for _ in range(3)] == [[f"None {cache}"]] * 3
    (cache / "gemm_01" / "23.pkl").unlink()
    (bundled / "45.pkl").write_bytes(b"another")
    lines(environ)
    assert sorted(path.name for path in (cache / "gemm_01").iterdir()) == ["23.pkl", "45.pkl"]


def test_what_a_start_with_all_in_place_still_notices(environ: dict[str, str], tmp_path: Path) -> None:
    seeded = tmp_path / "home" / ".flydsl" / "cache"
    lines(environ)
    lost = next(seeded.rglob("*.pkl"))
    lost.unlink()
    lines(environ)
    assert lost.exists()
    (said,) = lines({**environ, "FLYDSL_RUNTIME_ENABLE_CACHE": "0"}, STARTUP)
    assert "turns FlyDSL's cache off" in said
    seeded.chmod(0o777)
    (said,) = lines(environ, STARTUP)
    assert "can be written to by others" in said


def test_a_start_with_all_in_place_loads_next_to_nothing(environ: dict[str, str]) -> None:
    script = (
        "import sys; before = set(sys.modules); import aiter_flydsl_prebuild as p; report = p.seed()\n"
        "print(report.kernels, report.written, *sorted(m for m in set(sys.modules) - before if '.' not in m))"
    )
    run_python(["-I", "-c", script], environ)
    run = run_python(["-I", "-c", script], environ)
    assert run.stdout == "3 0 aiter_flydsl_prebuild\n"


def test_a_working_folder_that_was_deleted(environ: dict[str, str], tmp_path: Path) -> None:
    script = f"import os; os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})\n"
    script += f"os.rmdir({str(tmp_path / 'gone')!r}); import aiter_flydsl_prebuild as p; print(p.seed().problems)"
    # The backports package itself can stumble over the empty entry of sys.path; then that is what is said.
    assert "cannot write" not in "".join(lines(environ, script))


def test_a_pipe_and_a_device_are_no_packs(environ: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    folder.mkdir()
    os.mkfifo(folder / "pipe.fkpack")
    (folder / "zero.fkpack").symlink_to("/dev/zero")
    report = seed(environ={**environ, "AITER_FLYDSL_PREBUILD_PACKS": str(folder)})
    assert report.problems == [f"{name}: not a regular file" for name in (folder / "pipe.fkpack", "/dev/zero")]


def test_a_kernel_without_a_key_for_this_python(environ: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    """One kernel of a merged pack was built for another CPython alone."""
    install = install_here()
    kernels = [make_compiled(f"k{i}", f"module {{ {i} }}", path=f"gemm_01/{i}.pkl") for i in range(2)]
    flydsl = flydsl_here(generation=flydsl_cache.CALL_KEY, identities={install.abi: [install.identity]})
    pack = Pack(str(make_pack(tmp_path / "b.fkpack", kernels, flydsl)))
    (entry,) = pack.kernels[1].entries
    abroad = pack.kernels[1]._replace(entries=(entry._replace(paths={"cp27": "gemm_02/1.pkl"}),))
    pack.kernels = (pack.kernels[0], abroad)
    fit = fitting.fit(pack, ["gfx950"], install, flydsl_cache.NO_BITCODE)
    assert fit.kernels == 1
    assert fit.reasons == [
        f"1 kernel has keys only for cp27, none for {install.abi}: k1 (N=128, K=256, scales 32x32, mxscale_bmm)"
    ]


def test_a_bundled_folder_that_cannot_be_read(environ: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can read everything")
    bundled = tmp_path / "site" / "aiter" / "jit" / "flydsl_cache"
    bundled.mkdir(parents=True)
    bundled.chmod(0)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setenv("HOME", environ["HOME"])
    assert seed(environ=environ).kernels == 3


def test_a_pack_that_was_made_wrong_is_taken_back(environ: dict[str, str], tmp_path: Path) -> None:
    """Its outer hash is right, its last payload is no text."""
    pack = Pack(environ["AITER_FLYDSL_PREBUILD_PACKS"])
    payloads = b"".join(pack.raw_payloads())
    wrong = forge(tmp_path / "wrong.fkpack", pack.manifest, payloads[:-1] + b"\xff")
    report = seed(environ={**environ, "AITER_FLYDSL_PREBUILD_PACKS": str(wrong)}, cache_dir=str(tmp_path / "cache"))
    assert "payload 2 is not text" in report.problems[0]
    assert not list((tmp_path / "cache").rglob("*.pkl"))
