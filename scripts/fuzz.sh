#!/usr/bin/env bash
# Runs every Fuzz target of the module for a while (go test takes one at a time).
#
#   scripts/fuzz.sh [DURATION, 5s]
set -euo pipefail
cd "$(dirname "$0")/.."

duration=${1:-5s}
found=0
while IFS=: read -r file target; do
	found=$((found + 1))
	echo "--- $target in ${file%/*}"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" "./${file%/*}"
done < <(git ls-files '*_test.go' | xargs -r grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
echo "$found fuzz targets"
