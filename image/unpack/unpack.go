// Package unpack extracts foreign archives below a directory: tar, plain or packed, and zip. It
// treats every archive as hostile.
package unpack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
)

// Errors that callers distinguish. Any further error is a local failure: an errno.
var (
	ErrArchive = failure.New(failure.BadRequest, "bad archive", "")             // no archive, damaged, or with refused entries
	ErrLimit   = failure.New(failure.TooLarge, "archive is over the limit", "") // of [Limits]
)

// Limits bound the unpacked size of one archive. Both are required.
type Limits struct {
	Bytes   int64 // of all files
	Entries int   // files, directories and links, implied directories too
}

// Tar writes the tar stream r below dir: files, directories, symbolic links unchanged, and hard
// links between the archive's own entries. It drops set-id bits. It refuses with ErrArchive entries
// that reach out of dir, appear twice or have another type, and sparse files, since their holes
// would be written out. More data than l allows is ErrLimit. Errors of r and of ctx are returned
// unchanged. After an error the caller removes dir with the files written until then.
func Tar(ctx context.Context, dir *os.Root, r io.Reader, l Limits) error {
	source := &reader{r: r}
	return untar(ctx, dir, source, source, l)
}

// untar reads r, whose bytes come from source.
func untar(ctx context.Context, dir *os.Root, r io.Reader, source *reader, l Limits) error {
	u := newUnpacker(ctx, dir, l)
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err == nil {
			if err = u.entry(h, t); err != nil {
				err = fmt.Errorf("tar: %s: %w", clip(h.Name), err)
			}
		}
		if err != nil {
			return blame(err, source.err)
		}
	}
}

// File writes the archive f below dir as [Tar] does: a zip or a tar, which may be packed with gzip,
// zstd or xz. The first bytes decide.
func File(ctx context.Context, dir *os.Root, f *os.File, l Limits) error {
	source := &reader{r: f}
	b := bufio.NewReader(source)
	magic, err := b.Peek(6)
	if err != nil && err != io.EOF { //nolint:errorlint // Peek returns io.EOF itself
		return err
	}
	var r io.Reader = b
	switch {
	case bytes.HasPrefix(magic, []byte("PK\x03\x04")), bytes.HasPrefix(magic, []byte("PK\x05\x06")):
		return zipFile(ctx, dir, f, l)
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r, err = gzip.NewReader(b)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(128<<20)); err == nil {
			defer z.Close()
			r = z
		}
	case bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		r, err = xz.NewReader(b, 0)
	case !looksLikeTar(b):
		return fmt.Errorf("%w: neither zip nor tar, packed with gzip, zstd, xz or not at all", ErrArchive)
	default:
		err = nil
	}
	if err != nil {
		return blame(err, source.err)
	}
	return untar(ctx, dir, r, source, l)
}

// looksLikeTar reports whether b has the tar magic at the right offset, or is an archive without
// entries: a block of zeros.
func looksLikeTar(b *bufio.Reader) bool {
	head, _ := b.Peek(512)
	return len(head) == 512 && (string(head[257:262]) == "ustar" || bytes.Count(head, []byte{0}) == 512)
}

// reader remembers the error of the reader below.
type reader struct {
	r   io.Reader
	err error
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// blame marks errors with ErrArchive, except local failures.
func blame(err, source error) error {
	switch {
	case source != nil:
		return source
	case errors.Is(err, ErrLimit), errors.Is(err, ErrArchive), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO), errors.Is(err, unix.EMFILE):
		return err
	}
	return fmt.Errorf("%w: %w", ErrArchive, err)
}

type unpacker struct {
	ctx     context.Context //nolint:containedctx // of one call
	dir     *os.Root
	limits  Limits
	bytes   int64
	entries int
	made    map[string]time.Time // directories and their times
}

func newUnpacker(ctx context.Context, dir *os.Root, l Limits) *unpacker {
	return &unpacker{ctx: ctx, dir: dir, limits: l, made: map[string]time.Time{}}
}

