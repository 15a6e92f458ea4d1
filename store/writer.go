package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A file smaller than bufferSize is hashed in memory, and written only if its object is missing.
const bufferSize = 256 << 10

// ErrOwner: an id is above MaxID.
var ErrOwner = errors.New("sandboxes have the user and group ids 0 to 65535 only")

// Writer stages a tree, for one goroutine. The first error sticks: Commit returns it. The caller
// must call Commit or Abort; until then sweeps spare all objects of the Writer.
type Writer struct {
	disk    *disk
	leases  *leases
	release func()   // ends the lease; nil once finished
	name    string   // of dir, below tmp/
	dir     *os.File // staged objects, named after their keys
	layer   bool     // see CreateLayer
	entries map[string]Entry
	staged  map[string]bool // keys in dir
	buf     []byte
	uid     uint32 // owner of the next entries
	gid     uint32
	err     error
}

// SetOwner sets the owner of the entries that follow, as ids inside a sandbox. The first owner
// is root, and implied directories always belong to root. Errors: [ErrOwner] above [MaxID].
func (w *Writer) SetOwner(uid, gid uint32) error {
	if uid > MaxID || gid > MaxID {
		return w.fail(fmt.Errorf("owner %d:%d: %w", uid, gid, ErrOwner))
	}
	w.uid, w.gid = uid, gid
	return nil
}

// File adds a regular file with the bytes of r, read to its end. Of mode only the permission
// bits count, of mtime the seconds. The file replaces a file or symlink of the same path.
func (w *Writer) File(path string, mode fs.FileMode, mtime time.Time, r io.Reader) error {
	e := Entry{Path: path, Kind: KindFile, Mode: uint32(mode.Perm()), MTime: mtime.Unix(), UID: w.uid, GID: w.gid}
	if err := w.place(e); err != nil {
		return w.fail(err)
	}
	if err := w.stage(&e, r); err != nil {
		return w.failFile(path, err)
	}
	w.entries[path] = e
	return nil
}

func (w *Writer) failFile(path string, err error) error {
	return w.fail(fmt.Errorf("store %s: %w", path, err))
}

// Directory adds a directory, or sets the mode and mtime of a directory added before.
func (w *Writer) Directory(path string, mode fs.FileMode, mtime time.Time) error {
	e := Entry{Path: path, Kind: KindDir, Mode: uint32(mode.Perm()), MTime: mtime.Unix(), UID: w.uid, GID: w.gid}
	if w.layer {
		old := w.entries[path]
		e.Opaque = old.Opaque || old.Kind == KindWhiteout
	}
	return w.fail(w.place(e))
}

// Symlink adds a symlink. The target may lead anywhere: only sandboxes resolve it. The symlink
// replaces a file or symlink of the same path.
func (w *Writer) Symlink(path, target string, mtime time.Time) error {
	if err := checkTarget(path, target); err != nil {
		return w.fail(err)
	}
	return w.fail(w.place(Entry{Path: path, Kind: KindSymlink, Link: target, MTime: mtime.Unix(), UID: w.uid, GID: w.gid}))
}

// Commit makes the tree durable and returns its digest. Two equal trees are stored once. Commit
// ends the Writer, even on an error.
//
// Order: one syncfs brings staged objects and the manifest to disk before any of them gets its
// final name, so a name never stands for bytes that a crash can lose. Then Commit links the
// objects, renames the manifest, and fsyncs trees/, which flushes the journal up to that point.
func (w *Writer) Commit(ctx context.Context) (Digest, error) {
	defer w.Abort()
	if w.err == nil {
		w.err = ctx.Err()
	}
	if w.err != nil {
		return "", w.err
	}
	d, err := w.commit(ctx)
	w.err = fs.ErrClosed
	if err != nil {
		return "", fmt.Errorf("commit tree: %w", err)
	}
	return d, nil
}

func (w *Writer) commit(ctx context.Context) (Digest, error) {
	t := Tree{Entries: make([]Entry, 0, len(w.entries))}
	for _, e := range w.entries {
		t.Entries = append(t.Entries, e)
	}
	b, err := t.encode()
	if err != nil {
		return "", err
	}
	d := sumDigest(b)
	final := d.hex() + ".json"
	stage, trees := int(w.dir.Fd()), int(w.disk.trees.Fd())

	w.leases.makeTree(d, t.Entries)
	var st unix.Stat_t
	known := unix.Fstatat(trees, final, &st, 0) == nil
	if !known {
		if err := writeFileAt(stage, "tree.json", b); err != nil {
			return "", err
		}
	}
	if !known || len(w.staged) > 0 {
		if err := w.disk.syncfs(); err != nil {
			return "", err
		}
	}
	if err := errors.Join(ctx.Err(), w.disk.failpoint("tree synced")); err != nil {
		return "", err
	}
	for key := range w.staged {
		if err := w.disk.enterObject(key, stage, key); err != nil {
			return "", err
		}
	}
	if err := w.disk.failpoint("objects linked"); err != nil {
		return "", err
	}
	if !known {
		if err := unix.Renameat(stage, "tree.json", trees, final); err != nil {
			return "", fmt.Errorf("rename %s: %w", final, err)
		}
	}
	if err := w.disk.trees.Sync(); err != nil {
		return "", err
	}
	return d, w.disk.failpoint("tree renamed")
}

