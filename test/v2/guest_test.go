// Package v2 runs FRE's root tests on a kernel with cgroup v2 only (run.sh), and checks the kernel
// of the guest.
package v2

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/volume"
)

func TestGuestHasOnlyCgroupV2(t *testing.T) {
	if os.Getenv("FRE_V2") == "" {
		t.Skip("runs in the guest of make test-v2")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Errorf("/sys/fs/cgroup has file system type %#x, want cgroup2 %#x", fs.Type, unix.CGROUP2_SUPER_MAGIC)
	}
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " "+want+" ") {
			t.Errorf("cgroup.controllers = %q, want %s among them", controllers, want)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), " cgroup rw") {
		t.Errorf("cgroup v1 is mounted:\n%s", mounts)
	}
}

// The tests of volumes find project quotas on ext4 and on XFS.
func TestGuestHasQuotas(t *testing.T) {
	if os.Getenv("FRE_V2") == "" {
		t.Skip("runs in the guest of make test-v2")
	}
	types := map[int64]bool{}
	for _, dir := range filepath.SplitList(os.Getenv("FRE_TEST_QUOTA_DIRS")) {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		types[fs.Type] = true
		if quota, _ := volume.Probe(dir); quota != nil {
			t.Errorf("%s: %v", dir, quota)
		}
	}
	if !types[unix.EXT4_SUPER_MAGIC] || !types[unix.XFS_SUPER_MAGIC] {
		t.Errorf("file systems with quotas: %v, want ext4 and xfs", types)
	}
}
