package fretest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Charge starts a process, has join put the process into a cgroup, and waits until the process has
// filled a memory file with the given number of bytes and ended. The file keeps the memory charged
// to the cgroup, and is closed when the test ends.
func Charge(t testing.TB, bytes int, join func(pid int) error) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("charge", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatalf("memfd_create: %v", err)
	}
	held := os.NewFile(uintptr(fd), "charge")
	t.Cleanup(func() { _ = held.Close() })
	cmd := exec.Command("sh", "-c", fmt.Sprintf("read go && head -c %d /dev/zero >&3", bytes))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{held}, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err = join(cmd.Process.Pid); err == nil {
		_, err = io.WriteString(stdin, "go\n")
	}
	if err != nil {
		_ = stdin.Close() // ends the shell's read
	}
	if e := cmd.Wait(); e != nil || err != nil {
		t.Fatalf("charge a cgroup with %d bytes: %v, %v", bytes, err, e)
	}
	return held
}
