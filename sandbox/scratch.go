package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Scratch makes a sandbox's root writable: what is written lies in a layer of the
// sandbox's own over Rootfs (overlayfs), which stays as it is. The files of Rootfs
// have the owners they have on disk, as ids inside.
//
// The layer costs the kernel about 0.7 MiB more than a read-only root does.
type Scratch struct {
	// A layer in memory, that of the sandbox itself (Limits.MemoryBytes), and gone
	// with it. Its limits: default 64 MiB, and an inode for each 4 KiB of that.
	Bytes, Inodes int64

	// ReadOnly shows the root with its owners and takes no writes.
	ReadOnly bool

	// Dir keeps the layer in a host directory of the caller's instead, which one
	// sandbox at a time may use and the next finds as the last left it. It limits
	// nothing: the directory's own file system does. What lies in it belongs to the
	// host ids of the user namespace.
	Dir string
}

// scratchLayer is what a sandbox holds of a scratch in memory.
type scratchLayer struct {
	fd     int   // its mount
	inodes int64 // in use at the start
}

func (s *Scratch) setDefaults() {
	s.Bytes = cmp.Or(s.Bytes, 64<<20)
	s.Inodes = cmp.Or(s.Inodes, max(s.Bytes/4096, 1024))
}

// check refuses what cannot be meant.
func (s *Scratch) check() error {
	switch {
	case s.Bytes < 0 || s.Inodes < 0:
		return fmt.Errorf("sandbox scratch of %d bytes and %d inodes: %w", s.Bytes, s.Inodes, unix.EINVAL)
	case s.Dir != "" && !filepath.IsAbs(s.Dir):
		return fmt.Errorf("sandbox scratch directory %q is not absolute: %w", s.Dir, unix.EINVAL)
	}
	return nil
}

// scratchRoot returns an fd of a detached overlay of spec's scratch over its root,
// whose root directory belongs to base, the host id of the sandbox's root, and which
// has the mount points of mounts and of /proc, and a /sys. layer, nil with
// Scratch.Dir, is the caller's to close too.
//
//	Rootfs                  → lower   read-only, owners mapped by userns
//	tmpfs, or Scratch.Dir   → upper, work
//
// Each option that the kernel's build or a module's parameter has a say in is
// given:
//   - redirect_dir=on: a directory of the image can be renamed, as on any other
//     file system, which without it fails with EXDEV;
//   - metacopy=off: what was written is whole in the layer;
//   - index=off: files of the store are links of each other where they are the
//     same, and to write to one must not write to all;
//   - nfs_export=off, xino=auto: they want the index, and change only what
//     stat(2) says of a file's device.
func (h *Host) scratchRoot(spec *Spec, mounts []Mount, userns *os.File, base uint32) (root int, layer *scratchLayer, err error) {
	root = -1
	var held []int // layers, which the overlay holds too
	defer func() {
		if err != nil {
			if root >= 0 {
				held = append(held, root)
			}
			root, layer, err = -1, nil, fmt.Errorf("make root writable: %w", err)
		}
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	lower, err := cloneMapped(spec.Rootfs, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_RDONLY, userns)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("the file system of the images cannot be mounted with mapped owners, which needs Linux 5.19 and ext4, xfs or btrfs (fre doctor): %w", err)
	}
	if err != nil {
		return root, nil, err
	}
	held = append(held, lower)
	upper, err := spec.Scratch.open()
	if err != nil {
		return root, nil, err
	}
	held = append(held, upper)
	if err := makeLayer(upper, int(base)); err != nil {
		return root, nil, err
	}
	detached := []int{lower}
	if spec.Scratch.Dir == "" {
		detached = append(detached, upper)
	}
	err = h.layers.attached(layersDir(h.cfg.Dir), detached, func() (err error) {
		root, err = newMount("overlay", int(spec.mountAttr(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)),
			[2]string{"source", "fre"},
			[2]string{"lowerdir", procFD(lower)},
			[2]string{"upperdir", procFD(upper) + "/upper"},
			[2]string{"workdir", procFD(upper) + "/work"},
			[2]string{"redirect_dir", "on"}, [2]string{"metacopy", "off"}, [2]string{"index", "off"},
			[2]string{"nfs_export", "off"}, [2]string{"xino", "auto"})
		return err
	})
	if err != nil {
		return root, nil, err
	}
	if err := spec.prepareRoot(root, mounts, base); err != nil || spec.Scratch.Dir != "" {
		return root, nil, err
	}
	size, err := sizeOf(upper)
	if err != nil {
		return root, nil, err
	}
	held = []int{lower}
	return root, &scratchLayer{fd: upper, inodes: size.Inodes}, nil
}

