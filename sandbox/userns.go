package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// ranges hands out ranges of host ids to sandboxes that have one of their own.
type ranges struct {
	first uint32

	mu   sync.Mutex
	next uint32   // never handed out so far
	free []uint32 // given back
}

func (r *ranges) acquire() (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		base := r.free[n-1]
		r.free = r.free[:n-1]
		return base, nil
	}
	base := r.first + r.next*idCount
	if base < r.first || base > math.MaxUint32-idCount {
		return 0, fmt.Errorf("no host ids left above %d: %w", r.first, unix.EAGAIN)
	}
	r.next++
	return base, nil
}

// release takes a range back whose sandbox has ended: what it left on disk, it
// left under mapped ids.
func (r *ranges) release(base uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, base)
}

// CanMap says whether the file system of dir can be mounted with Mount.Mapped;
// the error says why not.
func CanMap(dir string) error {
	return withUserns(func(userns *os.File) error { return closing(cloneMapped(dir, 0, userns)) })
}

// withUserns lends use a user namespace of no sandbox's, to try out what takes one.
func withUserns(use func(*os.File) error) error {
	program, err := openProgram()
	if err != nil {
		return err
	}
	defer program.Close()
	userns, err := newUserns(program, 1<<28, 0)
	if err != nil {
		return err
	}
	defer userns.Close()
	return use(userns)
}

// idCount is how many user and group ids a user namespace has.
const idCount = 65536

// newUserns makes a user namespace that maps ids 0 to 65535 to hostBase and up.
// With namespaces above 0, no more than that many of each other kind can be made
// in it.
// A short-lived fre-shell creates it; it lives on by the returned file alone.
// No tenant's uid owns it: being root's child, it gives nobody a capability who
// does not join it as root.
func newUserns(program *os.File, hostBase uint32, namespaces int) (f *os.File, err error) {
	all := idMap{0, hostBase, idCount}
	return newMappedUserns(program, all, all, namespaces)
}

// idMap is a line of uid_map or gid_map (user_namespaces(7)).
type idMap struct{ inside, host, count uint32 }

// newMappedUserns is newUserns with ids of the caller's choice.
func newMappedUserns(program *os.File, uids, gids idMap, namespaces int) (f *os.File, err error) {
	args := []string{"hold"}
	if namespaces > 0 {
		args = append(args, strconv.Itoa(namespaces))
	}
	cmd := shellCommand(program, nil, args...)
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
	for name, m := range map[string]idMap{"/uid_map": uids, "/gid_map": gids} {
		if err := os.WriteFile(proc+name, fmt.Appendf(nil, "%d %d %d\n", m.inside, m.host, m.count), 0); err != nil {
			return nil, fmt.Errorf("map ids: %w", err)
		}
	}
	fd, err := unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "user namespace"), nil
}
