package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Limits of a snapshot: hostile programs may still write to /work while it is taken.
const (
	snapshotDepth   = 100
	snapshotEntries = 100_000
	snapshotBytes   = 4 << 30
)

// ErrSnapshotLimit says that /work exceeds the limits of a snapshot.
var ErrSnapshotLimit = failure.Wrap(failure.TooLarge, fmt.Errorf("/work exceeds the limit of a snapshot (%d files and directories, depth %d, %d GiB)", snapshotEntries, snapshotDepth, snapshotBytes>>30), "remove files from /work")

// TakeSnapshot stores the content of a sandbox's /work as an image of its tenant. Files that
// another image already holds take no space. Sockets, fifos and files that vanish are left out;
// changes made meanwhile may be missing. The snapshot waits for a build's turn, because it may
// write more than /work holds: a file with holes has more bytes than blocks.
func (t *Agents) TakeSnapshot(ctx context.Context, id string) (img *store.Image, err error) {
	err = t.e.life.While(ctx, func(ctx context.Context) error {
		a, err := t.find(id)
		if err != nil {
			return err
		}
		if !a.enter() { // before the wait: the sandbox is in use
			return fmt.Errorf("%q: %w", id, ErrNoAgent)
		}
		defer a.leave()
		return t.e.Building(ctx, a.shown.Tenant, id, nil, func(ctx context.Context) error {
			img, err = t.snapshot(ctx, a)
			return err
		})
	})
	return img, err
}

func (t *Agents) snapshot(ctx context.Context, a *agent) (*store.Image, error) {
	defer t.e.cfg.Store.Hold()()
	tree, err := t.snapshotTree(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("snapshot of %s: %w", a.shown.ID, err)
	}
	m, err := image.SnapshotManifest(a.shown.Tenant, tree)
	if err != nil {
		return nil, err
	}
	img, err := t.e.cfg.Store.PutImage(ctx, m)
	if err != nil {
		t.e.cfg.Store.Discard(tree)
	}
	return img, err
}

// Snapshot finds a snapshot by its image's name or digest. Errors: fs.ErrNotExist.
func (t *Agents) Snapshot(ref string) (*store.Image, error) {
	img, err := t.e.cfg.Store.Image(ref)
	if err == nil {
		if _, ok := image.IsSnapshot(img); !ok {
			err = fmt.Errorf("image %s is no snapshot: %w", ref, fs.ErrNotExist)
		}
	}
	return img, err
}

// Snapshots lists all snapshots, newest first.
func (t *Agents) Snapshots() []*store.Image {
	var out []*store.Image
	for _, img := range t.e.cfg.Store.Images() {
		if _, ok := image.IsSnapshot(img); ok {
			out = append(out, img)
		}
	}
	return out
}

// RemoveSnapshot removes a snapshot with all its names. Errors: as of Snapshot and RemoveImage.
func (t *Agents) RemoveSnapshot(ctx context.Context, ref string) error {
	img, err := t.Snapshot(ref)
	if err == nil {
		_, err = t.e.RemoveImage(ctx, string(img.Digest), build.RemoveOptions{Force: true})
	}
	return err
}

// snapshotting is the state of a snapshot under way.
type snapshotting struct {
	ctx     context.Context
	w       *store.Writer
	entries int
	bytes   int64
	most    int64 // in bytes
	full    error // the error beyond most
}

