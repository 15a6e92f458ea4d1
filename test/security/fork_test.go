package security

import (
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

// A fork server has one capability over its own user namespace, good only for the namespaces of its
// forks. The seccomp filter refuses the rest.
func TestForkServer(t *testing.T) {
	if err := sandbox.CanFork(); err != nil {
		t.Skipf("this kernel has no fork servers: %v", err)
	}
	h := openHost(t)
	forks := func(s *sandbox.Spec) { s.Forks = 8 }
	refused(t, h, fretest.Rootfs(t), forks, append(
		list("EPERM", 0,
			"unshare user", "clone user", "clone user and mount", "clone user and cgroup", "setns",
			"mount cgroup2", "mount proc", "mount tmpfs", "bind", "remount root", "fsopen", "open_tree", "mount_setattr",
			"pivot_root", "device", "file handle", "unmount /proc", "chroot",
			"host name", "clock", "real-time priority", "reboot", "swapon", "accounting", "kernel log",
			"root", "groups", "bpf", "perf_event_open", "keyctl", "quotactl", "fanotify"),
		list("EPERM", sandbox.DefenceSeccomp, "unshare mount", "clone mount", "clone pid", "clone network")...,
	))
}
