"""docs/aiter-maintainers.md, line by line, on the checkout of AITER that AITER_SOURCE names; pip needs its index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aiter_checkout
from processes import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.skipif("AITER_SOURCE" not in os.environ, reason="AITER_SOURCE does not name an AITER checkout")
def test_aiters_maintainers_get_their_wheel(tmp_path: Path) -> None:
    aiter_checkout.git_checkout(tmp_path / "aiter", changed=True)
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "dist")
    shutil.copytree(ROOT, tmp_path / "project", ignore=ignored)
    page = aiter_checkout.PAGE.read_text(encoding="utf-8")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    base = Path(getattr(sys, "_base_executable", sys.executable)).parent
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "LANG"))}
    variables = {
        **kept,
        "HOME": str(tmp_path),
        "PATH": f"{base}{os.pathsep}{os.defpath}",
        "PREBUILD": str(tmp_path / "project"),
    }
    command = ["bash", "--noprofile", "--norc", "-exo", "pipefail", "-c", lines]
    done = subprocess.run(command, cwd=tmp_path / "aiter", env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n2 distinct kernels for tokens 1..32768" in done.stdout
    assert "proof holds: 32768 dispatches" in done.stdout
    assert "2 fit, 2 of 2 files in place" in done.stdout
