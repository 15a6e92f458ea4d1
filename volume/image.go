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

// imageMount is an attached Image volume: an ext4 somewhat larger than its limit,
// and in it, beside the data, a file that holds what is too much, the balloon. It
// makes the limit exact, and lets it be lowered while the volume is in use. The
// balloon's blocks are never written, so that they take nothing on the host.
type imageMount struct {
	m      *Manager
	path   string
	device string // the loop device

	mu      sync.Mutex
	gone    bool  // no mount any more: path is the host's directory
	size    int64 // of the file system
	limits  Limits
	balloon int64 // bytes of disk blocks
	short   bool  // the balloon is too small: more is in use than the limit
}

const (
	blockSize = 4096

	// What an empty ext4 made by mkfs holds beside the data: the root, lost+found
	// (4 blocks), that of the resize inode; ten reserved inodes, of which the root is
	// one, the balloon and lost+found.
	ownBytes  = 6 * blockSize
	ownInodes = 12

	inodeSize   = 256
	journalMiB  = 4
	imageSpare  = 32 << 20 // reserved clusters (16 MiB at most), journal, group descriptors
	lockWithin  = 10 * time.Second
	lockRetries = 10 * time.Millisecond
)

// features are those of an ext4 of today, whatever the host's mke2fs.conf says.
const features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

func imageFile(path string) string   { return path + ".img" }
func stagedImage(path string) string { return path + ".img.new" }

// staging is where the directory lies, as data/, while it becomes an image.
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

// imageSize is how large the file system must be for the limits to fit.
func imageSize(l Limits) int64 {
	size := l.Bytes + l.Bytes/32 + l.Inodes*inodeSize + imageSpare
	return (size + blockSize - 1) / blockSize * blockSize
}

// makeImage makes the image of a volume out of the directory that stands there,
// if one does. Until the image has its name the directory is what counts,
// afterwards the image: recoverImage puts right what lies between.
func (m *Manager) makeImage(path string, l Limits) error {
	if err := makeDir(path); err != nil {
		return err
	}
	had, err := Walk(context.Background(), path)
	if err != nil {
		return err
	}
	if had.Inodes > 1 {
		m.log.Info("moving a directory into an image, since it gets a limit", "path", path, "bytes", had.Bytes, "inodes", had.Inodes)
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
		inodes = max(inodes, size/inodeBytes) // enough however much it grows
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

// recoverImage ends what makeImage has begun, or undoes it.
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

// mkfs makes a durable image of the files in dir. Nothing but what describes them
// is written: inode tables stay holes (a new sparse file is zero everywhere).
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
	if err := makeDir(path); err != nil { // the mount point, private beneath
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
	defer func() { _ = device.Close() }() // the mount keeps it; without one it goes
	if err := m.failpoint("image looped"); err != nil {
		return nil, err
	}
	// discard gives blocks back to the host; noinit_itable keeps inode tables
	// holes.
	const options = "discard,noinit_itable,errors=remount-ro"
	if err := unix.Mount(device.Name(), path, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, options); err != nil {
		return nil, fmt.Errorf("mount %s, which e2fsck may repair: %w", imageFile(path), err)
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

// lockImage opens an image and takes an flock that lasts as long as the loop
// device does, which has the same open file: a file system that is mounted twice
// is lost. An engine that was killed keeps its mounts for a moment longer.
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
			return nil, fmt.Errorf("%s is in use: something has files of it open, or another engine does (losetup -j tells): %w", path, err)
		}
		<-tick.C
	}
}

// loop attaches a file to a free loop device, which detaches itself when it is
// closed and not mounted.
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

// detach unmounts; the loop device goes with the last mount, which sandboxes may
// have.
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

// move gives an image that is mounted, and that nobody uses yet, a path where there is
// nothing. It is undone unless all of it is done.
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
		err = i.fitLocked() // what was freed must not be used again
	}
	return u, err
}

// countLocked returns what the data takes and the bytes that are free.
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
		l.Bytes = 1 << 62 // all that the image has
	} else if err := i.growLocked(l); err != nil {
		return err
	}
	i.limits = l
	return i.fitLocked()
}

// growLocked makes the file system larger, mounted as it is, if it is too small
// for the limits.
func (i *imageMount) growLocked(l Limits) error {
	var st unix.Statfs_t
	if err := unix.Statfs(i.path, &st); err != nil {
		return err
	}
	size := sizeFor(l, i.size, int64(st.Files))
	if size <= i.size {
		return nil
	}
	// The file first: if the rest fails, it is sparse.
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
		return fmt.Errorf("%w: while it is in use that takes CAP_SYS_RESOURCE: detach it first", err)
	}
	if err == nil {
		i.size = size
	}
	return err
}

// sizeFor is how large a file system of so many bytes and inodes has to be for
// the limits. Each block group has the same number of inodes.
func sizeFor(l Limits, size, inodes int64) int64 {
	const group = 8 * blockSize * blockSize
	want := imageSize(l)
	if need := l.Inodes + ownInodes; need > inodes {
		perGroup := max(inodes/((size+group-1)/group), 1)
		want = max(want, (need+perGroup-1)/perGroup*group)
	}
	return want
}

// prepareImage has the file system in an image that is not mounted checked if it
// had errors or was not unmounted, makes it large enough for the limits and returns
// its size.
func prepareImage(image *os.File, l Limits) (int64, error) {
	var super [0x154]byte // struct ext4_super_block
	if _, err := image.ReadAt(super[:], 1024); err != nil {
		return 0, fmt.Errorf("read superblock: %w", err)
	}
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(super[at:])) }
	inodes, size := u32(0), (u32(4)|u32(0x150)<<32)*blockSize
	if inodes <= 0 || size <= 0 || binary.LittleEndian.Uint16(super[0x38:]) != unix.EXT4_SUPER_MAGIC {
		return 0, errors.New("not an ext4: restore it, or remove it with all that was in it")
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
	// 1: errors were corrected, such as a journal to be replayed.
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
	ext4Errors  = 2 // EXT4_ERROR_FS, in the state: the kernel met an error, such as a host without room
	ext4Recover = 4 // EXT4_FEATURE_INCOMPAT_RECOVER: it was not unmounted; the journal may say the same
)

// e2fs runs one of e2fsprogs.
func e2fs(name string, args ...string) error {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "MKE2FS_CONFIG=/dev/null", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.500s", name, err, out)
	}
	return nil
}

// fitLocked gives the balloon the size that leaves as much free as the limit
// does. Its extents take some blocks too, so it looks again.
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
		if err != nil && !errors.Is(err, unix.ENOSPC) { // then it has all there is
			return fmt.Errorf("fit balloon of %s: %w", imageFile(i.path), err)
		}
		if err := i.measure(balloon); err != nil {
			return err
		}
	}
	return nil
}
