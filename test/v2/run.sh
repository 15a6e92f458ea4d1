#!/usr/bin/env bash
# Runs root tests on a kernel with cgroup v2 only: Debian's cloud kernel under qemu's software
# emulation, a minimal root, no network. The host stays unchanged: kernel and busybox are unpacked
# below .cache/v2.
#
#   test/v2/run.sh ["PACKAGE DIRECTORY [NAME OF A TEST]..."]...
#
# The guest has no package sites: for test/system the host builds all images first, as root.
# FRE_V2_ACCEL=kvm asks for hardware virtualisation.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The tests of the guest: every package whose tests touch the kernel, or only the tests named behind
# the package, without "Test". Emulation is ten times slower.
packages=(test/v2 internal/linux function/channel/rawio volume sandbox/cgroup sandbox/netns sandbox/egress sandbox
	'store AddDir Adopt CrashAtFailpoints DiskFull FileSystemLinkLimit FilesAreShared Owners PutImage Reconcile RemoveImage SameImageAtOnce Sizes'
	'engine BuildStep BuildStepFills Container ContainerPreparedLayer DiskUsage Drain ForkEnds ForkHostile ForkIsolation ForkServerDies
		FreshPerEvent LargerHost ParkedTool ProcessesSignalWait Run RunTenant ParkedInterpreter InterpreterBurst InterpreterDies InterpretersAmongStarts
		StartKinds Stdio Stop Temporary WarmReuse WorkLimit WorkOnDisk'
	'engine/live CPUCount LimitsOf Own WithLimits'
	'bench/internal/nettrace Allocations Missing' # the remaining tests drop packets by a program that needs Linux 6.6
	test/security)

