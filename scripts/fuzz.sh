#!/usr/bin/env bash
# Runs every Fuzz target of all modules for a while, as many at once as the machine has CPUs, each
# with a single worker.
#
#   scripts/fuzz.sh [DURATION, 3s]
set -euo pipefail
cd "$(dirname "$0")/.."

duration=${1:-3s}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache=$(go env GOCACHE)/fuzz/$(awk '$1 == "module" { print $2 }' go.mod)
export duration work cache

# fuzz DIRECTORY:TARGET runs a target. Now and then a run fails at the end of its time with only
# "context deadline exceeded" and no input. Such a run has no result, so the script runs it again.
# -fuzzminimizetime is short, because Go spends a minute on the first new input by default.
fuzz() {
	local dir=${1%:*} target=${1#*:} status
	local log=$work/$target.${dir//\//-}.log
	for try in 1 2; do
		status=0
		(cd "$dir" && timeout 300 "$work/${dir//\//-}.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzzcachedir "$cache/$dir" \
			-test.fuzzminimizetime 10x -test.fuzztime "$duration" -test.parallel 1) >"$log" 2>&1 || status=$?
		if [ $status != 0 ] && [ $try = 1 ] && grep -q '^    context deadline exceeded$' "$log" && ! grep -q 'Failing input' "$log"; then
			continue
		fi
		break
	done
	echo "--- $target in $dir" | cat - "$log"
	return $status
}
export -f fuzz

targets=$(git ls-files '*_test.go' | xargs -r grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's|/[^/]*:func |:|')
# A single program for each package: go test -fuzz would link a program for each target.
cut -d: -f1 <<<"$targets" | sort -u | while read -r dir; do
	go test -c -fuzz . -o "$work/${dir//\//-}.test" "./$dir"
done
xargs -P "$(nproc)" -I {} bash -euo pipefail -c 'fuzz {}' <<<"$targets"
echo "$(wc -l <<<"$targets") fuzz targets"
