#!/usr/bin/env bash
# Says what a run left on this machine.
#
#   scripts/leftovers.sh snapshot >FILE    before
#   scripts/leftovers.sh check FILE        after: prints what is new, fails if anything is
#
# It looks at all mounts, cgroups below the names fre*, named network namespaces,
# processes started from this checkout or named fre*, and fre* files in /tmp.
set -euo pipefail
cd "$(dirname "$0")/.."

snapshot() {
	{
		awk '{ print "mount", $5 }' /proc/self/mountinfo
		find /sys/fs/cgroup -type d -name 'fre*' -printf 'cgroup %p\n' 2>/dev/null || true
		find /run/netns -mindepth 1 -maxdepth 1 -printf 'netns %p\n' 2>/dev/null || true
		find "${TMPDIR:-/tmp}" -mindepth 1 -maxdepth 1 -name 'fre*' -printf 'file %p\n' 2>/dev/null || true
		local dir exe comm
		for dir in /proc/[0-9]*; do
			exe=$(readlink "$dir/exe" 2>/dev/null) || continue
			comm=$(cat "$dir/comm" 2>/dev/null) || continue
			case $comm:$exe in
			fre* | *:"$PWD"/bin/* | *:"$PWD"/sandbox/*) echo "process ${dir#/proc/} $comm $exe" ;;
			esac
		done
	} | sort
}

case ${1:-} in
snapshot) snapshot ;;
check)
	# What is being undone gets a moment: a cgroup goes when its last process is reaped.
	for _ in $(seq 20); do
		left=$(comm -13 "$2" <(snapshot))
		[ -n "$left" ] || exit 0
		sleep 0.25
	done
	echo "left behind:" >&2
	echo "$left" >&2
	exit 1
	;;
*)
	echo "usage: $0 snapshot | check FILE" >&2
	exit 2
	;;
esac
