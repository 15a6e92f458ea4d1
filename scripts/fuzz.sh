#!/usr/bin/env bash
# Runs every Fuzz target of the module for a while (go test takes one at a time).
#
#   scripts/fuzz.sh [DURATION, 5s]
set -euo pipefail
cd "$(dirname "$0")/.."

duration=${1:-5s}
found=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# fuzz TARGET PACKAGE: go test -fuzz now and then fails with nothing but "context
# deadline exceeded" when its time is over, and has found no input: that is no
# result, and it is run once more. By default it would spend a minute on making
# the first new input smaller.
fuzz() {
	for try in 1 2; do
		local status=0
		go test -run '^$' -fuzz "^$1\$" -fuzzminimizetime 10x -fuzztime "$duration" "$2" >"$log" 2>&1 || status=$?
		if [ $status != 0 ] && [ $try = 1 ] && grep -q '^    context deadline exceeded$' "$log" && ! grep -q 'Failing input' "$log"; then
			echo "    go test did not end in time: again"
			continue
		fi
		cat "$log"
		return $status
	done
}

while IFS=: read -r file target; do
	found=$((found + 1))
	echo "--- $target in ${file%/*}"
	fuzz "$target" "./${file%/*}"
done < <(git ls-files '*_test.go' | xargs -r grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
echo "$found fuzz targets"
