#!/usr/bin/env bash
# Installs what building kernels takes: torch, this project with EXTRAS, and what the source of the kernels needs, which for AITER
# is the FlyDSL that it pins and all that its modules import. Ends with status 1 where something is still missing.
#
#   bash pipelines/install.sh EXTRAS          as in build,cross
#
# SOURCE names the source (default: aiter), which must be importable: PYTHONPATH names AITER's checkout. PREBUILD says where this
# project comes from, git+https://…, or file:///… for a checkout or a wheel (default: PyPI). TORCH is what pip gets for torch, FLYDSL
# a version of FlyDSL in place of the one that the source pins (default: that, else the newest).
set -euo pipefail
extras=${1:?extras, as in build,cross}
source=${SOURCE:-aiter}
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
pip install "${TORCH:-torch==2.13.0}" "aiter-flydsl-prebuild[$extras]${PREBUILD:+ @ $PREBUILD}"
aiter-flydsl-prebuild doctor --source "$source" --requirements > "$requirements"
[ -z "${FLYDSL:-}" ] || sed -i "s/^flydsl.*/flydsl==$FLYDSL/" "$requirements"
pip install -r "$requirements"
aiter-flydsl-prebuild doctor --source "$source"