// finish sets the directories' times. It runs last, because each new entry changes the time of the
// parent directory.
func (u *unpacker) finish() error {
	for name, mtime := range u.made {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if err := u.dir.Chtimes(name, mtime, mtime); err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // git archive's comment
	case tar.TypeDir:
		return u.directory(h.Name, fs.FileMode(h.Mode), h.ModTime)
	}
	if sparse(h) {
		return errors.New("is a sparse file: pack the archive without holes (GNU tar without --sparse)")
	}
	name, err := u.place(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(name, fs.FileMode(h.Mode), h.ModTime, body)
	case tar.TypeSymlink:
		return u.symlink(name, h.Linkname, h.ModTime)
	case tar.TypeLink:
		target, err := inside(h.Linkname)
		if err != nil {
			return err
		}
		return u.dir.Link(target, name)
	}
	return fmt.Errorf("is neither a file, a directory nor a link (type %q)", h.Typeflag)
}

// sparse reports whether an entry claims more bytes than the archive holds for it: in one of GNU
// tar's formats 0.0, 0.1 and 1.0, or in the old one.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

func (u *unpacker) directory(name string, mode fs.FileMode, mtime time.Time) error {
	name, err := inside(name)
	if err != nil {
		return err
	}
	if err := u.mkdirs(name); err != nil {
		return err
	}
	u.made[name] = seconds(mtime)
	return u.dir.Chmod(name, mode&0o777|0o700)
}

// place makes the parent directories of a file or link, and counts the entry.
func (u *unpacker) place(name string) (string, error) {
	name, err := inside(name)
	if err != nil {
		return "", err
	}
	if name == "." {
		return "", errors.New("is not a directory")
	}
	if err := u.mkdirs(path.Dir(name)); err != nil {
		return "", err
	}
	return name, u.count(1, 0)
}

func (u *unpacker) symlink(name, target string, mtime time.Time) error {
	if err := u.dir.Symlink(target, name); err != nil {
		return err
	}
	return lchtime(u.dir, name, mtime)
}

func seconds(t time.Time) time.Time { return time.Unix(t.Unix(), 0) }

func (u *unpacker) file(name string, mode fs.FileMode, mtime time.Time, body io.Reader) error {
	f, err := u.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// Do not trust the header: a zip entry's size may be false.
	n, err := io.Copy(f, io.LimitReader(body, u.limits.Bytes-u.bytes+1))
	if err == nil {
		err = u.count(0, n)
	}
	if err == nil {
		err = f.Chmod(mode&0o777 | 0o600)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return u.dir.Chtimes(name, seconds(mtime), seconds(mtime))
}

// mkdirs makes a directory and its parents. Directories without an entry in the archive get the
// time 0, to make the tree independent of the clock.
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

// count adds to the counters and checks limits and ctx.
func (u *unpacker) count(entries int, bytes int64) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	u.entries += entries
	u.bytes += bytes
	if u.entries > u.limits.Entries {
		return fmt.Errorf("%w of %d files and directories", ErrLimit, u.limits.Entries)
	}
	if u.bytes > u.limits.Bytes {
		return fmt.Errorf("%w of %d bytes", ErrLimit, u.limits.Bytes)
	}
	return nil
}

// maxName is the longest name that Linux and the store accept (NAME_MAX).
const maxName = 255

// inside returns the clean relative path of an entry.
func inside(name string) (string, error) {
	switch {
	case len(name) >= unix.PathMax: // each path element costs a lookup of all elements before it
		return "", fmt.Errorf("path too long: %d bytes, at most %d", len(name), unix.PathMax-1)
	case name == "" || strings.ContainsRune(name, 0):
		return "", errors.New("malformed path")
	case path.IsAbs(name):
		return "", errors.New("absolute path")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", errors.New("path with a .. element")
		case len(part) > maxName:
			return "", fmt.Errorf("name in the path too long: %d bytes, at most %d", len(part), maxName)
		}
	}
	return path.Clean(name), nil
}

// lchtime sets a symbolic link's own modification time, which is part of the tree's digest.
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

func clip(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return fmt.Sprintf("%q", name)
}