seconds=2400
cache=$PWD/.cache/v2
[ $# -eq 0 ] || packages=("$@")

die() {
	echo "test-v2: $*" >&2
	exit 1
}

[ "$(uname -m)" = x86_64 ] || die "only x86_64 so far"

# unpack PACKAGE: downloads a Debian package into the cache and unpacks it beside,
# once per version; prints the directory.
unpack() {
	local uri file dir
	uri=$(apt-get download --print-uris "$1" | tail -n 1) || die "apt knows no package $1"
	file=$(awk '{ print $2 }' <<<"$uri")
	[ -n "$file" ] || die "apt knows no package $1"
	dir=$cache/${file%.deb}
	if [ ! -d "$dir" ]; then
		(cd "$cache" && apt-get -qq -o APT::Sandbox::User=root download "$1") ||
			die "cannot download $1: try apt-get update"
		rm -rf "$dir.tmp"
		dpkg-deb -x "$cache/$file" "$dir.tmp"
		mv "$dir.tmp" "$dir"
		rm "$cache/$file"
	fi
	echo "$dir"
}

# depends PACKAGE PATTERN: the first dependency that matches.
depends() {
	apt-cache depends "$1" 2>/dev/null | sed -n "s/^ *Depends: \($2\)\$/\1/p" | head -n 1
}

mkdir -p "$cache"
for meta in linux-image-cloud-amd64 linux-image-virtual; do # Debian, Ubuntu
	image=$(depends $meta 'linux-image-[0-9].*')
	[ -z "$image" ] || break
done
[ -n "$image" ] || die "apt knows neither linux-image-cloud-amd64 nor linux-image-virtual: try apt-get update"
kernel=$(unpack "$image")
modules=$(depends "$image" 'linux-modules-[0-9].*') # Ubuntu packages the modules apart
if [ -n "$modules" ]; then modules=$(unpack "$modules"); else modules=$kernel; fi
busybox=$(find "$(unpack busybox-static)" -name busybox -type f -path '*bin/*')
version=${image#linux-image-}

work=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Stage one: an initramfs that loads the disk's driver and switches to the disk, because pivot_root
# cannot leave the kernel's rootfs.
ramfs=$work/ramfs
mkdir -p "$ramfs"/{bin,dev,proc,sys,root,lib/modules/"$version"}
cp "$busybox" "$ramfs/bin/busybox"
install -m 0755 test/v2/init "$ramfs/init"
find "$modules" -path "*/modules/$version/*" \
	\( -name 'virtio*.ko*' -o -name 'overlay.ko*' -o -name 'modules.builtin' -o -name 'modules.order' \) \
	-exec cp -t "$ramfs/lib/modules/$version" {} +

# The kernel loads the modules of the network and of quotas when a test asks for them.
disk=$work/disk
mkdir -p "$disk/lib/modules/$version"
find "$modules" -path "*/modules/$version/*" \
	\( -path '*/net/*netfilter/*.ko*' -o -name 'veth.ko*' -o -name 'quota_*.ko*' -o -name 'loop.ko*' -o -path '*/fs/xfs/*.ko*' -o -name 'xor.ko*' -o -name '*crc32c*.ko*' -o -name 'modules.builtin' -o -name 'modules.order' \) \
	-exec cp -t "$disk/lib/modules/$version" {} +
for root in "$ramfs" "$disk"; do
	find "$root" -name '*.ko.zst' -exec zstd -q -d --rm {} +
	find "$root" -name '*.ko.xz' -exec xz -d {} +
	"$busybox" depmod -b "$root" "$version"
done
(cd "$ramfs" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initrd"

# Stage two: the disk. Packages keep their places in the tree, so that tests find testdata and the
# spawner.
mkdir -p "$disk"/{bin,sbin,usr,dev,proc,sys,tmp,run,root,etc,var/tmp,work}
mkdir -p "$disk/fre/sandbox/spawner/bin" "$disk/fre/bin"
ln -s ../bin ../sbin "$disk/usr/"
chmod 1777 "$disk/tmp"
cp "$busybox" "$disk/bin/busybox"
install -m 0755 test/v2/init "$disk/sbin/init"
printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n' >"$disk/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$disk/etc/group"
printf '127.0.0.1 localhost\n' >"$disk/etc/hosts"
[ ! -d bin ] || cp -a bin/. "$disk/fre/bin/"
if [[ " ${packages[*]} " == *" engine "* ]]; then
	make .cache/tools/registry .cache/tools/pebble
	cp .cache/tools/registry .cache/tools/pebble "$disk/fre/bin/"
fi
CGO_ENABLED=0 go build -o "$disk/fre/bin/testprog" ./internal/fretest/testdata/testprog
CGO_ENABLED=0 go build -o "$disk/fre/bin/fn" ./engine/testdata/fn
[ ! -d sandbox/spawner/bin ] || cp -a sandbox/spawner/bin/. "$disk/fre/sandbox/spawner/bin/"
if [[ " ${packages[*]} " == *" test/system "* ]]; then
	echo "test-v2: building the images of test/system"
	FRE_TEST_ROOT=1 FRE_BIN=$PWD/bin/fre FRE_SYSTEM_PREPARE=$disk/fre/state \
		go test -count=1 -timeout 15m -run '^TestPrepare$' ./test/system
	cp -a templates "$disk/fre/"
fi
# On hosts without quotas, directories with a limit are disk images, which need these tools and
# their libraries.
for tool in mkfs.ext4 e2fsck resize2fs; do
	path=$(PATH=$PATH:/sbin:/usr/sbin command -v $tool) || die "$tool is missing: make deps-v2"
	cp -L "$path" "$disk/sbin/$tool"
	ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
		mkdir -p "$disk/${library%/*}"
		cp -L "$library" "$disk$library"
	done
done
for line in "${packages[@]}"; do
	read -r -d '' -a names <<<"$line" || true
	package=${names[0]}
	names=("${names[@]:1}")
	mkdir -p "$disk/fre/$package"
	CGO_ENABLED=0 go test -c -o "$disk/fre/$package/package.test" "./$package"
	[ -x "$disk/fre/$package/package.test" ] || die "$package has no tests"
	[ ! -d "$package/testdata" ] || cp -a "$package/testdata" "$disk/fre/$package/"
	if [ ${#names[@]} != 0 ]; then
		there=$(FRE_TEST_FN=$disk/fre/bin/fn "$disk/fre/$package/package.test" -test.list '^Test')
		for name in "${names[@]}"; do
			grep -qx "Test$name" <<<"$there" || die "$package has no test Test$name"
		done
	fi
	pattern=$(IFS='|' && echo "${names[*]}")
	echo "$package ${pattern:+^Test($pattern)\$}" >>"$disk/fre/packages"
done
truncate -s 8G "$work/disk.img"
mkfs.ext4 -q -F -d "$disk" "$work/disk.img"
truncate -s 2G "$work/ext4.img" "$work/xfs.img"
mkfs.ext4 -q -F -O quota,project -E quotatype=prjquota "$work/ext4.img"
mkfs.xfs -q "$work/xfs.img"
rm -rf "$disk" "$ramfs"

# The guest prints its verdict last; after a kernel panic or a hang the verdict is missing.
echo "test-v2: ${packages[*]%% *} on $version"
timeout --foreground -k 5 "$seconds" qemu-system-x86_64 \
	-machine q35 -accel "${FRE_V2_ACCEL:-tcg}" -cpu max -smp 2 -m 2048 \
	-nodefaults -display none -serial stdio -no-reboot \
	-kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd" \
	-append 'console=ttyS0 quiet panic=-1 cgroup_no_v1=all systemd.unified_cgroup_hierarchy=1' \
	-drive "file=$work/disk.img,if=virtio,format=raw,cache=unsafe" \
	-drive "file=$work/ext4.img,if=virtio,format=raw,cache=unsafe" \
	-drive "file=$work/xfs.img,if=virtio,format=raw,cache=unsafe" \
	</dev/null | stdbuf -oL tr -d '\r' | tee "$work/console" ||
	die "qemu failed or the guest did not end within $seconds s"
verdict=$(sed -n 's/^test-v2: guest exit status \([0-9]*\)$/\1/p' "$work/console" | tail -n 1)
[ -n "$verdict" ] || die "the guest died without a verdict"
[ "$verdict" = 0 ] || die "tests failed in the guest"
