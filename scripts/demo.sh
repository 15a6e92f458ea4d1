#!/usr/bin/env bash
# Shows FRE at work: an engine on a state directory of its own, every function of
# templates/ built, deployed and called over HTTP, a table of the start times, and
# proof that nothing stays behind. Run by `make demo`, as root.
#
#   FRE_DEMO_STATE=DIR   keeps the state (images, locks) in DIR for the next time
set -euo pipefail
cd "$(dirname "$0")/.."

fre=$PWD/bin/fre
die() {
	echo "demo: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || die "sandboxes need root: sudo make demo"
[ -x "$fre" ] || die "no bin/fre: make build"

work=$(mktemp -d)
scripts/leftovers.sh snapshot >"$work/before"
state=${FRE_DEMO_STATE:-$work/state}
log=$work/engine.log
engine=

stop_engine() {
	[ -n "$engine" ] || return 0
	kill -TERM "$engine" 2>/dev/null || true
	wait "$engine" || true
	engine=
}
finish() {
	local status=$?
	stop_engine
	if [ "$status" != 0 ] && [ -s "$log" ]; then
		echo "demo: the engine's last words:" >&2
		tail -n 30 "$log" >&2
	fi
	rm -rf "$work"
	exit "$status"
}
trap finish EXIT

# A port nobody listens on.
for port in 8080 18080 28080 38080; do
	if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
done
address=127.0.0.1:$port
export FRE_SOCKET=$work/fre.sock

mkdir -p "$state"
"$fre" serve --state "$state" --socket "$FRE_SOCKET" --listen "$address" >"$log" 2>&1 &
engine=$!
until curl -fsS -o /dev/null "http://$address/healthz" 2>/dev/null; do
	kill -0 "$engine" 2>/dev/null || die "the engine did not start"
	sleep 0.1
done
echo "engine on http://$address, state in $state"

row() { printf '%-16s %6s %10s %10s  %s\n' "$@"; }
table=()
for template in templates/*/fret.yaml; do
	dir=${template%/fret.yaml}
	name=${dir#templates/}
	echo
	echo "--- fre deploy $dir"
	"$fre" deploy "$dir" --name "$name"
	url=http://$address/function/$name
	body=/dev/null
	[ ! -f "$dir/request" ] || body=$dir/request
	echo "--- curl --data-binary @$body $url"
	# The first call starts a sandbox, the second finds it warm where the template allows.
	times=()
	for call in first second; do
		status=$(curl -sS --max-time 60 -D "$work/headers" -o "$work/$call" \
			-w '%{http_code} %{time_total}' --data-binary "@$body" "$url")
		start=$(tr -d '\r' <"$work/headers" | awk -F': ' 'tolower($1) == "x-fre-start-us" { print $2 }')
		times+=("$(awk -v us="$start" -v s="${status#* }" 'BEGIN {
			if (us != "") printf "%.1f ms", us / 1000; else printf "%.1f ms*", s * 1000 }')")
		[ "${status% *}" = 200 ] || die "$name answered ${status% *}: $(head -c 400 "$work/$call")"
	done
	answer=$(head -c 200 "$work/first" | tr -s '\n\t ' ' ')
	echo "$answer"
	table+=("$name" "${status% *}" "${times[0]}" "${times[1]}" "${answer:0:60}")
done

echo
row function status first second answer
for ((i = 0; i < ${#table[@]}; i += 5)); do row "${table[@]:i:5}"; done
echo "first, second: from the request to a ready sandbox; *: to the whole answer, from a sandbox already warm"

stop_engine
scripts/leftovers.sh check "$work/before"
echo "engine stopped; no mount, cgroup, namespace or process is left"
