#!/usr/bin/env bash
# Filters directories of Go packages from standard input: prints the packages whose production code
# starts goroutines or takes locks, for the race detector. With -v the script prints the remaining
# packages.
set -euo pipefail

invert=${1:-}
while read -r dir; do
	files=$(find "$dir" -maxdepth 1 -name '*.go' ! -name '*_test.go')
	concurrent=
	# shellcheck disable=SC2086 # one word for each file
	if [ -n "$files" ] && grep -qE '^[[:space:]]*go (func|[a-z])|\.Go\(|AfterFunc\(|\b(sync|atomic)\.[A-Z]' $files; then concurrent=1; fi
	if [ "${concurrent:-0}" != "$([ "$invert" = -v ] && echo 1 || echo 0)" ]; then echo "$dir"; fi
done
