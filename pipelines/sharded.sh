#!/usr/bin/env bash
# Builds one wheel in N parts, one after the other on this machine, and joins and proves it: what a CI matrix does on N machines.
#
#   bash pipelines/sharded.sh N [BUILD ARGUMENTS]        the wheel lands in dist/, or in the folder that OUT names
#
# Run it in an environment with this project's extras build and cross, FlyDSL, torch and what the source needs: see install.sh.
set -euo pipefail
parts=${1:?how many parts}
shift
out=${OUT:-dist}
mkdir -p "$out/parts"
rm -f "$out"/parts/*.fkpack
for part in $(seq "$parts"); do
    aiter-flydsl-prebuild build --shard "$part/$parts" --out "$out/parts" "$@"
done
aiter-flydsl-prebuild merge "$out"/parts/*.fkpack --out "$out"
