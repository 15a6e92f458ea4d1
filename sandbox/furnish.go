package sandbox

import (
	"fmt"
	"os"

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
