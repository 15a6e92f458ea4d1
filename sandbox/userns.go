package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// idCount is how many user and group ids a tenant has.
const idCount = 65536

// newUserns makes a user namespace that maps ids 0 to 65535 to hostBase and up.
// A short-lived fre-shell creates it; it lives on by the returned file alone.
// No tenant's uid owns it: being root's child, it gives nobody a capability who
// does not join it as root.
func newUserns(program *os.File, hostBase uint32) (f *os.File, err error) {
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", program.Fd()),
		Args: []string{"fre-shell", "hold"},
		Env:  []string{},
		Dir:  "/",
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start fre-shell: %w", err)
	}
	defer func() {
		_ = in.Close()
		waitErr := cmd.Wait()
		var exit *exec.ExitError
		switch {
		case waitErr == nil:
			return
		case errors.As(waitErr, &exit) && exit.ExitCode() > 0: // with its errno
			waitErr = unix.Errno(exit.ExitCode())
		}
		if f != nil {
			_ = f.Close()
		}
		f, err = nil, fmt.Errorf("create user namespace: %w", waitErr)
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("create user namespace: %w", err)
	}
	proc := "/proc/" + strconv.Itoa(cmd.Process.Pid)
	line := fmt.Appendf(nil, "0 %d %d\n", hostBase, idCount)
	for _, name := range []string{"/uid_map", "/gid_map"} {
		if err := os.WriteFile(proc+name, line, 0); err != nil {
			return nil, fmt.Errorf("map ids: %w", err)
		}
	}
	fd, err := unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "user namespace"), nil
}
