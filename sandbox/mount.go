package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// attr returns the MOUNT_ATTR_ flags of m.
func (m *Mount) attr() uint64 {
	attr := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if !m.Writable {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	return attr
}

// clone returns an fd of a detached mount of m's source.
func (m *Mount) clone(attr uint64, userns *os.File) (int, error) {
	if !m.Mapped {
		userns = nil
	}
	return cloneMapped(m.Source, attr, userns)
}

// cloneTree returns an fd of a detached, private bind mount of path with the given MOUNT_ATTR_
// flags. The mount disappears with its last fd unless attached.
func cloneTree(path string, attr uint64) (int, error) { return cloneMapped(path, attr, nil) }

// cloneMapped is cloneTree with the owners of files mapped by userns, unless nil.
func cloneMapped(path string, attr uint64, userns *os.File) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("open_tree %s: %w", path, err)
	}
	set := &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}
	if userns != nil {
		set.Attr_set |= unix.MOUNT_ATTR_IDMAP
		set.Userns_fd = uint64(userns.Fd())
	}
	if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, set); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mount_setattr %s: %w", path, err)
	}
	return fd, nil
}

// newMount returns an fd of a detached mount of a new file system. The mount disappears with
// its last fd unless attached.
func newMount(kind string, attr int, options ...[2]string) (int, error) {
	fd, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s (run fre doctor to check the kernel): %w", kind, err)
	}
	defer unix.Close(fd)
	for _, o := range options {
		if err := unix.FsconfigSetString(fd, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("%s %s=%s: %w", kind, o[0], o[1], kernelSays(fd, err))
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, fmt.Errorf("create %s: %w", kind, kernelSays(fd, err))
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return mount, nil
}

// kernelSays adds the kernel's message about a refused mount, if any (fsopen(2), "The message
// retrieval interface").
func kernelSays(fd int, err error) error {
	buf := make([]byte, 512)
	n, readErr := unix.Read(fd, buf)
	if readErr != nil || n <= 0 {
		return err
	}
	return fmt.Errorf("%q: %w", buf[:n], err)
}

// newTmp makes a sandbox's /tmp. owner, the host id of the tenant's root, owns the root
// directory.
func newTmp(bytes, inodes int64, owner uint32) (int, error) {
	id := strconv.FormatUint(uint64(owner), 10)
	return newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		[2]string{"size", strconv.FormatInt(bytes, 10)},
		[2]string{"nr_inodes", strconv.FormatInt(inodes, 10)},
		[2]string{"mode", "1777"}, [2]string{"uid", id}, [2]string{"gid", id})
}

// makeDev mounts on dir, which makeDev creates, the /dev of all sandboxes. Each sandbox gets a
// read-only clone.
func makeDev(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fd, err := newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"size", "64k"}, [2]string{"nr_inodes", "32"}, [2]string{"mode", "0755"})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{
		{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
	} {
		if err := unix.Mknodat(fd, d.name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("mknod %s: %w", d.name, err)
		}
		if err := unix.Fchmodat(fd, d.name, 0o666, 0); err != nil { // whatever the umask
			return fmt.Errorf("chmod %s: %w", d.name, err)
		}
	}
	// Empty: some software only tests for the directory.
	if err := errors.Join(unix.Mkdirat(fd, "pts", 0o755), unix.Fchmodat(fd, "pts", 0o755, 0)); err != nil {
		return fmt.Errorf("mkdir pts: %w", err)
	}
	for _, l := range [][2]string{
		{"/proc/self/fd", "fd"},
		{"/proc/self/fd/0", "stdin"},
		{"/proc/self/fd/1", "stdout"},
		{"/proc/self/fd/2", "stderr"},
		{"/tmp", "shm"},
	} {
		if err := unix.Symlinkat(l[0], fd, l[1]); err != nil {
			return fmt.Errorf("symlink %s: %w", l[1], err)
		}
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// removeMounts removes a mount point and all mounts on it.
func removeMounts(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// devDir returns the mount point of the shared /dev in the host's directory.
func devDir(dir string) string { return filepath.Join(dir, "dev") }

// mountAttr removes from the attributes of a mount the defences in spec.Without.
func (spec *Spec) mountAttr(attr uint64) uint64 {
	if spec.Without&DefenceNoSuid != 0 {
		attr &^= unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	}
	if spec.Without&DefenceReadOnlyRoot != 0 {
		attr &^= unix.MOUNT_ATTR_RDONLY
	}
	return attr
}

func closing(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
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

// sizeOf reads the usage of a tmpfs from an fd of its mount.
func sizeOf(mount int) (Size, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(mount, &st); err != nil {
		return Size{}, fmt.Errorf("statfs: %w", err)
	}
	return Size{Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Inodes: int64(st.Files - st.Ffree)}, nil
}

// Size is the usage of a sandbox's file systems in memory. Size counts blocks in use, not the
// lengths of files.
type Size struct {
	Bytes  int64
	Inodes int64 // files and directories
}