func (t *Agents) snapshotTree(ctx context.Context, a *agent) (_ store.Digest, err error) {
	w, err := t.e.cfg.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	root, err := os.OpenRoot(a.f.work)
	if err != nil {
		return "", err
	}
	defer root.Close()
	s := &snapshotting{ctx: ctx, w: w}
	s.most, s.full = t.snapshotMost(&a.shown)
	if err := s.copyDir(root, "", 0); err != nil {
		return "", err
	}
	tree, err := w.Commit(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return tree, err
}

// snapshotMost returns the largest size of a snapshot in bytes and the error for a larger one:
// the least of the general limit, the limit of the sandbox's /work and the rest of the tenant's
// quota.
func (t *Agents) snapshotMost(of *Agent) (most int64, full error) {
	most, full = snapshotBytes, ErrSnapshotLimit
	if limit := of.WorkBytes; limit > 0 && limit < most {
		most, full = limit, fmt.Errorf("%w: the limit is %d bytes; sparse files and hard links count in full", ErrSnapshotLimit, limit)
	}
	if q := t.e.tenants.Quotas(of.Tenant); q.ImageBytes > 0 {
		if left := q.ImageBytes - t.e.TenantUse(of.Tenant).ImageBytes; left < most {
			most, full = left, &live.QuotaError{Tenant: of.Tenant, What: "bytes of images", Limit: q.ImageBytes}
		}
	}
	return most, full
}

// copyDir opens one Root per level: even if a program renames directories meanwhile, no path leaves
// /work.
func (s *snapshotting) copyDir(root *os.Root, at string, depth int) error {
	if depth > snapshotDepth {
		return ErrSnapshotLimit
	}
	d, err := root.OpenFile(".", os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		list, err := d.ReadDir(512)
		for _, e := range list {
			if err := s.copyEntry(root, e.Name(), path.Join(at, e.Name()), depth); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func (s *snapshotting) copyEntry(root *os.Root, name, at string, depth int) error {
	if err := s.ctx.Err(); err != nil {
		return context.Cause(s.ctx)
	}
	if at == "lost+found" { // made by the file system, not by the sandbox
		return nil
	}
	if s.entries++; s.entries > snapshotEntries {
		return ErrSnapshotLimit
	}
	info, err := root.Lstat(name)
	if err != nil {
		return orGone(err)
	}
	switch {
	case info.IsDir():
		sub, err := root.OpenRoot(name)
		if err != nil {
			return orGone(err)
		}
		defer sub.Close()
		if err := s.w.Directory(at, info.Mode().Perm(), info.ModTime()); err != nil {
			return err
		}
		return s.copyDir(sub, at, depth+1)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return orGone(err)
		}
		return s.w.Symlink(at, target, info.ModTime())
	case info.Mode().IsRegular():
		// If a fifo or a link has replaced the file: do not wait, do not follow.
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			return orGone(err)
		}
		defer f.Close()
		if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
			return err
		}
		return s.w.File(at, info.Mode().Perm(), info.ModTime(), s.counted(f))
	}
	return nil
}

// orGone returns nil if err says that a listed file is gone or has another type now.
func orGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

// counted returns a reader that fails once the snapshot is too large.
func (s *snapshotting) counted(r io.Reader) io.Reader { return countedReader{s, r} }

type countedReader struct {
	s *snapshotting
	r io.Reader
}

func (c countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.s.bytes += int64(n); c.s.bytes > c.s.most {
		return n, c.s.full
	}
	if cause := c.s.ctx.Err(); cause != nil {
		return n, cause
	}
	return n, err
}

// restore copies a snapshot into an empty /work before a sandbox has it.
func (t *Agents) restore(ctx context.Context, work string, img *store.Image, owner int) error {
	from, err := os.OpenRoot(filepath.Join(t.e.cfg.Store.Rootfs(img.Digest), "work"))
	if errors.Is(err, fs.ErrNotExist) { // the snapshot of an empty /work
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer to.Close()
	err = fs.WalkDir(from.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || p == "." {
			return err
		}
		return restoreEntry(from, to, p, d, owner)
	})
	if err != nil {
		return fmt.Errorf("restore snapshot %s: %w", img.Digest, err)
	}
	return nil
}

func restoreEntry(from, to *os.Root, p string, d fs.DirEntry, owner int) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		err = to.Mkdir(p, 0o700)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := from.Readlink(p)
		if err == nil {
			err = to.Symlink(target, p)
		}
		return errors.Join(err, to.Lchown(p, owner, owner))
	default:
		err = copyFile(from, to, p)
	}
	if err != nil {
		return err
	}
	return errors.Join(to.Lchown(p, owner, owner), to.Chmod(p, info.Mode().Perm()), to.Chtimes(p, info.ModTime(), info.ModTime()))
}

func copyFile(from, to *os.Root, p string) (err error) {
	in, err := from.OpenFile(p, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := to.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
