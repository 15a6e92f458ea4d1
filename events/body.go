package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/engine"
)

// bodies keeps bodies that are too large for a message, in files. The body of an event stays until
// the event is over, the body of a result until the result is forgotten.
type bodies struct {
	dir   string
	limit int64 // of all bodies, in bytes
	most  int64 // of the body of an event, in bytes
	none  bool  // no files, because other nodes could not read them
	used  atomic.Int64
}

// openBodies removes files that a crash left incomplete, and counts the bytes of the rest.
func openBodies(cfg *Config) (*bodies, error) {
	dir := filepath.Join(cfg.Dir, "bodies")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	b := &bodies{dir: dir, limit: cfg.BodyBytes, most: cfg.MaxEvent, none: cfg.external()}
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

// keep writes a body of at most most bytes, durably, and returns the size. Errors: ErrTooLarge,
// ErrFull.
func (b *bodies) keep(name string, r io.Reader, most int64) (n int64, err error) {
	f, err := os.CreateTemp(b.dir, "new-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = f.Close() // synced before, or removed below
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

// read reads the body of an event into m.body or, if larger than inline, into a file. The end of
// ctx interrupts the read.
func (b *bodies) read(ctx context.Context, m *message, r *engine.Request) (err error) {
	if r.Body == nil {
		return nil
	}
	if r.Length > b.most {
		return refuse(ErrTooLarge, "the limit is %d bytes", b.most)
	}
	if c, ok := r.Body.(io.Closer); ok { // a slow sender must not delay Close
		goOn := context.AfterFunc(ctx, func() { _ = c.Close() }) // makes the read fail
		defer func() {
			if !goOn() && err != nil {
				err = errStopping()
			}
		}()
	}
	most := min(int64(inline), b.most)
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return err
	}
	m.body, m.Size = body, int64(len(body))
	switch {
	case m.Size <= most:
		return nil
	case most == b.most:
		return refuse(ErrTooLarge, "the limit is %d bytes", b.most)
	case b.none: // other nodes cannot read this node's files
		return refuse(ErrTooLarge, "the limit is %d bytes with an external NATS cluster", inline)
	}
	m.body, m.file = nil, m.ID+".event"
	m.Size, err = b.keep(m.file, io.MultiReader(bytes.NewReader(body), r.Body), b.most)
	if err != nil {
		return diskFault(err)
	}
	return nil
}

// drop removes the file of an event that was not accepted, unless the dead letter uses it.
func (b *bodies) drop(m, letter *message) {
	if letter == nil || letter.file != m.file {
		b.remove(m.file)
	}
}

// moveToFile moves the body of a message into a file, as Publish does with large bodies. If
// the disk has no room, or other nodes could not read the file, it drops the body and sets m.lost.
func (b *bodies) moveToFile(m *message) {
	body := m.body
	m.body = nil
	if file := m.ID + ".event"; !b.none {
		size, err := b.keep(file, bytes.NewReader(body), maxPayload)
		if err == nil {
			m.file, m.Size = file, size
			return
		}
	}
	m.Error = fmt.Sprintf("the event's body of %d bytes is too large and was not kept; %s", len(body), m.Error)
	m.lost = true
}

// counted writes to a body's file, within the limit for all bodies; otherwise ErrFull.
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
	d, err := os.OpenFile(dir, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (b *bodies) open(name string) (*os.File, error) {
	if !validFile(name) {
		return nil, fmt.Errorf("%w: body %q", ErrBadEvent, name)
	}
	return os.OpenFile(filepath.Join(b.dir, name), os.O_RDONLY, 0)
}

// remove deletes a body. An invalid name, for example "", is ignored.
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

// before returns the names of the bodies last modified before t.
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
