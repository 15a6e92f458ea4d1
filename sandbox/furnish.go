package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Furnishing is the configuration of a sandbox that was started before its tenant was known.
type Furnishing struct {
	Work     string  // host directory mounted at /work, writable and mapped; "" for none
	Mounts   []Mount // further binds; their mount points must exist in the root
	Secrets  []Secret
	Hostname string // "fre" if empty
	Limits   Limits
}

func (f *Furnishing) check() error {
	if len(f.Hostname) > 64 {
		return fmt.Errorf("host name %q is longer than 64 bytes: %w", f.Hostname, unix.EINVAL)
	}
	return checkSecrets(f.Secrets)
}

func (f *Furnishing) mounts() []Mount {
	if f.Work == "" {
		return f.Mounts
	}
	return append([]Mount{{Source: f.Work, Target: "/work", Writable: true, Mapped: true}}, f.Mounts...)
}

// Furnish adds mounts, host name and limits to a running sandbox with User.Own. The sandbox is
// then an ordinary sandbox without Spec.Background.
//
// The engine enters the sandbox's mount and UTS namespaces with one thread and all its
// privileges. That is safe only before the first instruction of the tenant, since no tenant can
// then have prepared the namespaces. Call Furnish once. After an error the sandbox is unusable:
// kill it.
func (s *Sandbox) Furnish(f Furnishing) error {
	if err := s.furnish(f); err != nil {
		return fmt.Errorf("furnish sandbox %s: %w", s.id, err)
	}
	return nil
}

func (s *Sandbox) furnish(f Furnishing) error {
	spec := Spec{Hostname: f.Hostname, Limits: f.Limits}
	spec.setDefaults()
	if err := f.check(); err != nil {
		return err
	}
	mounts := f.mounts()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd < 0 {
		return os.ErrProcessDone
	}
	if s.userns == nil {
		return fmt.Errorf("already has a tenant: %w", unix.EINVAL)
	}
	trees, err := s.cloneAll(mounts)
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	if len(f.Secrets) > 0 {
		fd, err := newSecrets(f.Secrets, s.base+s.user.UID, s.base+s.user.GID)
		if err != nil {
			return err
		}
		mounts, trees = append(mounts[:len(mounts):len(mounts)], Mount{Target: secretsTarget}), append(trees, fd)
	}
	if err := s.relimitLocked(spec.Limits); err != nil {
		return err
	}
	err = s.host.visitor.visit(s.pidfd, unix.CLONE_NEWNS|unix.CLONE_NEWUTS, func() error {
		if err := attachAll(trees, mounts); err != nil {
			return err
		}
		return unix.Sethostname([]byte(spec.Hostname))
	})
	if err == nil {
		s.mounts = append(s.mounts, mounts...)
	}
	return err
}

// cloneAll returns clones of the mounts. The caller closes them, also after an error.
func (s *Sandbox) cloneAll(mounts []Mount) ([]int, error) {
	trees := make([]int, 0, len(mounts))
	for _, m := range mounts {
		fd, err := m.clone(m.attr(), s.userns)
		if err == nil {
			err = checkTarget(m.Target)
			trees = append(trees, fd)
		}
		if err != nil {
			return trees, err
		}
	}
	return trees, nil
}

func attachAll(trees []int, mounts []Mount) error {
	for i, m := range mounts {
		if err := attach(trees[i], m.Target); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	return nil
}

// relimitLocked changes the limits; the caller holds s.mu.
func (s *Sandbox) relimitLocked(l Limits) error {
	if err := s.host.checkFiles(l); err != nil {
		return err
	}
	if err := s.group.SetLimits(l.cgroup()); err != nil {
		return err
	}
	s.group.Watch(s.Kill, s.network.queued)
	if l.TmpBytes != s.limits.TmpBytes || l.TmpInodes != s.limits.TmpInodes {
		if err := resizeTmp(s.tmp, l.TmpBytes, l.TmpInodes); err != nil {
			return err
		}
	}
	if l.Files != s.limits.Files {
		// By pid, the only way to set this limit. The pid of an ended process stays unused
		// until the spawner has reaped the process and all other pids have been used, and this
		// process was alive a moment ago.
		limit := unix.Rlimit{Cur: uint64(l.Files), Max: uint64(l.Files)}
		if err := unix.PidfdSendSignal(s.pidfd, 0, nil, 0); err != nil {
			return err
		}
		if err := unix.Prlimit(s.pidLocked(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
			return fmt.Errorf("limit open files: %w", err)
		}
	}
	s.limits = l
	return nil
}

// attach mounts a detached mount over target, as spawner/sandbox.c does.
func attach(tree int, target string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, target, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// resizeTmp changes the size of a mounted tmpfs. The error is EINVAL if the tmpfs holds more.
func resizeTmp(mount int, bytes, inodes int64) error {
	fd, err := unix.Fspick(mount, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fspick /tmp: %w", err)
	}
	defer unix.Close(fd)
	err = errors.Join(
		unix.FsconfigSetString(fd, "size", strconv.FormatInt(bytes, 10)),
		unix.FsconfigSetString(fd, "nr_inodes", strconv.FormatInt(inodes, 10)))
	if err == nil {
		err = unix.FsconfigReconfigure(fd)
	}
	if err != nil {
		return fmt.Errorf("resize /tmp: %w", err)
	}
	return nil
}

// visitor enters the namespaces of sandboxes and returns to the engine's.
type visitor struct {
	home map[int]int // fds of the engine's own namespaces, by CLONE_NEW…
}

func newVisitor() (*visitor, error) {
	v := &visitor{home: map[int]int{}}
	for kind, name := range map[int]string{unix.CLONE_NEWNS: "mnt", unix.CLONE_NEWUTS: "uts", unix.CLONE_NEWNET: "net"} {
		fd, err := unix.Open("/proc/thread-self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			v.close()
			return nil, fmt.Errorf("open own %s namespace: %w", name, err)
		}
		v.home[kind] = fd
	}
	return v, nil
}

func (v *visitor) close() {
	for _, fd := range v.home {
		unix.Close(fd)
	}
}

// visit runs f inside the mount, UTS and network namespaces of a process, as selected by flags
// (CLONE_NEW…). f must only make system calls.
//
// The calling thread enters and returns: 12 µs. A dedicated thread would cost 50 to 100 µs, for
// waking that thread and this one. One effect remains: the thread no longer shares its working
// directory with other threads. os.Chdir, which the engine never calls, would not affect it.
func (v *visitor) visit(pidfd, flags int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == os.Getpid() {
		// /proc/self shows the main thread's namespaces as the engine's. While this goroutine
		// occupies the main thread, another goroutine runs on another thread.
		err := make(chan error)
		go func() { err <- v.visit(pidfd, flags, f) }()
		return <-err
	}
	// setns(2) requires a thread that shares its root and working directory with no other
	// thread, and changes both to the root of the namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare working directory: %w", err)
	}
	dir, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open working directory: %w", err)
	}
	defer unix.Close(dir)
	if err := unix.Setns(pidfd, flags); err != nil {
		return fmt.Errorf("join namespaces: %w", err)
	}
	result := f()
	for kind, fd := range v.home {
		if flags&kind != 0 {
			err = errors.Join(err, unix.Setns(fd, kind))
		}
	}
	err = errors.Join(err, unix.Fchdir(dir))
	if err != nil {
		// Otherwise the scheduler would run arbitrary goroutines on this thread, inside a
		// sandbox.
		panic(fmt.Sprintf("fre: no way back from a sandbox's namespaces: %v", err))
	}
	return result
}
