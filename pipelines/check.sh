#!/usr/bin/env bash
# Everything that is asked of a wheel before it is published: the proof, the gates, its metadata, and what changed.
#
#   bash pipelines/check.sh WHEEL [LAST_WHEEL]
#
# MAX_SIZE, MAX_SPILLS and COVERAGE are the gates (default: 90MB, PyPI's limit being 100; none spills; none asked for). REPORT names a
# folder for the report. Run it in an environment with the extras build and report, twine, FlyDSL, torch and the kernels' source.
set -euo pipefail
wheel=${1:?a wheel}
last=${2:-}
report=${REPORT:-report}
gates=(--max-size "${MAX_SIZE:-90MB}" --max-spills "${MAX_SPILLS:-0}")
[ -z "${COVERAGE:-}" ] || gates+=(--require-coverage "$COVERAGE")
aiter-flydsl-prebuild verify "$wheel"
aiter-flydsl-prebuild check "$wheel" "${gates[@]}"
python -m twine check --strict "$wheel"
aiter-flydsl-prebuild report "$wheel" --out "$report"
[ -z "$last" ] || aiter-flydsl-prebuild diff "$last" "$wheel" | tee "$report/changes.txt"
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$report/summary.md" >> "$GITHUB_STEP_SUMMARY"
