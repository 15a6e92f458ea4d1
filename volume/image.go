package volume

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// imageMount is an attached Image volume: an ext4 somewhat larger than the limit. Beside the
// data it holds a file, the balloon, that takes the excess space. The balloon makes the limit
// exact, and the limit can go down while the volume is in use. The balloon's blocks are never
// written, so they take no space on the host.
type imageMount struct {
	m      *Manager
	path   string
	device string // the loop device

	mu      sync.Mutex
	gone    bool  // not mounted any more: path is a directory of the host
	size    int64 // of the file system
	limits  Limits
	balloon int64 // bytes of disk blocks
	short   bool  // the balloon is too small, because the use exceeds the limit
}

const (
	blockSize = 4096

	// The own use of an empty ext4 from mkfs. Blocks: root, lost+found (4), resize inode.
	// Inodes: ten reserved, including the root, plus balloon and lost+found.
	ownBytes  = 6 * blockSize
	ownInodes = 12

	inodeSize   = 256
	journalMiB  = 4
	imageSpare  = 32 << 20 // reserved clusters (16 MiB at most), journal, group descriptors
	lockWithin  = 10 * time.Second
	lockRetries = 10 * time.Millisecond
)

// features are the features of a current ext4, independent of the host's mke2fs.conf.
const features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

func imageFile(path string) string   { return path + ".img" }
func stagedImage(path string) string { return path + ".img.new" }

// staging is the place of the old directory, as data/, during its conversion to an image.
func staging(path string) string { return path + ".staged" }

func probeImages() error {
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return err
	}
	f, err := os.Open("/dev/loop-control")
	if err != nil {
		return err
	}
	return f.Close()
}

// imageSize returns the size of a file system that fits the limits.
func imageSize(l Limits) int64 {
	size := l.Bytes + l.Bytes/32 + l.Inodes*inodeSize + imageSpare
	return (size + blockSize - 1) / blockSize * blockSize
}

// makeImage makes the image of a volume from the existing directory, if any. Until the rename of
// the image the directory is valid, afterwards the image. recoverImage cleans up after a crash
// in between.
func (m *Manager) makeImage(path string, l Limits) error {
	if err := makeDir(path); err != nil {
		return err
	}
	had, err := Walk(context.Background(), path)
	if err != nil {
		return err
	}
	if had.Inodes > 1 {
		m.log.Info("moving a directory with a new limit into an image", "path", path, "bytes", had.Bytes, "inodes", had.Inodes)
	}
	if err := os.Mkdir(staging(path), 0o700); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(staging(path), "data")); err != nil {
		return err
	}
	if err := m.failpoint("image staged"); err != nil {
		return err
	}
	least := l.withDefaults()
	least = Limits{Bytes: max(least.Bytes, had.Bytes), Inodes: max(least.Inodes, had.Inodes)}
	size, inodes := imageSize(least), least.Inodes
	if l.Inodes == 0 {
		inodes = max(inodes, size/inodeBytes) // enough inodes, however large the image grows
	}
	inodes += ownInodes
	if err := mkfs(stagedImage(path), staging(path), size, inodes); err != nil {
		// The next attempt starts from the directory again.
		return errors.Join(err, recoverImage(path))
	}
	if err := m.failpoint("image made"); err != nil {
		return err
	}
	if err := os.Rename(stagedImage(path), imageFile(path)); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return err
	}
	if err := m.failpoint("image named"); err != nil {
		return err
	}
	return recoverImage(path)
}

