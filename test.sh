#!/usr/bin/env bash
# Runs the checks and the tests in an environment of their own. Needs Python 3.10+ with venv, and PyPI.
#
#   bash test.sh [PYTEST ARGUMENTS]
#
# AITER_SOURCE (an AITER checkout), TINYGRAD_SOURCE (a tinygrad checkout, for the emulator) and AITER_TABLES (a folder with
# AITER's tuned tables) switch on the tests that need them.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
venv=${TEST_VENV:-.venv-test}
if [ ! -x "$venv/bin/python" ]; then
    "$python" -c 'import venv, ensurepip' 2>/dev/null || { echo "test: $python has no venv; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }
    "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
"$venv/bin/python" -c 'import torch' 2>/dev/null || pip 'torch==2.13.0'
pip flydsl -e '.[build,cross,test]'
"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy"
exec "$venv/bin/python" -m pytest "$@"