// open opens what the layer lies in: a new tmpfs, or Dir.
func (s *Scratch) open() (int, error) {
	if s.Dir == "" {
		return newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
			[2]string{"size", strconv.FormatInt(s.Bytes, 10)},
			[2]string{"nr_inodes", strconv.FormatInt(s.Inodes, 10)},
			[2]string{"mode", "0700"})
	}
	fd, err := unix.Open(s.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", s.Dir, err)
	}
	return fd, nil
}

// prepareRoot makes what a start needs in a writable root: the mount points and the
// working directory.
func (spec *Spec) prepareRoot(root int, mounts []Mount, base uint32) error {
	for _, m := range append([]Mount{{Target: "/proc"}, {Target: "/sys"}}, mounts...) {
		st, err := os.Stat(m.Source)
		if err := makeTarget(root, m.Target, err == nil && !st.IsDir()); err != nil {
			return fmt.Errorf("make mount point %s: %w", m.Target, err)
		}
	}
	if err := makeDir(root, spec.Dir, int(base+spec.User.UID), int(base+spec.User.GID)); err != nil {
		return fmt.Errorf("make working directory %s: %w", spec.Dir, err)
	}
	if !spec.Scratch.ReadOnly {
		return nil
	}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make root read-only: %w", err)
	}
	return nil
}

// layers is where the layers of an overlay are mounted while it is made: before
// Linux 6.13 none may lie in a mount that is attached nowhere.
type layers struct{ mu sync.Mutex }

// attached runs f while mounts, detached ones, are attached to dir, one over the
// other: their fds still name each. umount(2) takes the uppermost whichever is
// named, so that it is one at a time.
func (l *layers) attached(dir string, mounts []int, f func() error) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fd := range mounts {
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount layer: %w", err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	}
	return f()
}

// size is what the layer holds, without what it began with.
func (l *scratchLayer) size() (Size, error) {
	size, err := sizeOf(l.fd)
	size.Inodes = max(size.Inodes-l.inodes, 0)
	return size, err
}

// sizeOf reads what a tmpfs holds from an fd of its mount.
func sizeOf(mount int) (Size, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(mount, &st); err != nil {
		return Size{}, fmt.Errorf("statfs: %w", err)
	}
	return Size{Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Inodes: int64(st.Files - st.Ffree)}, nil
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// layersDir is where in the host's directory layers are mounted for a moment.
func layersDir(dir string) string { return filepath.Join(dir, "layers") }

// makeLayer makes the two directories of an overlay's writable layer below the
// directory fd, unless they are there. The root shows the upper one's owner and
// mode, so that it has its name once it has those.
func makeLayer(fd, owner int) error {
	const upper, staged = "upper", "upper.new"
	var st unix.Stat_t
	if unix.Fstatat(fd, upper, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	for _, name := range []string{"work", staged} {
		if err := unix.Mkdirat(fd, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make scratch: %w", err)
		}
	}
	err := errors.Join(unix.Fchownat(fd, staged, owner, owner, unix.AT_SYMLINK_NOFOLLOW), unix.Fchmodat(fd, staged, 0o755, 0))
	if err == nil {
		err = unix.Renameat(fd, staged, fd, upper)
	}
	if err != nil {
		return fmt.Errorf("make scratch: %w", err)
	}
	return nil
}

// makeTarget makes a mount point below the directory root, unless it is there. A
// symbolic link in its place, which a sandbox before may have left in the layer,
// makes way; one on the way there is refused. Whatever is there, the engine never
// leaves root.
func makeTarget(root int, name string, file bool) error {
	dir, base := path.Split(path.Clean(name)[1:])
	at, err := makeDirs(root, path.Clean(dir))
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	err = unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	kind := st.Mode & unix.S_IFMT
	switch {
	case err == nil && (kind == unix.S_IFDIR) == !file && kind != unix.S_IFLNK:
		return nil
	case err == nil && kind == unix.S_IFDIR:
		return unix.EISDIR
	case err == nil:
		if err := unix.Unlinkat(at, base, 0); err != nil {
			return err
		}
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	if !file {
		return unix.Mkdirat(at, base, 0o755)
	}
	fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// makeDir makes a sandbox's working directory, of its user, unless there is
// something: what that is, the start tells.
func makeDir(root int, name string, uid, gid int) error {
	name = path.Clean(name)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return nil
	}
	if fd, err = makeDirs(root, name[1:]); err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
}

// makeDirs opens a directory below root and makes what is missing on the way. The
// caller closes it.
func makeDirs(root int, name string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(root, name, how)
	if !errors.Is(err, unix.ENOENT) || name == "." {
		return fd, err
	}
	parent, err := makeDirs(root, path.Dir(name))
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, path.Base(name), 0o755); err != nil {
		return -1, err
	}
	return unix.Openat2(root, name, how)
}
