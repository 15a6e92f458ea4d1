#!/usr/bin/env bash
# Proves that the rules of .golangci.yml work: lints a small module of wrong and right imports and
# compares the verdicts. The module lies below directories named like layers, because depguard sees
# absolute paths.
#
#   scripts/lint-proof.sh LINTER
set -euo pipefail
cd "$(dirname "$0")/.."

linter=$(realpath "$1")
module=github.com/fre-engine/fre
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
root=$tmp/store/sandbox/cmd/image
mkdir -p "$root"
cp .golangci.yml "$root/"
printf 'module %s\n\ngo %s\n' "$module" "$(awk '$1 == "go" { print $2 }' go.mod)" >"$root/go.mod"

# FILE IMPORTS VERDICT: a bare import path belongs to the module, and the import is a package below
# the path; just: imports the path itself.
cases=$(
	cat <<'CASES'
api/a.go                     store                  refused
channel/a.go                 engine                 refused
channel/a.go                 just:function/channel/wire allowed
channel/a.go                 internal/linux         refused
httpserver/a.go              just:function/channel/rawio allowed
httpserver/a.go              just:function/channel  refused
registry/a.go                store                  refused
failure/a.go                 api                    refused
failure/a.go                 std:net/http           refused
engine/a.go                  just:failure           allowed
engine/a.go                  api                    refused
engine/live/a.go             channel                refused
engine/live/a.go             engine/container       refused
engine/container/a.go        just:engine/live       allowed
engine/container/a.go        just:engine            refused
engine/build/a.go            just:engine/live       allowed
engine/build/a.go            engine/container       refused
engine/live/a.go             just:sandbox           allowed
channel/a.go                 just:failure           refused
events/a.go                  std:net/http           refused
events/trigger/a.go          std:net/http           refused
cluster/a.go                 std:net/http           refused
buffer/a.go                  internal/linux         refused
bench/ring/a.go              internal/linux         allowed
bench/ring/a.go              buffer                 refused
internal/linux/a.go          store                  refused
internal/linux/a.go          std:unsafe             allowed
function/channel/rawio/a.go  std:unsafe             allowed
function/channel/wire/a.go   std:unsafe             refused
function/channel/wire/a.go   internal/linux         refused
function/a.go                function/channel       allowed
function/a.go                just:channel           refused
function/web/a.go            function               allowed
function/a.go                image                  refused
store/a.go                   internal/linux         allowed
store/a.go                   just:internal/reference allowed
store/a.go                   image                  refused
store/a.go                   std:unsafe             refused
template/a.go                just:internal/glob     allowed
template/a.go                just:image             refused
template/a.go                just:store             refused
image/a.go                   just:template          allowed
server/a.go                  just:template          allowed
image/a.go                   store                  allowed
image/a.go                   sandbox                refused
image/debian/a.go            sandbox                refused
runtimes/python/a.go         image                  allowed
runtimes/python/a.go         engine                 refused
runtimes/golang/a.go         just:function          allowed
runtimes/httpserver/a.go     channel                refused
runtimes/httpserver/a.go     function/adapter       refused
function/adapter/a.go        just:function/channel  allowed
function/adapter/a.go        just:function          refused
function/adapter/a.go        channel                refused
sandbox/a.go                 internal/linux         allowed
sandbox/a.go                 image                  refused
sandbox/cgroup/a.go          store                  refused
engine/a.go                  channel                allowed
engine/a.go                  gateway                refused
engine/a.go                  just:buffer            allowed
admission/a.go               store                  refused
engine/a.go                  just:admission         allowed
engine/a.go                  bench/ring             refused
engine/a.go                  internal/fretest       refused
volume/a.go                  internal/linux         allowed
volume/a.go                  store                  refused
engine/a.go                  volume                 allowed
gateway/a.go                 engine                 allowed
gateway/a.go                 store                  refused
server/a.go                  api                    allowed
server/a.go                  just:store             allowed
server/a.go                  just:buffer            allowed
server/servertest/a.go       just:sandbox           allowed
server/a.go                  just:image             allowed
server/a.go                  store                  refused
server/a.go                  image/debian           refused
server/a.go                  channel                refused
server/a.go                  adapters/docker        refused
adapters/docker/a.go         just:server            allowed
adapters/docker/a.go         server/listing         allowed
adapters/docker/a.go         channel                refused
adapters/lambda/a.go         just:gateway           allowed
engine/a.go                  adapters/docker        refused
client/a.go                  api                    allowed
client/a.go                  engine                 refused
cmd/fre/a.go                 client                 allowed
cmd/fre/b.go                 engine                 refused
cmd/fre/c.go                 bench/ring             refused
cmd/fre/e.go                 just:daemon            allowed
cmd/fre/serve.go             engine                 refused
cmd/fre/registry.go          registry               refused
daemon/a.go                  just:engine            allowed
daemon/a.go                  adapters/docker        allowed
daemon/a.go                  client                 refused
daemon/a.go                  channel                refused
engine/a.go                  daemon                 refused
server/a.go                  daemon                 refused
bench/internal/load/a.go     bench/internal/plot    allowed
bench/internal/load/a.go     engine                 refused
bench/internal/nettrace/a.go engine                 refused
bench/cmd/fre-bench/a.go     bench/internal/load    allowed
bench/cmd/fre-bench/a.go     just:client            allowed
bench/cmd/fre-bench/a.go     engine                 refused
video/ffmpeg/a.go            std:unsafe             allowed
video/ffmpeg/a.go            api                    refused
video/transcode/a.go         video/ffmpeg           allowed
video/transcode/a.go         function               refused
video/transcoder/a.go        function               allowed
video/transcoder/a.go        engine                 refused
video/playlist/a.go          video/asset            allowed
video/playlist/a.go          httpserver             refused
video/origin/a.go            httpserver             allowed
video/origin/a.go            just:client            refused
video/service/a.go           just:client            allowed
video/service/a.go           video/ffmpeg           refused
video/service/a.go           engine                 refused
video/client/a.go            video/asset            allowed
video/client/a.go            video/service          refused
bench/internal/viewers/a.go  bench/internal/load    allowed
bench/internal/viewers/a.go  video/origin           refused
video/cmd/fre-video/a.go     video/service          allowed
video/cmd/fre-video/b.go     engine                 refused
other/a.go                   internal/testdaemon        refused
bench/a.go                   internal/testdaemon        allowed
store/a_test.go              internal/fretest       allowed
store/a_test.go              video/asset            refused
test/system/a.go             bench/ring             refused
video/service/a_test.go      bench/ring             refused
bench/video/a.go             video/asset            allowed
other/a.go                   internal/fretest       refused
test/system/a.go             internal/fretest       allowed
CASES
)

