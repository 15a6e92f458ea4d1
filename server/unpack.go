package server

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// unpack writes the tar stream r below dir: files, directories, symbolic links
// as they are, hard links between its own entries. Whatever would reach out
// of dir, appears twice, or is something else, is refused as a bad request, and
// so is an archive with more bytes or entries than allowed, counted unpacked.
// What was written before an error stays: the caller removes dir.
func unpack(dir *os.Root, r io.Reader, maxBytes int64, maxEntries int) error {
	u := unpacker{dir: dir, maxBytes: maxBytes, maxEntries: maxEntries, made: map[string]time.Time{}}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return tarError(err)
		}
		if err := u.entry(h, t); err != nil {
			return tarError(fmt.Errorf("tar: %s: %w", clip(h.Name), err))
		}
	}
	// Last, because each new entry touches its directory.
	for name, mtime := range u.made {
		if err := dir.Chtimes(name, mtime, mtime); err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
	return nil
}

type unpacker struct {
	dir        *os.Root
	maxBytes   int64
	maxEntries int
	bytes      int64
	entries    int
	made       map[string]time.Time // directories and the times they get
}

var errTarLimit = errors.New("archive is over the limit")

func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // git archive's comment
	}
	name, err := inside(h.Name)
	if err != nil {
		return err
	}
	mtime := time.Unix(h.ModTime.Unix(), 0)
	mode := fs.FileMode(h.Mode) & 0o777
	if h.Typeflag == tar.TypeDir {
		if err := u.mkdirs(name); err != nil {
			return err
		}
		u.made[name] = mtime
		return u.dir.Chmod(name, mode|0o700)
	}
	if name == "." {
		return errors.New("is not a directory")
	}
	if err := u.mkdirs(path.Dir(name)); err != nil {
		return err
	}
	if err := u.count(1, 0); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(name, mode|0o600, mtime, body)
	case tar.TypeSymlink:
		if err := u.dir.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return lchtime(u.dir, name, mtime)
	case tar.TypeLink:
		target, err := inside(h.Linkname)
		if err != nil {
			return err
		}
		return u.dir.Link(target, name)
	}
	return fmt.Errorf("is neither a file, a directory nor a link (type %q)", h.Typeflag)
}

func (u *unpacker) file(name string, mode fs.FileMode, mtime time.Time, body io.Reader) error {
	f, err := u.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// Not h.Size: a sparse entry may claim more than it holds.
	n, err := io.Copy(f, io.LimitReader(body, u.maxBytes-u.bytes+1))
	if err == nil {
		err = u.count(0, n)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return u.dir.Chtimes(name, mtime, mtime)
}

// mkdirs makes a directory and its parents. Those the archive does not name
// get the time 0, so that the same archive always gives the same tree.
func (u *unpacker) mkdirs(name string) error {
	if _, ok := u.made[name]; ok || name == "." {
		return nil
	}
	if err := u.mkdirs(path.Dir(name)); err != nil {
		return err
	}
	if err := u.count(1, 0); err != nil {
		return err
	}
	if err := u.dir.Mkdir(name, 0o755); err != nil {
		return err
	}
	u.made[name] = time.Unix(0, 0)
	return nil
}

func (u *unpacker) count(entries int, bytes int64) error {
	u.entries += entries
	u.bytes += bytes
	if u.entries > u.maxEntries {
		return fmt.Errorf("%w of %d files and directories", errTarLimit, u.maxEntries)
	}
	if u.bytes > u.maxBytes {
		return fmt.Errorf("%w of %d bytes", errTarLimit, u.maxBytes)
	}
	return nil
}

// inside returns the clean relative path of an entry, or why it has none.
func inside(name string) (string, error) {
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "", errors.New("malformed path")
	case path.IsAbs(name):
		return "", errors.New("absolute path")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.New("path with a .. element")
		}
	}
	return path.Clean(name), nil
}

// lchtime sets a symbolic link's own modification time: it is part of the
// tree's digest.
func lchtime(dir *os.Root, name string, mtime time.Time) error {
	parent, err := dir.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer parent.Close()
	ts := []unix.Timespec{{Sec: mtime.Unix()}, {Sec: mtime.Unix()}}
	if err := unix.UtimesNanoAt(int(parent.Fd()), path.Base(name), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set time of %s: %w", name, err)
	}
	return nil
}

// tarError tells what the archive did wrong from what went wrong here.
func tarError(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, errTarLimit):
		return tooLargeError(err.Error())
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO), errors.Is(err, unix.EMFILE):
		return err
	}
	return badRequest("%v", err)
}

func clip(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return fmt.Sprintf("%q", name)
}
