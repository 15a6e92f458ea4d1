package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Problem is one finding of a check.
type Problem struct {
	Path   string // relative to the store's directory
	What   string // what is wrong
	Repair string // the repair; "" for none
}

// CheckOptions adjusts Check.
type CheckOptions struct {
	Repair bool

	// Report is called once for each problem, after its repair if there is one. All calls come
	// from one goroutine.
	Report func(Problem)

	// Progress is called from time to time with the number of files read in a directory.
	Progress func(dir string, done int)

	// InUse names the user of an image that has lost a file. If it returns "", the image may be
	// dropped.
	InUse func(Digest) string

	// Fetch brings the content of a file without a sound copy from a registry. The registry
	// knows an image (Image.Remotes) with one of trees, all of which hold the file; Fetch is
	// called only if there is such an image. from names the source. Check verifies the content.
	// After ENOSPC Check drops nothing. If Fetch is nil nothing is fetched.
	Fetch func(ctx context.Context, e *Entry, trees map[Digest]bool) (content io.ReadCloser, from string, err error)

	// FetchTree is Fetch for a lost tree that an image needs.
	FetchTree func(ctx context.Context, d Digest) (t *Tree, from string, err error)
}

// Checked counts the files read and the problems found by a check.
type Checked struct {
	Trees, Objects, Images int
	Bytes                  int64 // of objects; all are hashed
	Problems, Repaired     int
}

type checker struct {
	s    *Store
	ctx  context.Context //nolint:containedctx // of one call
	o    CheckOptions
	buf  []byte
	done Checked

	damaged  map[string]*damage // objects, by key
	badTrees map[Digest]bool    // live trees that are unreadable; value: whether for good
	kept     *keptTrees
}

// damage is an object that is missing or differs from its key.
type damage struct {
	entry  *Entry            // the expected file; nil if no tree has it
	trees  map[Digest]bool   // with the object
	copies map[int]*observed // the damaged copies, by number
	source string            // a sound file of an image
	lost   bool              // no sound copy is left
	broken bool              // repair failed, as on ENOSPC: the files of images may be the last sound copy
}

// observed is the actual state of a file.
type observed struct {
	Entry
	ino uint64
	err error
}

func (c *checker) report(path, what, repair string) {
	c.done.Problems++
	if repair != "" {
		c.done.Repaired++
	}
	c.o.Report(Problem{Path: path, What: what, Repair: repair})
}

// repaired reports a problem, after the repair if Repair is set, and whether the repair
// succeeded.
func (c *checker) repaired(path, what, how string, repair func() error) bool {
	if !c.o.Repair {
		how = ""
	} else if err := errors.Join(c.s.disk.failpoint("before repair"), repair(), c.s.disk.failpoint("repaired")); err != nil {
		what, how = fmt.Sprintf("%s; repair failed: %v", what, err), ""
	}
	c.report(path, what, how)
	return how != ""
}

// observe reads the metadata, size and digest of a file.
func (c *checker) observe(dir int, name string) *observed {
	f, err := openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return &observed{err: err}
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &observed{err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return &observed{err: ErrFileType}
	}
	x := &observed{Entry: metaOf(&st), ino: st.Ino}
	x.Size, x.Digest, x.err = hashFile(f, c.buf)
	return x
}

// metaOf returns the metadata of a file as an Entry, without its content.
func metaOf(st *unix.Stat_t) Entry {
	e := Entry{Mode: st.Mode & 0o7777, MTime: st.Mtim.Sec, UID: st.Uid, GID: st.Gid}
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		e.UID, e.GID = 0, 0 // files of root belong to the user that the engine runs as
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind, e.Size = KindFile, st.Size
	case unix.S_IFDIR:
		e.Kind = KindDir
	case unix.S_IFLNK:
		e.Kind, e.Mode = KindSymlink, 0
	}
	return e
}

// differs describes the first difference between x and e; "" if there is none.
func (e *Entry) differs(x *observed) string {
	switch {
	case errors.Is(x.err, fs.ErrNotExist):
		return "missing"
	case x.err != nil:
		return x.err.Error()
	case x.Kind != e.Kind:
		return fmt.Sprintf("a %s, not a %s", x.Kind, e.Kind)
	case x.Size != e.Size:
		return fmt.Sprintf("%d bytes, not %d", x.Size, e.Size)
	case x.Digest != e.Digest:
		return "content has changed"
	case x.Link != e.Link:
		return fmt.Sprintf("leads to %q, not %q", x.Link, e.Link)
	case x.Mode != e.Mode:
		return fmt.Sprintf("mode %#o, not %#o", x.Mode, e.Mode)
	case x.UID != e.UID || x.GID != e.GID:
		return fmt.Sprintf("owner %d:%d, not %d:%d", x.UID, x.GID, e.UID, e.GID)
	case x.MTime != e.MTime:
		return fmt.Sprintf("modified at %d, not %d", x.MTime, e.MTime)
	}
	return ""
}

const strayFile = "none of the store's files"

// stray reports a file that is not the store's, and removes it.
func (c *checker) stray(path string) {
	c.repaired(path, strayFile, "removed", func() error {
		return os.RemoveAll(filepath.Join(c.s.disk.dir, path))
	})
}

func (c *checker) damageOf(key string) *damage {
	d := c.damaged[key]
	if d == nil {
		d = &damage{trees: make(map[Digest]bool), copies: make(map[int]*observed)}
		c.damaged[key] = d
	}
	return d
}

// sound reports whether only the metadata of a copy is wrong.
func (d *damage) sound(n int) bool {
	x := d.copies[n]
	return x.err == nil && x.Digest == d.entry.Digest && x.Size == d.entry.Size
}

// stillBroken reports whether a repair of the object has failed.
func (c *checker) stillBroken(key string) bool { return c.damaged[key] != nil && c.damaged[key].broken }
