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
	// removeLevels is how many directories RemoveAll has open at a time.
	removeLevels = 64
	// removeRounds bounds how deep RemoveAll goes: a million levels.
	removeRounds = 1 << 14
	// removeBatch is how many names of a directory RemoveAll has in memory at a time.
	removeBatch = 256
	// removeTries is how often RemoveAll begins anew where something is left: others
	// may have written it, and not every file system lists all while names go.
	removeTries = 3
)

// RemoveAll removes path and all in it, as os.RemoveAll does, where hostile code has
// filled it. Linux bounds no directory's depth, and os.RemoveAll has a file open for
// each level: it fails where there are more than RLIMIT_NOFILE. Here what lies 64
// levels down is moved up, and goes when the rest is gone:
//
//	path/1/2/…/63/64/65/…   →   path/removed-R-0/65/…   →   path
//
// No symbolic link is followed. What something is mounted on stays as it is: EBUSY.
// The error is of what could not be removed first; all else is gone then. Somebody who
// still writes there has it fail with ENOTEMPTY rather than go on for ever: what is
// left another call removes.
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

// removal is one try.
type removal struct {
	top    int    // the directory that is removed, open while anything below it is looked at
	prefix string // of the names of what was moved there, which nobody can guess; then a number
	moved  int    // how many were
	err    error  // the first
}

// entry removes a name of an open directory, which is so many levels below the top.
func (r *removal) entry(dir int, name string, level int) {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = r.directory(dir, name, level)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), r.err != nil: // others may remove it, too
	case level == 0:
		r.err = err
	default:
		r.err = fmt.Errorf("%q: %w", name, err)
	}
}

// directory removes a directory, or moves it up. It is not opened where rmdir(2) says
// why it has to stay.
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

// name is that of what was moved up as the nth.
func (r *removal) name(n int) string { return fmt.Sprint(r.prefix, n) }

// empty removes what is in a directory, but what was moved there.
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

// rounds removes what was moved up, then what is moved up meanwhile, and so on.
func (r *removal) rounds() {
	for n, round := 0, 0; n < r.moved && round < removeRounds; round++ {
		for end := r.moved; n < end; n++ {
			r.entry(r.top, r.name(n), 1)
		}
	}
}