mkpackage() { # FILE IMPORT
	mkdir -p "$root/$(dirname "$1")"
	{
		echo "package proof"
		[ -z "$2" ] || printf '\nimport _ "%s"\n' "$2"
	} >"$root/$1"
}

# Each case is a package of its own below the layer, and imports a package without imports, so that
# the module compiles.
n=0
expected=()
while read -r file import verdict; do
	n=$((n + 1))
	case $import in
	std:*) path=${import#std:} ;;
	just:*)
		path=$module/${import#just:}
		mkpackage "${import#just:}/target.go" ""
		;;
	*)
		path=$module/$import/target
		mkpackage "$import/target/target.go" ""
		;;
	esac
	case $file in
	cmd/fre/*) ;; # one package
	*) file=$(dirname "$file")/proof$n/$(basename "$file") ;;
	esac
	mkpackage "$file" "$path"
	expected+=("$verdict $file $import")
done <<<"$cases"

cd "$root"
report=$("$linter" run --enable-only depguard --max-issues-per-linter 0 --max-same-issues 0 \
	--output.text.path stdout --output.text.print-issued-lines=false ./... 2>&1) || true

failed=0
for line in "${expected[@]}"; do
	read -r verdict file import <<<"$line"
	got=allowed
	if grep -qF "$file:" <<<"$report"; then got=refused; fi
	if [ "$got" != "$verdict" ]; then
		echo "lint-proof: $file imports $import: $got, want $verdict" >&2
		failed=1
	fi
done
if grep -q typecheck <<<"$report"; then failed=1; fi
if [ $failed = 1 ]; then
	echo "$report" >&2
	exit 1
fi
echo "lint-proof: $n imports judged as ARCHITECTURE.md says"
