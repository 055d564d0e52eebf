#!/usr/bin/env bash
# Runs the checks and the tests in an environment of their own. Needs Python 3.10+ with venv, and PyPI.
#
#   bash test.sh                       all, with coverage
#   bash test.sh -m "not slow"         what takes less than two seconds
#   bash test.sh [PYTEST ARGUMENTS]
#
# With AITER_SOURCE (an AITER checkout) a second environment has the FlyDSL that this AITER pins and all that it imports: AITER_PYTHON,
# which may name the interpreter of another one. TINYGRAD_SOURCE (a tinygrad checkout, for the emulator) and AITER_TABLES (a folder with
# AITER's tuned tables) switch on the tests that need them.
set -euo pipefail
[ -z "${AITER_SOURCE:-}" ] || { AITER_SOURCE=$(cd "$AITER_SOURCE" && pwd); export AITER_SOURCE; }
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
if [ -n "${AITER_SOURCE:-}" ] && [ -z "${AITER_PYTHON:-}" ]; then
    AITER_PYTHON=$(cd "$venv" && pwd)-aiter/bin/python
    export AITER_PYTHON
    [ -x "$AITER_PYTHON" ] || "$python" -m venv "$(cd "$venv" && pwd)-aiter"
    needs=$(PYTHONPATH=$AITER_SOURCE "$venv/bin/aiter-flydsl-prebuild" doctor --source aiter --requirements)
    # torch as it is: the newest need not be the one that the tests are for.
    read -ra needs <<< "$(grep -v '^torch$' <<< "$needs" | tr '\n' ' ')"
    "$AITER_PYTHON" -m pip install --quiet --disable-pip-version-check 'torch==2.13.0' "${needs[@]}" -e '.[build,cross]'
fi
"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy"
# Coverage has its floor in pyproject.toml, which only the whole suite reaches.
[ $# -gt 0 ] || set -- --cov --cov-report=term
# One process for each core; the tests of a file stay together, since they share what they built. Files in their order: those of
# seconds come last, so that no process ends long before the other.
exec "$venv/bin/python" -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder "$@"
