package fretest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMinus: minus finds one leak of each kind.
func TestMinus(t *testing.T) {
	RequireRoot(t)
	before := take(t)

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("cat")
	cmd.Stdin = r
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	group := "/sys/fs/cgroup/pids/fre-leak-test"
	if _, err := os.Stat("/sys/fs/cgroup/pids"); err != nil {
		group = "/sys/fs/cgroup/fre-leak-test"
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(group) }()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()

	left := strings.Join(take(t).minus(before), "\n")
	_ = w.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"fd pipe:", "child process ", "goroutine ", "cgroup " + group, "mount ", "on " + dir} {
		if !strings.Contains(left, want) {
			t.Errorf("%q not found among what was left:\n%s", want, left)
		}
	}
}

// TestOfAnother: a mount of another package's tests is not a leak; any other new mount is.
func TestOfAnother(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp")
	for mount, want := range map[string]bool{
		"7 on /tmp/TestDisk123/001": true, "7 on /tmp/TestOwn123/001": false, "7 on /tmp/TestOwnsize=1m123/001": false,
		"7 on /tmp/fre-1": false, "7 on /mnt": false, "7 on /run/TestDisk": false,
	} {
		if got := ofAnother(mount, "TestOwn/size=1m"); got != want {
			t.Errorf("%s: %v", mount, got)
		}
	}
}
