#!/usr/bin/env bash
# Prints the leftovers of a run on this machine.
#
#   scripts/leftovers.sh kernel            prints FRE's objects in the kernel: the
#                                          first five of the list below
#   scripts/leftovers.sh snapshot >FILE    before a run: prints the whole list
#   scripts/leftovers.sh check FILE        after a run: prints new objects, fails if any
#
# The list: mounts, cgroups named fre*, links named fre-*, named network
# namespaces, loop devices; files fre* in /tmp and /var/tmp, processes named fre, fre-*
# or started from this checkout.
set -euo pipefail
cd "$(dirname "$0")/.."

kernel() {
	awk '{ print "mount", $5 }' /proc/self/mountinfo
	awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts |
		while read -r hierarchy; do
			find "$hierarchy" -type d -name 'fre*' -printf 'cgroup %p\n' 2>/dev/null || true
		done
	find /sys/class/net -mindepth 1 -maxdepth 1 -name 'fre-*' -printf 'link %p\n' 2>/dev/null || true
	find /run/netns -mindepth 1 -maxdepth 1 -printf 'network namespace %p\n' 2>/dev/null || true
	local file
	for file in /sys/block/loop*/loop/backing_file; do
		if [ -r "$file" ]; then echo "loop device of $(cat "$file")"; fi
	done
}

snapshot() {
	kernel
	find "${TMPDIR:-/tmp}" /var/tmp -mindepth 1 -maxdepth 1 -name 'fre*' -printf 'file %p\n' 2>/dev/null || true
	local dir exe comm
	for dir in /proc/[0-9]*; do
		exe=$(readlink "$dir/exe" 2>/dev/null) || continue
		comm=$(cat "$dir/comm" 2>/dev/null) || continue
		case $comm:$exe in
		fre:* | fre-*:* | *:"$PWD"/bin/* | *:"$PWD"/sandbox/*) echo "process ${dir#/proc/} $comm $exe" ;;
		esac
	done
}

case ${1:-} in
kernel) kernel | sort ;;
snapshot) snapshot | sort ;;
check)
	# Clean-up in progress gets a moment: a cgroup disappears when its last process is reaped.
	for _ in $(seq 20); do
		left=$(comm -13 "$2" <(snapshot | sort))
		[ -n "$left" ] || exit 0
		sleep 0.25
	done
	echo "left behind:" >&2
	echo "$left" >&2
	exit 1
	;;
*)
	echo "usage: $0 kernel | snapshot | check FILE" >&2
	exit 2
	;;
esac
