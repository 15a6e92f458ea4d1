package sandbox

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
)

// join adds the cgroups to a message.
func (h *Host) join(s *Sandbox, m *startMessage, l cgroup.Limits) (err error) {
	s.group, err = h.cgroups.Acquire(l)
	if err != nil {
		return err
	}
	m.header.FDCgroup = int16(len(m.fds))
	for _, f := range s.group.Files() {
		m.addFD(int(f.Fd()))
		m.header.Cgroups++
	}
	if s.group.V2() {
		m.header.Flags |= flagCgroup2
	}
	return nil
}

// furnish adds all that distinguishes an attached parked sandbox from a bare one: network,
// mounts, identity. The message owns these objects until the sandbox does (own).
func (h *Host) furnish(s *Sandbox, m *startMessage, spec *Spec) error {
	user, base, err := h.furnishUser(s, m, spec)
	if err != nil {
		return err
	}
	if err := h.furnishNetwork(m, spec); err != nil {
		return err
	}
	s.mounts = h.mounts(spec)
	if err := h.furnishRoot(m, spec, s.mounts, user, base); err != nil {
		return err
	}
	if m.tmp, err = newTmp(spec.Limits.TmpBytes, spec.Limits.TmpInodes, base); err != nil {
		return err
	}
	m.undo = append(m.undo, func() { unix.Close(m.tmp) })
	m.addFD(m.tmp)
	if err := h.furnishMounts(m, spec, s.mounts[2:], user, base); err != nil {
		return err
	}
	if len(spec.Secrets) > 0 {
		if err := m.secrets(spec, base); err != nil {
			return err
		}
		s.mounts = append(s.mounts, Mount{Target: secretsTarget})
	}
	if err := h.furnishProc(s, m, spec); err != nil {
		return err
	}
	for _, mount := range s.mounts {
		m.targets = append(m.targets, mount.Target)
	}
	m.host = spec.Hostname
	return nil
}

// furnishUser adds the user namespace, the ids and the rights of the program. It returns the
// namespace and its first id on the host.
func (h *Host) furnishUser(s *Sandbox, m *startMessage, spec *Spec) (*os.File, uint32, error) {
	user, base, err := h.identity(m, spec.User)
	if err == nil && spec.Forks > 0 {
		if s.server, err = newForkServer(h.program, spec); err == nil {
			user = s.server.userns
		}
	}
	if err != nil {
		return nil, 0, err
	}
	s.limits, s.user = spec.Limits, spec.User
	m.header.FDUserns = m.addFD(int(user.Fd()))
	m.header.UID, m.header.GID = spec.User.UID, spec.User.GID
	m.header.NGroups = uint16(copy(m.header.Groups[:], spec.Groups))
	if spec.User.UID == 0 {
		m.header.Capabilities = spec.Capabilities
	}
	m.header.Filter = spec.filter()
	m.header.Flags |= spec.Without.flags()
	if spec.Forks > 0 {
		m.header.Flags |= flagForks
	}
	if spec.TTY {
		m.header.Flags |= flagTTY
	}
	return user, base, nil
}

// identity returns the user namespace and the first host id of a sandbox. With User.Own the
// message owns both until the sandbox owns them.
func (h *Host) identity(m *startMessage, u User) (*os.File, uint32, error) {
	if !u.Own {
		file, err := h.tenants.namespace(u)
		return file, u.HostBase, err
	}
	base, err := h.own.acquire()
	if err != nil {
		return nil, 0, err
	}
	file, err := newUserns(h.program, base, 0)
	if err != nil {
		h.own.release(base)
		return nil, 0, err
	}
	m.userns, m.base = file, base
	m.undo = append(m.undo, func() {
		_ = file.Close()
		h.own.release(base)
	})
	return file, base, nil
}

func (h *Host) furnishNetwork(m *startMessage, spec *Spec) (err error) {
	if m.network, err = h.leaseNetwork(spec); err != nil {
		return err
	}
	if m.network.file != nil {
		m.undo = append(m.undo, m.network.give)
		m.header.FDNetns = m.addFD(int(m.network.file.Fd()))
	}
	return nil
}

// mounts returns the mounts below the root, /dev and /tmp first.
func (h *Host) mounts(spec *Spec) []Mount {
	mounts := []Mount{{Target: "/dev"}, {Target: "/tmp"}}
	if spec.Work != "" {
		mounts = append(mounts, Mount{Source: spec.Work, Target: "/work", Writable: !spec.WorkReadOnly, Mapped: spec.WorkMapped})
	}
	mounts = append(mounts, spec.Mounts...)
	if spec.Network == NetworkEgress {
		mounts = append(mounts, Mount{Source: h.wayOut.resolvConf, Target: "/etc/resolv.conf"})
	}
	return mounts
}

// furnishRoot adds the root, read-only or with a layer of its own, and /dev.
func (h *Host) furnishRoot(m *startMessage, spec *Spec, mounts []Mount, user *os.File, base uint32) (err error) {
	const bind, readonly = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, unix.MOUNT_ATTR_RDONLY
	if spec.Scratch == nil {
		m.header.FDRoot, err = m.tree(spec.Rootfs, spec.mountAttr(bind|readonly))
		if err == nil && spec.Opens != nil {
			err = spec.Opens.mark(m.trees[len(m.trees)-1])
		}
	} else {
		err = h.furnishScratch(m, spec, mounts, user, base)
	}
	if err != nil {
		return err
	}
	m.header.FDMount, err = m.tree(devDir(h.cfg.Dir), spec.mountAttr(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|readonly))
	return err
}

