#!/usr/bin/env bash
# Runs steps of the gate round after round, to find tests that fail by chance: half of the rounds
# beside two busy loops per CPU. A failure does not end the search. At the end the script prints the
# failed tests, each with the number of its rounds; the logs are in .cache/flake/.
#
#   scripts/flake.sh ROUNDS STEP...
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=$1
shift
rm -rf .cache/flake
mkdir -p .cache/flake

loops=()
idle() {
	[ ${#loops[@]} = 0 ] || kill "${loops[@]}"
	loops=()
}
trap idle EXIT

for round in $(seq "$rounds"); do
	if [ $((round * 2)) -gt "$rounds" ] && [ ${#loops[@]} = 0 ]; then
		for _ in $(seq $((2 * $(nproc)))); do
			while :; do :; done &
			loops+=($!)
		done
	fi
	for step in "$@"; do
		start=$SECONDS
		verdict=passed
		GOFLAGS="${GOFLAGS:-} -count=1" make "$step" >".cache/flake/$round-$step.log" 2>&1 || verdict=FAILED
		printf 'round %d, %d busy loops: %s %s in %d s\n' "$round" "${#loops[@]}" "$step" "$verdict" $((SECONDS - start))
	done
done
idle

failed=$(awk '
	/^--- FAIL: / { test[++n] = $3 }
	/^(ok  |\?   )\t/ { n = 0 }
	/^FAIL\t/ { if (!n) test[++n] = "(no test)"; for (i = 1; i <= n; i++) print $2 "." test[i]; n = 0 }
' .cache/flake/*.log | sort | uniq -c | sort -rn)
if [ -n "$failed" ]; then
	printf '\nrounds  test\n%s\n' "$failed"
	exit 1
fi
if grep -l '^make.*\*\*\*' .cache/flake/*.log; then
	echo "flake: these steps failed without a test" >&2
	exit 1
fi
printf '\n%d rounds without a failure\n' "$rounds"
