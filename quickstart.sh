#!/usr/bin/env bash
# Builds a wheel with precompiled gfx950 kernels, installs it in a clean environment, and proves that a server started there
# compiles nothing, while the same server without the wheel compiles. Needs Python 3.10+ with venv, and PyPI.
#
#   bash quickstart.sh [FOLDER]      everything lands in FOLDER (default: .quickstart here)
#
# PYTHON names another interpreter, TOKENS another range than 1..8192, FLYDSL another version than the newest on PyPI.
set -euo pipefail
cd "$(dirname "$0")"
work=${1:-.quickstart}
python=${PYTHON:-python3}
torch='torch==2.13.0'
flydsl="flydsl${FLYDSL:+==$FLYDSL}"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "quickstart: Python 3.10 or newer is needed, $python is older" >&2; exit 2; }
"$python" -c 'import venv, ensurepip' 2>/dev/null || { echo "quickstart: $python has no venv; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }
mkdir -p "$work"
work=$(cd "$work" && pwd)

say() { printf '\n== %s\n' "$*"; }
# A virtual environment; a torch that this Python already has is taken as it is.
environment() {
    if "$python" -c 'import torch' 2>/dev/null; then
        "$python" -m venv --clear --system-site-packages "$1"
    else
        "$python" -m venv --clear "$1"
        "$1/bin/python" -m pip install --quiet --disable-pip-version-check "$torch"
    fi
}

say "1/4 a build environment: FlyDSL, torch and this project"
environment "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check "$flydsl" '.[build,cross]'

say "2/4 the wheel: plan, compile, pack, prove"
"$work/build/bin/aiter-flydsl-prebuild" build --source reference --arch gfx950 --tokens "${TOKENS:-1..8192}" \
    --out "$work/dist" --json > "$work/build.json"
wheel=$("$work/build/bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["wheel"])' "$work/build.json")
echo "$wheel"

say "3/4 a clean environment with that wheel: what does a server compile?"
environment "$work/serve"
"$work/serve/bin/python" -m pip install --quiet --disable-pip-version-check '.[build]' "$wheel"
"$work/serve/bin/aiter-flydsl-prebuild" verify --json > "$work/warm.json"

say "4/4 the same server without the wheel's kernels"
"$work/build/bin/aiter-flydsl-prebuild" verify "$wheel" --cold --json > "$work/cold.json"

"$work/build/bin/python" - "$work" <<'PYTHON'
import json, sys
from pathlib import Path
from rich.console import Console
from rich.table import Table

read = {name: json.loads(Path(sys.argv[1], f"{name}.json").read_text()) for name in ("build", "warm", "cold")}
build, warm, cold = read["build"], read["warm"], read["cold"]
table = Table(title="reference kernels for gfx950", title_style="bold", show_header=False)
table.add_column()
table.add_column(justify="right")
for what, value in (
    ("shapes (N, K)", build["shapes"]),
    ("kernels", build["kernels"]),
    ("seconds to build and prove them", build["seconds"]),
    ("bytes per kernel in the wheel", build["bytes_per_kernel"]),
    ("token counts dispatched, all shapes", warm["dispatches"]),
    ("kernels compiled by a server with the wheel", warm["compiled"]),
    ("kernels compiled by a server without it", cold["compiled"]),
):
    table.add_row(what, str(value))
print()
Console().print(table)
sys.exit(not (warm["ok"] and cold["ok"] and warm["compiled"] == 0 < cold["compiled"]))
PYTHON
