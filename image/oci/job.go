package oci

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// job is the state that the goroutines of one call share.
type job struct {
	store  *store.Store
	limits Limits
	// trusted: a party that this engine trusts has signed the image.
	trusted bool

	bytes, entries, names atomic.Int64 // unpacked until now

	mu     sync.Mutex // guards report and warned
	report func(image.Progress)
	warned map[string]int
}

func newJob(s *store.Store, o Options) *job {
	o.Limits.setDefaults()
	return &job{store: s, limits: o.Limits, report: o.Report, warned: map[string]int{}}
}

func (j *job) event(e image.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.report != nil {
		j.report(e)
	}
}

// warn reports the first few warnings of each kind.
func (j *job) warn(kind, path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 3
	if j.warned[kind]++; j.report != nil && j.warned[kind] <= most {
		j.report(image.Progress{Step: "warning", Name: path, Message: kind})
	}
}

// grow counts unpacked entries and bytes against the limits.
func (j *job) grow(entries, bytes int64) error {
	if n := j.entries.Add(entries); n > j.limits.Entries {
		return fmt.Errorf("%w of %d files and directories", ErrLimit, j.limits.Entries)
	}
	if n := j.bytes.Add(bytes); n > j.limits.Bytes || n < 0 {
		return fmt.Errorf("%w of %d bytes", ErrLimit, j.limits.Bytes)
	}
	return nil
}

// enter counts an entry of a layer, with the parent directories that the layer lacks: a short path
// of many elements makes many directories.
func (j *job) enter(w *store.Writer, h *tar.Header, name string) error {
	entries, names := int64(1), int64(len(name)+len(h.Linkname))
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := w.Lookup(dir); ok {
			break
		}
		entries, names = entries+1, names+int64(len(dir))
	}
	if n := j.names.Add(names); n > j.limits.Names {
		return fmt.Errorf("%w of %d bytes of paths", ErrLimit, j.limits.Names)
	}
	return j.grow(entries, 0)
}

// scratchFile makes a file for one call. A recipe is usually small, but a hostile archive can make
// it large.
func (j *job) scratchFile() (f *os.File, remove func(), err error) {
	dir, err := j.store.MkdirScratch()
	if err != nil {
		return nil, nil, err
	}
	f, err = os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	remove = func() {
		_ = f.Close()
		_ = os.RemoveAll(dir) // the store's next Open removes leftovers
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return f, remove, nil
}

// counted is a reader that counts bytes against the limits.
type counted struct {
	r io.Reader
	j *job
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if over := c.j.grow(0, int64(n)); over != nil {
		return 0, over
	}
	return n, err
}

// progress reports every 512 KiB.
type progress struct {
	r    io.Reader
	j    *job
	e    image.Progress
	last int64
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	const step = 512 << 10
	if p.e.Done += int64(n); p.e.Done-p.last >= step {
		p.last = p.e.Done
		p.j.event(p.e)
	}
	return n, err
}

func (p *progress) end() {
	p.e.End = true
	if p.e.Message = "done"; p.e.Total != 0 {
		p.e.Done = p.e.Total
	}
	p.j.event(p.e)
}

// reason returns the cause of ctx's end, if ctx has ended, instead of the error that the end
// caused.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
