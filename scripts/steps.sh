#!/usr/bin/env bash
# Runs make targets one after the other, stops at the first that fails, and
# ends with the time each took.
set -euo pipefail
cd "$(dirname "$0")/.."

times=()
report() {
	printf '%8s  %s\n' seconds step "${times[@]}"
}

for step in "$@"; do
	printf '\n=== %s\n' "$step"
	start=$SECONDS
	if ! make "$step"; then
		times+=("$((SECONDS - start))" "$step FAILED")
		echo
		report
		exit 1
	fi
	times+=("$((SECONDS - start))" "$step")
done
echo
report
