package events

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
)

// bodies keeps, in files, the bodies that are too large for a message: those of events until
// they are over, those of results until these are forgotten.
type bodies struct {
	dir   string
	limit int64 // of all of them, in bytes
	used  atomic.Int64
}

// filePattern is the name of a body's file: an event's id, and what it is the body of.
var filePattern = regexp.MustCompile(`^[0-9a-f]{32}\.(event|result)$`)

func validFile(name string) bool { return filePattern.MatchString(name) }

// idOf is the event of a body's file.
func idOf(name string) string {
	id, _, _ := strings.Cut(name, ".")
	return id
}

// openBodies removes what was being written when the engine died, and counts the rest.
func openBodies(dir string, limit int64) (*bodies, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	b := &bodies{dir: dir, limit: limit}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !validFile(e.Name()) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		if info, err := e.Info(); err == nil {
			b.used.Add(info.Size())
		}
	}
	return b, nil
}

// keep writes a body, durably, and returns its size.
func (b *bodies) keep(name string, r io.Reader, most int64) (n int64, err error) {
	f, err := os.CreateTemp(b.dir, "new-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = f.Close() // synced, or of no use
		if err != nil {
			b.used.Add(-n)
			err = errors.Join(err, ignoreMissing(os.Remove(f.Name())))
		}
	}()
	n, err = io.Copy(counted{f, b}, io.LimitReader(r, most+1))
	if err != nil {
		return n, err
	}
	if n > most {
		return n, refuse(ErrTooLarge, "the limit is %d bytes", most)
	}
	if err := f.Sync(); err != nil {
		return n, err
	}
	if old, err := os.Stat(filepath.Join(b.dir, name)); err == nil {
		b.used.Add(-old.Size())
	}
	if err := os.Rename(f.Name(), filepath.Join(b.dir, name)); err != nil {
		return n, err
	}
	return n, syncDir(b.dir)
}

// counted refuses what would be more than the limit of all bodies.
type counted struct {
	f *os.File
	b *bodies
}

func (c counted) Write(p []byte) (int, error) {
	if c.b.used.Add(int64(len(p))) > c.b.limit {
		c.b.used.Add(-int64(len(p)))
		return 0, refuse(ErrFull, "large bodies take %d bytes already", c.b.limit)
	}
	n, err := c.f.Write(p)
	c.b.used.Add(int64(n - len(p)))
	return n, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (b *bodies) open(name string) (*os.File, error) {
	if !validFile(name) {
		return nil, fmt.Errorf("%w: body %q", ErrBadEvent, name)
	}
	return os.Open(filepath.Join(b.dir, name))
}

// remove forgets a body; "" is none.
func (b *bodies) remove(name string) {
	if !validFile(name) {
		return
	}
	path := filepath.Join(b.dir, name)
	info, err := os.Stat(path)
	if err == nil && os.Remove(path) == nil {
		b.used.Add(-info.Size())
	}
}

// before are the bodies that have been there since before t.
func (b *bodies) before(t time.Time) (names []string) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && validFile(e.Name()) && info.ModTime().Before(t) {
			names = append(names, e.Name())
		}
	}
	return names
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
