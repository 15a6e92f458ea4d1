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

// Adopt is [Writer.File] for a file of a sandbox whose directory is only removed
// from now on: f, open for reading, at its begin. Where a link is as good as a copy
// the file itself becomes the store's, with the owner, mode and mtime it has there.
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

// adopt sets e's size and digest and makes sure that its object is there, or says
// that it did not and that f is at its begin still.
func (w *Writer) adopt(e *Entry, f *os.File) (adopted bool, err error) {
	if ours, err := w.s.takeOver(f); err != nil || !ours {
		return false, err
	}
	if e.Size, e.Digest, err = hashFile(f, w.buf); err != nil {
		return false, err
	}
	if e.Size == 0 || w.has(e.key()) {
		return true, nil
	}
	key, dir := e.key(), int(w.dir.Fd())
	// The open file, whatever its name means by now.
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

// takeOver makes root the owner of somebody else's file, and says whether nobody else
// can write to it any more, whatever names it has: who has it open for that, or maps
// it, could. A file with extended attributes or blocks beyond its end is not taken,
// and none of root's, which may be an object by now.
func (s *Store) takeOver(f *os.File) (ours bool, err error) {
	s.takingOver.Lock()
	defer s.takingOver.Unlock()
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
	// fcntl(2): a read lease is only given where nobody has the file open for writing.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false, nil // EAGAIN, or a file system without leases
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		return false, err
	}
	// What comes now stays as it is.
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	preallocated := st.Blocks*512 > st.Size+2*int64(st.Blksize) //nolint:unconvert // 32 bits on arm64
	return !preallocated && !hasXattrs(fd), nil
}

// hasXattrs reports attributes other than the label SELinux gives every file.
func hasXattrs(fd int) bool {
	var buf [256]byte
	n, err := unix.Flistxattr(fd, buf[:])
	if errors.Is(err, unix.ENOTSUP) {
		return false
	}
	return err != nil || n > 0 && string(buf[:n]) != "security.selinux\x00"
}
