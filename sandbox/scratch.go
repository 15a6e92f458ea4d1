package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// scratchLayer is the layer of a Scratch in memory.
type scratchLayer struct {
	fd     int   // mount of the layer
	inodes int64 // in use at the start
}

// scratchRoot returns an fd of a detached overlay of spec's scratch over Rootfs. The root
// directory belongs to base, the host id of the sandbox's root, and has the mount points of
// mounts, /proc and /sys. The caller closes root and layer; layer is nil with Scratch.Dir.
//
//	Rootfs                  → lower   read-only, owners mapped by userns
//	tmpfs, or Scratch.Dir   → upper, work
//
// scratchRoot sets every option that would otherwise depend on the kernel's build or on a
// parameter of the module:
//   - redirect_dir=on: directories of the image can be renamed, as on other file systems; without
//     this option rename fails with EXDEV;
//   - metacopy=off: every written file is complete in the layer;
//   - index=off: equal files of the store are hard links of each other, and a write to one must not
//     change the others;
//   - nfs_export=off: on would need the index;
//   - xino=auto: any value affects only the device and inode that stat(2) reports for a file.
func (l *layers) scratchRoot(spec *Spec, mounts []Mount, userns *os.File, base uint32) (root int, layer *scratchLayer, err error) {
	root = -1
	var held []int // layers, which the overlay keeps alive
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
	err = l.attached(detached, func() (err error) {
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

// open opens the directory for the layer: the root of a new tmpfs, or Dir.
func (s *Scratch) open() (int, error) {
	if s.Dir == "" {
		return newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
			[2]string{"size", strconv.FormatInt(s.Bytes, 10)},
			[2]string{"nr_inodes", strconv.FormatInt(s.Inodes, 10)},
			[2]string{"mode", "0700"})
	}
	fd, err := unix.Openat(unix.AT_FDCWD, s.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", s.Dir, err)
	}
	return fd, nil
}

// prepareRoot makes the mount points and the working directory in a writable root.
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

// layers is the place to mount an overlay's layers while the overlay is made: before Linux 6.13
// no layer may lie in a detached mount.
type layers struct {
	dir string // mount point for one overlay's layers at a time
	mu  sync.Mutex
}

// attached runs f while the detached mounts are attached to l.dir, one over the other; their fds
// still name each mount. umount(2) always removes the uppermost mount, so only one call runs at
// a time.
func (l *layers) attached(mounts []int, f func() error) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fd := range mounts {
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, l.dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount layer: %w", err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(l.dir, unix.MNT_DETACH)) }()
	}
	return f()
}

// size returns the usage of the layer since the start.
func (l *scratchLayer) size() (Size, error) {
	size, err := sizeOf(l.fd)
	size.Inodes = max(size.Inodes-l.inodes, 0)
	return size, err
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// layersDir returns the temporary mount point for layers in the host's directory.
func layersDir(dir string) string { return filepath.Join(dir, "layers") }

// makeLayer makes the two directories of an overlay's writable layer below the directory fd,
// unless they exist. The overlay's root shows owner and mode of the upper directory, so that
// directory gets its final name after owner and mode are set.
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

// makeTarget makes a mount point below the directory root, unless the mount point exists.
// makeTarget removes a symbolic link in its place, which an earlier sandbox may have left in
// the layer, and refuses a symbolic link on the way. The engine never leaves root, whatever the
// layer contains.
func makeTarget(root int, name string, file bool) error {
	dir, base := path.Split(path.Clean(name)[1:])
	at, err := makeDirs(root, path.Clean(dir))
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if exists, err := haveTarget(at, base, file); err != nil || exists {
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

// haveTarget reports whether base is a mount point of the kind, and removes anything else but a
// directory.
func haveTarget(at int, base string, file bool) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case (kind == unix.S_IFDIR) == !file && kind != unix.S_IFLNK:
		return true, nil
	case kind == unix.S_IFDIR:
		return false, unix.EISDIR
	}
	return false, unix.Unlinkat(at, base, 0)
}

// makeDir makes a sandbox's working directory, owned by its user, unless the name exists. If
// the name is no directory, the start fails later.
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

// makeDirs opens a directory below root, and makes missing directories on the way. The caller
// closes the fd.
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
