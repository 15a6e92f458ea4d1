#!/usr/bin/env bash
# Runs make targets one after the other and stops at the first that fails: of that one it
# prints each failed test with its last 40 lines, and the command that runs them again. At
# the end stand the seconds of each step. The steps' output is kept in .cache/steps/.
set -euo pipefail
cd "$(dirname "$0")/.."

times=()
report() {
	printf '%8s  %s\n' seconds step "${times[@]}"
}

mkdir -p .cache/steps
for step in "$@"; do
	printf '\n=== %s\n' "$step"
	start=$SECONDS
	if ! make "$step" 2>&1 | tee ".cache/steps/$step.log"; then
		times+=("$((SECONDS - start))" "$step FAILED")
		printf '\n=== %s failed\n' "$step"
		awk -v step="$step" -f scripts/failed.awk ".cache/steps/$step.log"
		echo
		report
		exit 1
	fi
	times+=("$((SECONDS - start))" "$step")
done
echo
report
