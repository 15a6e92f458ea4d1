#!/usr/bin/env bash
# Runs make targets as steps of the gate, one after the other; the steps after "-j N" run N at a
# time, started in order. A step's output is printed at its end; meanwhile the output grows in
# .cache/steps/STEP.log. After a failed step no further step starts. At the end the script prints
# the failed tests of each failed step, with the last 40 lines of each test and the command for
# another run, then the seconds of each step.
#
#   scripts/steps.sh STEP... [-j N STEP...]
set -euo pipefail
set -m # each step leads a process group, so an interrupt reaches the whole step
cd "$(dirname "$0")/.."

mkdir -p .cache/steps
declare -A step_of start_of # by the pid of a running step
times=()
failed=()

interrupt() {
	trap - "$1"
	for pid in "${!step_of[@]}"; do kill -s "$1" -- "-$pid" 2>/dev/null || true; done
	wait
	kill -s "$1" $$
}
trap 'interrupt INT' INT
trap 'interrupt TERM' TERM

start() {
	printf '\n=== %s: begins\n' "$1"
	make "$1" >".cache/steps/$1.log" 2>&1 &
	step_of[$!]=$1
	start_of[$!]=$SECONDS
}

# await waits for the end of a step, and prints its output.
await() {
	local pid status=0 step seconds
	wait -n -p pid "${!step_of[@]}" || status=$?
	step=${step_of[$pid]}
	seconds=$((SECONDS - start_of[$pid]))
	unset "step_of[$pid]" "start_of[$pid]"
	printf '\n=== %s\n' "$step"
	cat ".cache/steps/$step.log"
	if [ "$status" != 0 ]; then
		failed+=("$step")
		step+=" FAILED"
	fi
	times+=("$seconds" "$step")
}

most=1
while [ $# -gt 0 ] && [ ${#failed[@]} = 0 ]; do
	if [ "$1" = -j ]; then
		most=$2
		shift 2
		continue
	fi
	start "$1"
	shift
	while [ ${#step_of[@]} -ge "$most" ]; do await; done
done
while [ ${#step_of[@]} -gt 0 ]; do await; done

for step in "${failed[@]}"; do
	printf '\n=== %s failed\n' "$step"
	awk -v step="$step" -f scripts/failed.awk ".cache/steps/$step.log"
done
printf '\n'
printf '%8s  %s\n' seconds step "${times[@]}"
[ ${#failed[@]} = 0 ]
