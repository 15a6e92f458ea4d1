#!/usr/bin/env bash
# Builds, deploys and calls functions of templates/ on an engine of its own, prints the answers and
# the start times, and cleans up.
#
#   scripts/demo.sh [--keep] [TEMPLATE]...
#
# Without names the script takes some templates with short builds. Run it as root after `make
# build`; `make demo` does both. --keep keeps the state directory, so that the engine can start on
# it again.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=
names=()
for arg in "$@"; do
	case $arg in
	--keep) keep=1 ;;
	-* | */*)
		echo "usage: scripts/demo.sh [--keep] [TEMPLATE]..." >&2
		exit 2
		;;
	*) names+=("$arg") ;;
	esac
done
[ ${#names[@]} -gt 0 ] || names=(native-shell node-hello node-package python-hello python-lxml)

die() {
	echo "demo: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || die "sandboxes are made by root: run it as root, or with sudo"
[ -x bin/fre ] || die "no bin/fre: run make build first"
fre=$PWD/bin/fre

# The descendants of the engine, as "pid start-time" of each: no later process has the same pair.
# descendants PID
descendants() {
	local child
	{ cat /proc/"$1"/task/*/children 2>/dev/null || true; } | tr ' ' '\n' |
		while read -r child; do
			identity "$child"
			descendants "$child"
		done
}

# identity PID prints nothing for a process that has ended.
identity() {
	# The command's name, in brackets, may contain spaces.
	{ sed 's/.*) //' "/proc/$1/stat" 2>/dev/null || true; } |
		awk -v pid="$1" '$1 != "Z" { print pid, $20 }'
}

dir=$(mktemp -d /var/tmp/fre-demo.XXXXXX) # a disk, where /tmp may be memory
engine=
before=$(scripts/leftovers.sh kernel)

# Runs on every exit: stops the engine and fails on leftovers.
finish() {
	local status=$? left='' children='' line deadline
	trap '' INT TERM HUP
	trap - EXIT
	if [ -n "$engine" ]; then
		children=$(descendants "$engine")
		echo
		echo "Stopping the engine."
		kill -TERM "$engine" 2>/dev/null || true
		deadline=$((SECONDS + 30))
		while [ -n "$(identity "$engine")" ]; do
			if [ $SECONDS -ge $deadline ]; then
				echo "demo: the engine did not stop within 30 seconds; killing it" >&2
				kill -KILL "$engine" 2>/dev/null || true
				status=1
				deadline=$((SECONDS + 10))
			fi
			sleep 0.05
		done
		if ! wait "$engine" 2>/dev/null; then
			echo "demo: the engine ended with an error; its log:" >&2
			tail -n 20 "$dir/engine.log" >&2
			status=1
		fi
	fi
	while read -r line; do
		if [ -n "$line" ] && [ "$(identity "${line% *}")" = "$line" ]; then
			left+="process ${line% *} $(tr '\0' ' ' <"/proc/${line% *}/cmdline")"$'\n'
		fi
	done <<<"$children"
	left+=$(comm -13 <(echo "$before") <(scripts/leftovers.sh kernel))
	if [ -n "$left" ]; then
		printf 'demo: left behind:\n%s\n' "$left" >&2
		status=1
	elif [ -n "$engine" ]; then
		echo "Nothing is left: no mounts, cgroups, network namespaces or processes."
	fi
	if [ -n "$keep" ]; then
		echo "The state is kept: bin/fre serve --state $dir/state --socket $dir/fre.sock"
	elif ! rm -rf "$dir"; then
		status=1
	fi
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The engine writes lock files beside the templates, so it gets copies.
mkdir "$dir/templates"
for name in "${names[@]}"; do
	[ -d "templates/$name" ] || die "there is no templates/$name"
	cp -R "templates/$name" "$dir/templates/"
done
go build -o "$dir/call" ./scripts/call

# free_port prints an unused port.
free_port() {
	local port
	for port in $(shuf -i 20000-30000 -n 50); do
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "$port"
			return
		fi
	done
	die "no free port between 20000 and 30000"
}
addr=127.0.0.1:$(free_port)
export FRE_SOCKET=$dir/fre.sock

echo "Starting the engine: fre serve --state $dir/state --socket $FRE_SOCKET --listen $addr"
# A session of its own: Ctrl-C reaches only this script, which stops the engine itself.
setsid "$fre" serve --state "$dir/state" --socket "$FRE_SOCKET" --listen "$addr" 2>"$dir/engine.log" &
engine=$!
deadline=$((SECONDS + 30))
until curl --silent --fail --max-time 2 --noproxy '*' --output /dev/null "http://$addr/healthz"; do
	if [ -z "$(identity "$engine")" ]; then
		cat "$dir/engine.log" >&2
		die "the engine ended at once"
	fi
	if [ $SECONDS -ge $deadline ]; then
		cat "$dir/engine.log" >&2
		die "the engine did not answer within 30 seconds"
	fi
	sleep 0.05
done

for template in "$dir"/templates/*/; do
	echo
	echo "$ fre deploy templates/$(basename "$template")"
	"$fre" deploy "$template"
done

"$dir/call" "$addr" "$dir"/templates/*/
echo
"$fre" functions
