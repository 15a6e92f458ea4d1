package linux

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// removeLevels is the most directories that RemoveAll has open at a time.
	removeLevels = 64
	// removeRounds bounds the depth that RemoveAll handles: a million levels.
	removeRounds = 1 << 14
	// removeBatch is the most names of a directory that RemoveAll holds in memory at a time.
	removeBatch = 256
	// removeTries is the most attempts of RemoveAll while files remain: other processes may
	// still write, and not every file system lists all names during removals.
	removeTries = 3
)

// RemoveAll removes path and its contents, as os.RemoveAll does, but also trees filled by
// hostile code. Linux does not bound the depth of a directory, and os.RemoveAll holds a file
// open for each level, so os.RemoveAll fails beyond RLIMIT_NOFILE levels. RemoveAll moves a
// directory 64 levels down up to the top, and removes it after the rest:
//
//	path/1/2/…/63/64/65/…   →   path/removed-R-0/65/…   →   path
//
// RemoveAll follows no symbolic link. Mount points stay (EBUSY). The error is that of the first
// failure; RemoveAll removes all the rest. If another process keeps writing to path, the error
// is ENOTEMPTY, and another call can remove the rest.
func RemoveAll(path string) error {
	var err error
	for range removeTries {
		r := removal{prefix: fmt.Sprintf("removed-%x-", rand.Uint64())}
		r.entry(unix.AT_FDCWD, path, 0)
		if err = r.err; !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// removal is one attempt of RemoveAll.
type removal struct {
	top    int    // the directory to remove, open until all below is gone
	prefix string // of the names of moved directories, impossible to guess; a number follows
	moved  int    // number of moved directories
	err    error  // the first error
}

// entry removes a name in an open directory. level is the depth of the name below the top.
func (r *removal) entry(dir int, name string, level int) {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = r.directory(dir, name, level)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), r.err != nil: // other processes may remove the name too
	case level == 0:
		r.err = err
	default:
		r.err = fmt.Errorf("%q: %w", name, err)
	}
}

// directory removes a directory, or moves it to the top. directory opens the directory only if
// rmdir(2) finds it not empty.
func (r *removal) directory(dir int, name string, level int) error {
	err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if level == removeLevels {
		if err := unix.Renameat(dir, name, r.top, r.name(r.moved)); err != nil {
			return err
		}
		r.moved++
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if level == 0 {
		r.top = fd
	}
	if err := r.empty(f, fd, level); err != nil {
		return err
	}
	if level == 0 {
		r.rounds()
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// name returns the name of the nth moved directory.
func (r *removal) name(n int) string { return fmt.Sprint(r.prefix, n) }

// empty removes the contents of a directory, except moved directories.
func (r *removal) empty(f *os.File, dir, level int) error {
	for {
		names, err := f.Readdirnames(removeBatch)
		for _, name := range names {
			if !strings.HasPrefix(name, r.prefix) {
				r.entry(dir, name, level+1)
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
	}
}

// rounds removes the moved directories, then the directories moved meanwhile, and so on.
func (r *removal) rounds() {
	for n, round := 0, 0; n < r.moved && round < removeRounds; round++ {
		for end := r.moved; n < end; n++ {
			r.entry(r.top, r.name(n), 1)
		}
	}
}
