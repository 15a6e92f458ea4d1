package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Adopt is [Writer.File] for a file of a sandbox's directory that from now on is only removed. f
// is open for reading, at its beginning. If a hard link is safe and possible, the file itself,
// with new owner, mode and mtime, becomes the store's object; otherwise Adopt copies it.
func (w *Writer) Adopt(path string, mode fs.FileMode, mtime time.Time, f *os.File) error {
	e := Entry{Path: path, Kind: KindFile, Mode: uint32(mode.Perm()), MTime: mtime.Unix(), UID: w.uid, GID: w.gid}
	if err := w.place(e); err != nil {
		return w.fail(err)
	}
	adopted, err := w.adopt(&e, f)
	if err != nil {
		return w.failFile(path, err)
	}
	if !adopted {
		return w.File(path, mode, mtime, f)
	}
	w.entries[path] = e
	return nil
}

// adopt tries to link f. It sets e's size and digest and makes sure the object exists. If
// adopted is false, f is at its beginning again.
func (w *Writer) adopt(e *Entry, f *os.File) (adopted bool, err error) {
	if ours, err := w.disk.takeOver(f); err != nil || !ours {
		return false, err
	}
	if e.Size, e.Digest, err = hashFile(f, w.buf); err != nil {
		return false, err
	}
	if e.Size == 0 || w.has(e.key()) {
		return true, nil
	}
	key, dir := e.key(), int(w.dir.Fd())
	// Link the open file, because its name may mean another file by now.
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), dir, key, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EMLINK) {
		_, err := f.Seek(0, io.SeekStart)
		return false, err
	}
	if err != nil {
		return false, err
	}
	w.staged[key] = true
	return true, setMeta(f, dir, key, e)
}

// takeOver makes root the owner of a file of another user. It reports whether no process can
// write to the file any more, under any name: a process with the file open for writing, or
// mapped, could. takeOver refuses files with extended attributes or with blocks beyond their
// end, and files of root, which may already be objects.
func (k *disk) takeOver(f *os.File) (ours bool, err error) {
	k.takingOver.Lock()
	defer k.takingOver.Unlock()
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if os.Geteuid() != 0 || st.Uid == 0 {
		return false, nil
	}
	if err := unix.Fchown(fd, 0, 0); err != nil {
		return false, err
	}
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return false, err
	}
	// fcntl(2): the kernel grants a read lease only if no process has the file open for writing.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false, nil // EAGAIN, or a file system without leases
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		return false, err
	}
	// The file can no longer change.
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	preallocated := st.Blocks*512 > st.Size+2*int64(st.Blksize) //nolint:unconvert // 32 bits on arm64
	return !preallocated && !hasXattrs(fd), nil
}

// hasXattrs reports extended attributes other than the label that SELinux gives every file.
func hasXattrs(fd int) bool {
	var buf [256]byte
	n, err := unix.Flistxattr(fd, buf[:])
	if errors.Is(err, unix.ENOTSUP) {
		return false
	}
	return err != nil || n > 0 && string(buf[:n]) != "security.selinux\x00"
}