// furnishScratch adds a writable root with the mount points of mounts.
func (h *Host) furnishScratch(m *startMessage, spec *Spec, mounts []Mount, user *os.File, base uint32) error {
	root, layer, err := h.layers.scratchRoot(spec, mounts, user, base)
	if err != nil {
		return err
	}
	m.trees = append(m.trees, root)
	m.header.FDRoot = m.addFD(root)
	if m.scratch = layer; layer != nil {
		m.undo = append(m.undo, func() { unix.Close(layer.fd) })
	}
	return nil
}

// furnishMounts adds clones of mounts: /work and those of the Spec.
func (h *Host) furnishMounts(m *startMessage, spec *Spec, mounts []Mount, user *os.File, base uint32) error {
	owners, err := h.workOwners(spec, base)
	if err != nil {
		return err
	}
	if owners != nil {
		defer owners.Close()
	}
	for _, mount := range mounts {
		mapped := user
		if owners != nil && mount.Target == "/work" {
			mapped = owners
		}
		fd, err := mount.clone(spec.mountAttr(mount.attr()), mapped)
		if err != nil {
			return err
		}
		m.trees = append(m.trees, fd)
		m.addFD(fd)
	}
	return nil
}

// workOwners returns a user namespace that maps the owner of /work on disk to the sandbox's
// user; nil if /work needs no such namespace. The caller closes the file.
func (h *Host) workOwners(spec *Spec, base uint32) (*os.File, error) {
	if spec.Work == "" || !spec.WorkMapped || spec.WorkOwner == 0 || spec.WorkOwner == spec.User.UID && spec.WorkOwner == spec.User.GID {
		return nil, nil
	}
	return newMappedUserns(h.program, idMap{spec.WorkOwner, base + spec.User.UID, 1}, idMap{spec.WorkOwner, base + spec.User.GID, 1}, 0)
}

// furnishProc adds the files of /proc to the message if the Spec has them. The message owns the
// sandbox's view until the sandbox does (own).
func (h *Host) furnishProc(s *Sandbox, m *startMessage, spec *Spec) error {
	if !spec.ProcFiles {
		return nil
	}
	cpus := max(1, min((s.limits.CPUMillis+999)/1000, int64(h.cpus.Count())))
	view, mounts, trees, err := h.proc.add(s.memoryUsage, s.limits.MemoryBytes, cpus)
	if err != nil {
		return err
	}
	m.view = view
	m.undo = append(m.undo, func() { h.proc.remove(view) })
	for _, fd := range trees {
		m.trees = append(m.trees, fd)
		m.addFD(fd)
	}
	s.mounts = append(s.mounts, mounts...)
	m.header.Flags |= flagProcFiles
	return nil
}

// execution adds the parts that are new in every start: program, environment, streams.
func (h *Host) execution(s *Sandbox, m *startMessage, spec *Spec) error {
	null := int16(-1)
	stream := func(f *os.File) int16 {
		if f == nil {
			return null
		}
		return m.addFD(int(f.Fd())) // Fd sets the file to blocking, as programs expect
	}
	if spec.Stdin == nil || spec.Stdout == nil || spec.Stderr == nil {
		// Open /dev/null for each sandbox: two sandboxes with a common open file could signal
		// each other by its flags and owner (F_SETFL, F_SETOWN).
		fd, err := unix.Openat(int(h.devices.Fd()), "null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/null: %w", err)
		}
		m.trees = append(m.trees, fd)
		null = m.addFD(fd)
	}
	m.header.FDStdin, m.header.FDStdout, m.header.FDStderr = stream(spec.Stdin), stream(spec.Stdout), stream(spec.Stderr)
	if spec.Channel != nil {
		m.header.FDChannel = m.addFD(int(spec.Channel.Fd()))
	}
	m.header.Nofile = uint64(spec.Limits.Files)
	if spec.Pin {
		m.header.Flags |= flagPin
	}
	if spec.Trace {
		m.header.Flags |= flagTrace
	}
	m.args, m.env, m.dir = spec.Args, spec.Env, spec.Dir
	s.args0 = spec.Args[0]
	return nil
}

// leaseNetwork leases the network namespace for spec's sandbox.
func (h *Host) leaseNetwork(spec *Spec) (lease, error) {
	switch spec.Network {
	case NetworkHost:
		return lease{}, nil
	case NetworkEgress:
		n, err := h.wayOut.egress()
		if err != nil {
			return lease{}, err
		}
		s, err := n.Acquire(spec.Egress)
		if err != nil {
			return lease{}, err
		}
		return lease{s.File(), func() { n.Release(s) }, s.Queued}, nil
	case NetworkNone:
	}
	s, err := h.networks.Acquire()
	if err != nil {
		return lease{}, err
	}
	return lease{s.File(), func() { h.networks.Release(s) }, s.Queued}, nil
}

// newForkServer makes the additional state of a fork server.
func newForkServer(program *os.File, spec *Spec) (*forkServer, error) {
	// The namespaces of a fork end a little after the fork, so allow twice as many.
	file, err := newUserns(program, spec.User.HostBase, 2*spec.Forks+16)
	if err != nil {
		return nil, fmt.Errorf("fork server of tenant %s: %w", spec.User.Tenant, err)
	}
	return &forkServer{userns: file, base: spec.User.HostBase, max: spec.Forks}, nil
}
