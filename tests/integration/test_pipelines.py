"""The pipelines that are there to be copied: their scripts run, and linters read what cannot be run here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import ROOT, prebuild

PIPELINES = ROOT / "pipelines"
# What this environment's packages install lies beside its interpreter.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

WORKFLOWS = [*sorted(PIPELINES.glob("github/*.yml")), *sorted(ROOT.glob(".github/workflows/*.yml"))]

LINTERS: dict[str, list[str | Path]] = {
    "shellcheck": [*sorted(PIPELINES.glob("*.sh")), ROOT / "test.sh", ROOT / "quickstart.sh", ROOT / ".ci" / "run"],
    "hadolint": [PIPELINES / "Dockerfile"],
    "yamllint": ["--strict", "--config-file", ROOT / ".yamllint", PIPELINES / "github", ROOT / ".github"],
    "check-jsonschema": [
        "--builtin-schema",
        "vendor.github-workflows",
        *sorted(PIPELINES.glob("github/*.yml")),
        *sorted(ROOT.glob(".github/workflows/*.yml")),
    ],
}


@pytest.mark.parametrize("linter", LINTERS)
def test_linters_have_nothing_to_say(linter: str) -> None:
    program = shutil.which(linter, path=PATH)
    if program is None:
        pytest.skip(f"{linter} is not installed")
    done = subprocess.run([program, *map(str, LINTERS[linter])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def script(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": PATH, **variables}
    command = ["bash", str(PIPELINES / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_sharded_build_and_its_check(tmp_path: Path) -> None:
    out, store, summary = tmp_path / "dist", tmp_path / "store", tmp_path / "summary.md"
    built = script("sharded.sh", "2", "--tokens", "1..1", "--store", str(store), OUT=str(out))
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("*.whl")
    whole = prebuild("build", "--tokens", "1..1", "--store", str(store), "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    assert next((tmp_path / "whole").iterdir()).read_bytes() == wheel.read_bytes()

    report = tmp_path / "report"
    checked = script(
        *("check.sh", str(wheel), str(wheel)),
        REPORT=str(report),
        COVERAGE="1..1",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (report / "changes.txt").read_text().startswith("identical")
    assert summary.read_text() == (report / "summary.md").read_text()
    refused = script("check.sh", str(wheel), REPORT=str(report), COVERAGE="1..2")
    assert refused.returncode == 1
    assert "coverage: the kernels were built for tokens 1..1, not for 2" in refused.stderr
