#!/usr/bin/env bash
# Follows docs/tutorial.md as a newcomer does, and prints the seconds of each step.
#
#   scripts/tutorial.sh [DIR]
#
# The script makes a minimal Debian (mmdebstrap's variant minbase, and systemd) below DIR
# (/var/tmp/fre-tutorial), boots the system in namespaces of its own, and runs the commands of
# the page there in one shell, with the last commit of this tree as the repository to clone. Each
# block of JSON on the page must be part of the output of its step. A failed command is reported,
# and the next command runs, as at a terminal.
#
# The system has the host's network, so port 8080 must be free, and the host's mirrors: apt's
# sources, pip's configuration, certificates. At the end the script removes mounts, cgroups and
# processes; the system stays for a look, and the next run replaces it.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${1:-/var/tmp/fre-tutorial}
root=$dir/root
page=docs/tutorial.md
log=$dir/tutorial.log
group=fre-tutorial

die() {
	echo "tutorial: $*" >&2
	exit 1
}

# commands prints the page's commands as a script: blocks without a language. The script notes
# the start of each step and each failed command.
commands() {
	cat <<-'END'
		set -m
		exec 2>&1
		failed() { echo "tutorial: failed: ${1%%$'\n'*}"; }
		trap 'failed "$BASH_COMMAND"' ERR
	END
	awk '
		/^## [0-9]/   { title = substr($0, 4); gsub(/\047/, "", title); printf "echo; echo \047tutorial: step %s\047 \"$(date +%%s)\"\n", title; step = 1 }
		/^## [^0-9]/  { step = 0 }
		/^```/        { inside = !inside; plain = $0 == "```" && inside; next }
		inside && plain && step
	' $page
	echo "echo; echo \"tutorial: end \$(date +%s)\""
}

# answers prints the lines of the page's blocks of JSON, each behind the number of its step.
answers() {
	awk '
		/^## /        { step = $2 + 0 }
		/^```json/    { inside = 1; next }
		/^```/        { inside = 0 }
		inside        { print step "\t" $0 }
	' $page
}

make_root() {
	echo "tutorial: making a minimal Debian in $root" >&2
	rm -rf --one-file-system "$root"
	local sources=()
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
		if [ -s $file ]; then sources+=("$file"); fi
	done
	# shellcheck source=/dev/null
	mmdebstrap --quiet --variant=minbase --include=systemd-sysv,ca-certificates \
		"$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" "${sources[@]}"
	cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
	cp /etc/resolv.conf /etc/hosts "$root/etc/"
	if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi
	cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
	chroot "$root" update-ca-certificates >/dev/null
	# The kernel is the host's: the system must not configure the kernel.
	for unit in systemd-sysctl systemd-modules-load systemd-timesyncd systemd-networkd systemd-resolved; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
	done
	git clone --quiet --bare . "$root/srv/fre"
	chroot "$root" chown -R 0:0 /srv/fre
	# shellcheck disable=SC2016 # the address of the page
	address=$(sed -n 's/^git clone //p' $page)
	printf '[url "/srv/fre"]\n\tinsteadOf = %s\n' "$address" >"$root/etc/gitconfig"
	commands >"$root/root/tutorial.sh"
}

# hierarchies prints the host's hierarchies of cgroups: type, directory, options.
hierarchies() {
	awk '$3 == "cgroup" || $3 == "cgroup2" { print $3, $2, $4 }' /proc/mounts
}

# enter puts this process into a group of all hierarchies: the system's, or its child "session" for
# the page's commands.
enter() {
	local type at options set
	while read -r type at options; do
		mkdir -p "$at/$1"
		for set in cpuset.cpus cpuset.mems; do # of version 1: empty in a new group
			if [ "$type" = cgroup ] && [ -e "$at/$1/$set" ]; then cat "$at/$1/../$set" >"$at/$1/$set"; fi
		done
		echo "$BASHPID" >"$at/$1/cgroup.procs"
	done < <(hierarchies)
}

# boot runs in the new namespaces, as their first process.
boot() {
	local type at options
	mount --make-rprivate /
	mount --bind "$root" "$root"
	mount -t proc proc "$root/proc"
	mount -t sysfs sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=755 run "$root/run"
	mount -t tmpfs tmp "$root/tmp"
	mount -t tmpfs -o mode=755 cgroup "$root/sys/fs/cgroup" # version 2 alone is mounted over this
	while read -r type at options; do
		mkdir -p "$root$at"
		if [ "$type" = cgroup ]; then
			options=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|relatime|noatime|nosuid|nodev|noexec|xattr|release_agent=.*|clone_children' | paste -sd,)
			case $options in name=*) options=none,$options ;; esac
			mount -t cgroup -o "$options" cgroup "$root$at"
		else
			mount -t cgroup2 cgroup2 "$root$at"
		fi
	done < <(hierarchies)
	hostname tutorial
	cd "$root"
	mkdir -p mnt/host
	pivot_root . mnt/host # not chroot: sandboxes have user namespaces, which a changed root forbids
	exec env -i container=tutorial PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c 'umount -l /mnt/host && exec /sbin/init'
}

if [ "${1-}" = --boot ]; then
	root=$2
	boot
fi

[ "$(id -u)" = 0 ] || die "boots a system: run the script as root"
! ss -ltnH 'sport = :8080' | grep -q . || die "port 8080 is taken: end the program that uses the port"

init=
cleanup() {
	local type at options child
	if [ -n "$init" ]; then
		kill -KILL "$init" 2>/dev/null || true
		wait 2>/dev/null || true
	fi
	while read -r type at options; do
		while read -r child; do rmdir "$child"; done < <(find "$at/$group" -depth -type d 2>/dev/null)
	done < <(hierarchies)
}
trap cleanup EXIT

begin=$(date +%s)
make_root
echo "tutorial: $(($(date +%s) - begin)) s for the system"

(
	enter $group
	exec unshare --mount --pid --fork --cgroup --uts --ipc --kill-child "$0" --boot "$root"
) >"$dir/boot.log" 2>&1 &
unshare=$!
until init=$(pgrep -P "$unshare" -x systemd); do
	kill -0 "$unshare" 2>/dev/null || die "the system did not boot: $(cat "$dir/boot.log")"
	sleep 0.2
done
system() {
	(
		enter $group/session
		exec nsenter -t "$init" -a env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb "$@"
	)
}
until system test -e /run/systemd/private; do sleep 0.2; done
system systemctl is-system-running --wait || true # degraded: a unit of the host's hardware failed

system bash -c 'cd; exec bash /root/tutorial.sh' </dev/null | tee "$log"

# The seconds of each step, then the faults.
awk '
	/^tutorial: (step|end) / {
		if (title) printf "tutorial: %4d s  %s\n", $NF - begin, title
		begin = $NF; title = ""
		if ($2 == "step") { title = $0; sub(/^tutorial: step /, "", title); sub(/ [0-9]+$/, "", title) }
	}' "$log"
faults=$(grep -c '^tutorial: failed: ' "$log" || true)
while IFS=$'\t' read -r step line; do
	if ! awk -v step="$step." '/^tutorial: step / { at = $3 } at == step' "$log" | grep -qF "$line"; then
		echo "tutorial: step $step has no answer $line"
		faults=$((faults + 1))
	fi
done < <(answers)
[ "$faults" = 0 ] || die "$faults faults: see $log"