// recoverImage completes or undoes an interrupted makeImage.
func recoverImage(path string) error {
	if err := os.Remove(stagedImage(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := os.Lstat(imageFile(path))
	if errors.Is(err, fs.ErrNotExist) { // undo
		if err = os.Rename(filepath.Join(staging(path), "data"), path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return linux.RemoveAll(staging(path))
}

// mkfs makes a durable image with the files in dir. Inode tables are not written but stay holes,
// because a new sparse file reads as zeros.
func mkfs(image, dir string, size, inodes int64) error {
	f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	err = e2fs("mkfs.ext4", "-q", "-F", "-O", features, "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-m", "0",
		"-N", strconv.FormatInt(inodes, 10), "-J", "size="+strconv.Itoa(journalMiB),
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", "-d", dir, image)
	if err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (m *Manager) attachImage(path string, l Limits) (_ backing, err error) {
	// The mount point is private beneath the mount.
	if err := makeDir(path); err != nil {
		return nil, err
	}
	file, err := lockImage(imageFile(path), m.lockWithin)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := prepareImage(file, l.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", imageFile(path), err)
	}
	device, err := loop(file)
	if err != nil {
		return nil, fmt.Errorf("loop device of %s: %w", imageFile(path), err)
	}
	// A mount keeps the device; without a mount the device detaches itself.
	defer func() { _ = device.Close() }()
	if err := m.failpoint("image looped"); err != nil {
		return nil, err
	}
	// discard gives blocks back to the host; noinit_itable keeps inode tables holes.
	const options = "discard,noinit_itable,errors=remount-ro"
	if err := unix.Mount(device.Name(), path, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, options); err != nil {
		return nil, fmt.Errorf("mount %s (e2fsck may repair the image): %w", imageFile(path), err)
	}
	i := &imageMount{m: m, path: path, device: device.Name(), size: size}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.detach())
		}
	}()
	if err := m.failpoint("image mounted"); err != nil {
		return nil, err
	}
	balloon, err := i.openBalloon()
	if err != nil {
		return nil, err
	}
	defer balloon.Close()
	return i, i.measure(balloon)
}

// lockImage opens an image and takes an flock. The loop device shares the open file, so the
// flock lasts as long as the device: mounting a file system twice would destroy it. lockImage
// waits for up to within, because the mounts of a killed engine last a moment longer.
func lockImage(path string, within time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(within)
	tick := time.NewTicker(lockRetries)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			_ = f.Close()
			return nil, fmt.Errorf("%s is in use by a process with open files, or by another engine (see losetup -j): %w", path, err)
		}
		<-tick.C
	}
}

// loop attaches a file to a free loop device. The device detaches itself once it is closed and
// not mounted.
func loop(file *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 1000 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		cfg := &unix.LoopConfig{Fd: uint32(file.Fd())}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], file.Name())
		err = unix.IoctlLoopConfigure(int(device.Fd()), cfg)
		if err == nil {
			return device, nil
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) { // another program was faster
			return nil, err
		}
	}
	return nil, unix.EBUSY
}

func (i *imageMount) kind() Kind  { return Image }
func (i *imageMount) dir() string { return filepath.Join(i.path, "data") }

// detach unmounts the image. The loop device goes with the last mount; sandboxes may hold
// mounts.
func (i *imageMount) detach() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone = true
	err := unix.Unmount(i.path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(i.path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	return err
}

// move moves a mounted image, which is not in use yet, to an unused path. If the mount or the
// image file cannot move, move undoes its steps.
func (i *imageMount) move(path string) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	old := i.path
	if err := unix.MoveMount(unix.AT_FDCWD, old, unix.AT_FDCWD, path, 0); err != nil {
		return errors.Join(fmt.Errorf("move mount: %w", err), os.Remove(path))
	}
	if err = i.m.failpoint("prepared moved"); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, imageFile(old), unix.AT_FDCWD, imageFile(path), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, unix.MoveMount(unix.AT_FDCWD, path, unix.AT_FDCWD, old, 0), os.Remove(path))
	}
	i.path = path
	return errors.Join(syncDir(filepath.Dir(path)), os.Remove(old))
}

