"""Processes of a server whose packages, packs and cache are folders of a test's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from processes import prebuild, run_python

# What a server does when it starts; ``quick`` says that the marker was enough.
START = (
    "import json, aiter_flydsl_prebuild as p\n"
    "from aiter_flydsl_prebuild.errors import CheckError\n"
    "import sys; before = set(sys.modules)\n"
    "try: report = p.seed()\n"
    "except CheckError as error: print(json.dumps({'error': str(error)}))\n"
    "else: print(json.dumps({**report.to_json(), 'quick': 'aiter_flydsl_prebuild.seeding' not in sys.modules}))\n"
)


class Server:
    """One server: its environment, the folder of its packages, its cache and its ROCm."""

    def __init__(self, root: Path, pack: Path) -> None:
        self.site = root / "site"
        self.cache = root / "cache"
        self.rocm = root / "rocm"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FLYDSL_", "AITER_"))},
            "PYTHONPATH": f"{self.site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
            "AITER_FLYDSL_PREBUILD_PACKS": str(pack),
            "FLYDSL_RUNTIME_CACHE_DIR": str(self.cache),
            "ROCM_PATH": str(self.rocm),
        }

    def start(self, **more: str) -> dict[str, Any]:
        """What seeding reports, in a process of its own; ``error`` where strict mode stops it."""
        run = run_python(["-c", START], {**self.environ, **more})
        assert run.returncode == 0, run.stderr
        assert "nobody imports this" not in run.stderr
        return json.loads(run.stdout)  # type: ignore[no-any-return]

    def strict(self) -> dict[str, Any]:
        """:meth:`start` in strict mode."""
        return self.start(AITER_FLYDSL_PREBUILD="strict")

    def status(self) -> dict[str, Any]:
        """``status --json``."""
        run = prebuild("status", "--json", environment=self.environ)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)  # type: ignore[no-any-return]


def flatten(folder: Path) -> None:
    """What image builders do to the times of files."""
    for path in sorted(folder.rglob("*")):
        os.utime(path, (1, 1), follow_symlinks=False)
