#!/usr/bin/env bash
# Everything that is asked of a wheel before it is published: the proof, the gates, its metadata, and what changed.
#
#   bash pipelines/check.sh WHEEL [LAST_WHEEL]
#
# MAX_SIZE, MAX_SPILLS and COVERAGE are the gates. By default the wheel may have 90MB, PyPI's limit being 100, and neither spills nor
# coverage are asked about: of AITER's per-token kernels some spill, and its per-token tables leave token counts to its CK library.
# REPORT names a folder for the report, TWINE_OPTIONS replaces --strict in the check of the metadata. Run it in an environment with the
# extras build and report, twine, FlyDSL, torch and the kernels' source, or what that imports where it is in the wheel itself.
set -euo pipefail
wheel=${1:?a wheel}
last=${2:-}
report=${REPORT:-report}
gates=(--max-size "${MAX_SIZE:-90MB}")
[ -z "${MAX_SPILLS:-}" ] || gates+=(--max-spills "$MAX_SPILLS")
[ -z "${COVERAGE:-}" ] || gates+=(--require-coverage "$COVERAGE")
aiter-flydsl-prebuild verify "$wheel"
aiter-flydsl-prebuild check "$wheel" "${gates[@]}"
read -ra twine <<< "${TWINE_OPTIONS---strict}"
python -m twine check "${twine[@]}" "$wheel"
aiter-flydsl-prebuild report "$wheel" --out "$report"
[ -z "$last" ] || aiter-flydsl-prebuild diff "$last" "$wheel" | tee "$report/changes.txt"
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$report/summary.md" >> "$GITHUB_STEP_SUMMARY"