// Abort discards the staged files. A second Abort, or one after Commit, does nothing.
func (w *Writer) Abort() {
	if w.release == nil {
		return
	}
	_ = w.dir.Close()
	w.disk.removeTmp(w.name)
	w.release()
	w.release = nil
	if w.err == nil {
		w.err = fs.ErrClosed
	}
}

func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	return err
}

// place checks the path of e and the existing entries, adds missing parents and enters e, unless
// e is a file. Implied parents have a fixed mtime, so the digest of a tree depends only on the
// calls on the Writer.
func (w *Writer) place(e Entry) error {
	if w.err != nil {
		return w.err
	}
	if err := checkPath(e.Path); err != nil {
		return err
	}
	if old, ok := w.entries[e.Path]; ok && old.Kind != KindWhiteout && (old.Kind == KindDir) != (e.Kind == KindDir) {
		return fmt.Errorf("%s: %w", e.Path, ErrConflict)
	}
	var missing []string
	for p := parent(e.Path); p != ""; p = parent(p) {
		if old, ok := w.entries[p]; ok {
			if old.Kind == KindWhiteout {
				w.entries[p] = Entry{Path: p, Kind: KindDir, Mode: 0o755, Opaque: true}
			} else if old.Kind != KindDir {
				return fmt.Errorf("%s: parent of %s: %w", p, e.Path, ErrConflict)
			}
			break
		}
		missing = append(missing, p)
	}
	for _, p := range missing {
		w.entries[p] = Entry{Path: p, Kind: KindDir, Mode: 0o755, Implied: w.layer}
	}
	if e.Kind != KindFile { // the caller enters a file after reading its content
		w.entries[e.Path] = e
	}
	return nil
}

// stage reads r to the end, sets e's size and digest, and makes sure the object is in objects/
// or staged. Empty files have no object: each image has its own.
func (w *Writer) stage(e *Entry, r io.Reader) error {
	n, err := fill(r, w.buf)
	switch {
	case err != nil && err != io.EOF: //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
		return err
	case n == 0:
		e.Digest = emptyDigest
		return nil
	case err == nil:
		return w.stageLarge(e, r)
	}
	e.Size, e.Digest = int64(n), sumDigest(w.buf[:n])
	if w.has(e.key()) {
		return nil
	}
	f, err := w.openIncoming()
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(w.buf[:n]); err != nil {
		return err
	}
	return w.keep(f, e)
}

// stageLarge continues stage after the first bytes, which fill w.buf.
func (w *Writer) stageLarge(e *Entry, r io.Reader) error {
	f, err := w.openIncoming()
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	for n, end := len(w.buf), false; ; {
		hash.Write(w.buf[:n])
		if _, err := f.Write(w.buf[:n]); err != nil {
			return err
		}
		e.Size += int64(n)
		if end {
			break
		}
		if n, err = fill(r, w.buf); err != nil && err != io.EOF { //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
			return err
		}
		end = err == io.EOF //nolint:errorlint // as above
	}
	e.Digest = Digest(digestPrefix + hex.EncodeToString(hash.Sum(nil)))
	if w.has(e.key()) {
		return nil // the next incoming file truncates this one
	}
	return w.keep(f, e)
}

const incomingName = "incoming"

func (w *Writer) openIncoming() (*os.File, error) {
	return openat(int(w.dir.Fd()), incomingName, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
}

// keep sets the metadata of the finished incoming file and renames the file to the key.
func (w *Writer) keep(f *os.File, e *Entry) error {
	dir, key := int(w.dir.Fd()), e.key()
	if err := setMeta(f, dir, incomingName, e); err != nil {
		return err
	}
	if err := unix.Renameat(dir, incomingName, dir, key); err != nil {
		return err
	}
	w.staged[key] = true
	return nil
}

// has reports whether the object is staged or in objects/. An object in objects/ stays until the
// Writer ends, because the Writer holds a lease.
func (w *Writer) has(key string) bool {
	if w.staged[key] {
		return true
	}
	w.leases.useKey(key)
	var st unix.Stat_t
	return unix.Fstatat(int(w.disk.objects.Fd()), objectName(key, 0), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// fill reads until buf is full or r ends. io.EOF means the end. Unlike io.ReadFull, fill does
// not treat io.ErrUnexpectedEOF from r (a cut archive) as an end: it stays an error.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}