func (i *imageMount) openBalloon() (*os.File, error) {
	return os.OpenFile(filepath.Join(i.path, "balloon"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

func (i *imageMount) measure(balloon *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(balloon.Fd()), &st); err != nil {
		return err
	}
	i.balloon = st.Blocks * 512
	return nil
}

func (i *imageMount) usage() (Usage, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.gone {
		return Usage{}, fs.ErrClosed
	}
	u, _, err := i.countLocked()
	if err == nil && i.short {
		err = i.fitLocked() // do not let the data reuse freed space
	}
	return u, err
}

// countLocked returns the use of the data and the free bytes.
func (i *imageMount) countLocked() (Usage, int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(i.path, &st); err != nil {
		return Usage{}, 0, err
	}
	return Usage{
		Bytes:  int64(st.Blocks-st.Bfree)*st.Bsize - i.balloon - ownBytes,
		Inodes: int64(st.Files-st.Ffree) - ownInodes,
		AsOf:   time.Now(),
	}, int64(st.Bavail) * st.Bsize, nil
}

func (i *imageMount) setLimits(l Limits) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !l.limited() {
		l.Bytes = 1 << 62 // the whole image
	} else if err := i.growLocked(l); err != nil {
		return err
	}
	i.limits = l
	return i.fitLocked()
}

// growLocked enlarges the mounted file system if it is too small for the limits.
func (i *imageMount) growLocked(l Limits) error {
	var st unix.Statfs_t
	if err := unix.Statfs(i.path, &st); err != nil {
		return err
	}
	size := sizeFor(l, i.size, int64(st.Files))
	if size <= i.size {
		return nil
	}
	// Enlarge the file first: if the rest fails, the file is just sparse.
	if err := os.Truncate(imageFile(i.path), size); err != nil {
		return err
	}
	device, err := os.OpenFile(i.device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("grow %s: %w", i.device, err)
	}
	dir, err := os.Open(i.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = linux.ResizeExt4(int(dir.Fd()), uint64(size/blockSize))
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: changing a volume in use needs CAP_SYS_RESOURCE: detach the volume first", err)
	}
	if err == nil {
		i.size = size
	}
	return err
}

// sizeFor returns the size that a file system of size bytes and so many inodes needs for the
// limits. Each block group has the same number of inodes.
func sizeFor(l Limits, size, inodes int64) int64 {
	const group = 8 * blockSize * blockSize
	want := imageSize(l)
	if need := l.Inodes + ownInodes; need > inodes {
		perGroup := max(inodes/((size+group-1)/group), 1)
		want = max(want, (need+perGroup-1)/perGroup*group)
	}
	return want
}

// prepareImage checks the file system of an unmounted image if it had errors or was not
// unmounted, enlarges it for the limits if needed, and returns its size.
func prepareImage(image *os.File, l Limits) (int64, error) {
	var super [0x154]byte // struct ext4_super_block
	if _, err := image.ReadAt(super[:], 1024); err != nil {
		return 0, fmt.Errorf("read superblock: %w", err)
	}
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(super[at:])) }
	inodes, size := u32(0), (u32(4)|u32(0x150)<<32)*blockSize
	if inodes <= 0 || size <= 0 || binary.LittleEndian.Uint16(super[0x38:]) != unix.EXT4_SUPER_MAGIC {
		return 0, errors.New("not an ext4: restore the image from a backup, or remove the image with all its files")
	}
	want := sizeFor(l, size, inodes)
	grow := l.limited() && want > size
	if sound := u32(0x3a)&ext4Errors == 0 && u32(0x60)&ext4Recover == 0; sound && !grow {
		return size, nil
	}
	if grow {
		if err := image.Truncate(want); err != nil {
			return 0, err
		}
	}
	// Exit code 1: e2fsck corrected errors, or replayed a journal.
	var exit *exec.ExitError
	if err := e2fs("e2fsck", "-f", "-p", image.Name()); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return 0, err
	}
	if !grow {
		return size, nil
	}
	return want, e2fs("resize2fs", image.Name())
}

const (
	ext4Errors  = 2 // EXT4_ERROR_FS, in the state: the kernel met an error, such as a full host
	ext4Recover = 4 // EXT4_FEATURE_INCOMPAT_RECOVER: not unmounted; the journal may also hold an error
)

// e2fs runs a program of e2fsprogs.
func e2fs(name string, args ...string) error {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "MKE2FS_CONFIG=/dev/null", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.500s", name, err, out)
	}
	return nil
}

// fitLocked resizes the balloon so that exactly the rest of the limit is free. The balloon's
// extents take blocks too, so fitLocked repeats the count.
func (i *imageMount) fitLocked() error {
	balloon, err := i.openBalloon()
	if err != nil {
		return err
	}
	defer balloon.Close()
	for range 4 {
		u, free, err := i.countLocked()
		if err != nil {
			return err
		}
		left := max(i.limits.Bytes-u.Bytes, 0)
		more := (free - left) / blockSize * blockSize
		i.short = u.Bytes > i.limits.Bytes
		info, err := balloon.Stat()
		if err != nil {
			return err
		}
		size := max(info.Size()+more, 0)
		if size == info.Size() {
			return nil
		}
		if more < 0 {
			err = balloon.Truncate(size)
		} else {
			err = unix.Fallocate(int(balloon.Fd()), 0, info.Size(), more)
		}
		if err != nil && !errors.Is(err, unix.ENOSPC) { // ENOSPC: the balloon has all free space
			return fmt.Errorf("fit balloon of %s: %w", imageFile(i.path), err)
		}
		if err := i.measure(balloon); err != nil {
			return err
		}
	}
	return nil
}
