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

// tenants holds the user namespace of each tenant.
type tenants struct {
	program *os.File // fre-spawner

	mu    sync.Mutex
	users map[string]*tenantUserns
}

// tenantUserns is a tenant's user namespace, made once.
type tenantUserns struct {
	base uint32
	once sync.Once
	file *os.File
	err  error
}

// namespace returns the tenant's user namespace; the tenant's first sandbox makes the namespace.
func (t *tenants) namespace(u User) (*os.File, error) {
	if u.HostBase > math.MaxUint32-idCount {
		return nil, fmt.Errorf("tenant %s: host id %d leaves no room for %d ids: %w", u.Tenant, u.HostBase, idCount, unix.EINVAL)
	}
	t.mu.Lock()
	n := t.users[u.Tenant]
	if n == nil {
		n = &tenantUserns{base: u.HostBase}
		t.users[u.Tenant] = n
	}
	t.mu.Unlock()
	if n.base != u.HostBase {
		return nil, fmt.Errorf("tenant %s: host ids begin at %d, not %d: %w", u.Tenant, n.base, u.HostBase, unix.EINVAL)
	}
	n.once.Do(func() { n.file, n.err = newUserns(t.program, u.HostBase, 0) })
	if n.err != nil {
		t.mu.Lock()
		delete(t.users, u.Tenant) // so that the next start tries again
		t.mu.Unlock()
		return nil, fmt.Errorf("tenant %s: %w", u.Tenant, n.err)
	}
	return n.file, nil
}

// close closes the user namespaces. No start is in progress.
func (t *tenants) close() {
	for _, u := range t.users {
		_ = u.file.Close() // of a nil file: an error
	}
}

// CanMap returns nil if the file system of dir supports Mount.Mapped, else the reason.
func CanMap(dir string) error {
	return withUserns(func(userns *os.File) error { return closing(cloneMapped(dir, 0, userns)) })
}

// withUserns calls use with a temporary user namespace.
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

// newUserns makes a user namespace that maps ids 0 to 65535 to host ids from hostBase on.
// namespaces, unless 0, is the most other namespaces of each kind in the new namespace. A
// short-lived fre-spawner creates the namespace; afterwards only the returned file keeps the
// namespace alive. The owner is the host's root, not a tenant: a process gets capabilities only
// by joining as root.
func newUserns(program *os.File, hostBase uint32, namespaces int) (f *os.File, err error) {
	all := idMap{0, hostBase, idCount}
	return newMappedUserns(program, all, all, namespaces)
}

// idMap is a line of uid_map or gid_map (user_namespaces(7)).
type idMap struct{ inside, host, count uint32 }

// newMappedUserns is newUserns with the caller's id maps.
func newMappedUserns(program *os.File, uids, gids idMap, namespaces int) (f *os.File, err error) {
	args := []string{"hold"}
	if namespaces > 0 {
		args = append(args, strconv.Itoa(namespaces))
	}
	cmd := spawnerCommand(program, nil, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start fre-spawner: %w", err)
	}
	defer func() {
		_ = in.Close()
		if waitErr := errnoOf(cmd.Wait()); waitErr != nil {
			_ = f.Close()
			f, err = nil, fmt.Errorf("create user namespace: %w", waitErr)
		}
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
	fd, err := unix.Openat(unix.AT_FDCWD, proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "user namespace"), nil
}

// errnoOf returns the errno that the spawner's exit code holds, or err.
func errnoOf(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return unix.Errno(exit.ExitCode())
	}
	return err
}
