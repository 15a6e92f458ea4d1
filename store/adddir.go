package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrFileType: a device, fifo or socket, which no image may hold.
var ErrFileType = errors.New("not a regular file, directory or symlink")

// AddDir copies the contents of root to prefix ("" for the tree's root). Owners,
// extended attributes and set-id bits are left behind. Nothing in root is
// changed. It fails with ErrFileType at a device, fifo or socket.
func (w *Writer) AddDir(root *os.Root, prefix string) error {
	return w.fail(w.addDir(root, prefix, w.addFile))
}

// AddScratch is AddDir for a directory below [Store.MkdirScratch] whose files
// nobody writes any more and which its owner will only remove: files are taken
// over by a link, and change their owner, mode and mtime in place.
func (w *Writer) AddScratch(root *os.Root, prefix string) error {
	return w.fail(w.addDir(root, prefix, w.adoptFile))
}

type addFunc func(path string, f *os.File, info fs.FileInfo) error

// addDir goes down by one Root per level, so that every name is looked up in an
// open directory and none can lead out of it.
func (w *Writer) addDir(root *os.Root, prefix string, add addFunc) error {
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("read %s: %w", join(prefix, "."), err)
	}
	if prefix != "" {
		info, err := dir.Stat()
		if err == nil {
			err = w.Directory(prefix, info.Mode(), info.ModTime())
		}
		if err != nil {
			_ = dir.Close()
			return err
		}
	}
	list, err := dir.ReadDir(-1)
	_ = dir.Close()
	if err != nil {
		return fmt.Errorf("read %s: %w", join(prefix, "."), err)
	}
	for _, e := range list {
		if err := w.addEntry(root, e, join(prefix, e.Name()), add); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) addEntry(root *os.Root, e fs.DirEntry, path string, add addFunc) error {
	switch e.Type() {
	case fs.ModeDir:
		sub, err := root.OpenRoot(e.Name())
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer sub.Close()
		return w.addDir(sub, path, add)
	case fs.ModeSymlink:
		info, err := root.Lstat(e.Name())
		if err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		target, err := root.Readlink(e.Name())
		if err != nil {
			return fmt.Errorf("readlink %s: %w", path, err)
		}
		return w.Symlink(path, target, info.ModTime())
	case 0:
		// O_NONBLOCK: should a fifo have taken its place, do not wait for a writer.
		f, err := root.OpenFile(e.Name(), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		if info.Mode().IsRegular() {
			return add(path, f, info)
		}
	}
	return fmt.Errorf("%s: %w", path, ErrFileType)
}

func (w *Writer) addFile(path string, f *os.File, info fs.FileInfo) error {
	return w.File(path, info.Mode(), info.ModTime(), f)
}

// adoptFile takes the file itself where a link is as good as a copy: no other
// name through which it could be changed, no extended attributes, the same file
// system.
func (w *Writer) adoptFile(path string, f *os.File, info fs.FileInfo) error {
	var st unix.Stat_t
	fd := int(f.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Nlink != 1 || st.Size == 0 || hasXattrs(fd) {
		return w.addFile(path, f, info)
	}
	e := Entry{Path: path, Kind: KindFile, Mode: uint32(info.Mode().Perm()), MTime: info.ModTime().Unix(), UID: w.uid, GID: w.gid}
	if err := w.place(e); err != nil {
		return err
	}
	var err error
	if e.Size, e.Digest, err = hashFile(f, w.buf); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	key := e.key()
	if !w.has(key) {
		if err := w.adopt(f, key, &e); err != nil {
			if !errors.Is(err, unix.EXDEV) {
				return fmt.Errorf("adopt %s: %w", path, err)
			}
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
			return w.addFile(path, f, info)
		}
	}
	w.entries[path] = e
	return nil
}

// adopt links the open file itself, whatever its name means by now.
func (w *Writer) adopt(f *os.File, key string, e *Entry) error {
	fd, dir := int(f.Fd()), int(w.dir.Fd())
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), dir, key, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return err
	}
	w.staged[key] = true
	if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return setMeta(f, dir, key, e)
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
