package unpack

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxLink is the longest target of a symbolic link (PATH_MAX).
const maxLink = 4096

// Zip reads the directory of a zip archive, which archive/zip holds in memory: more than entries
// files are ErrLimit. The returned archive reads its files from r, so r must stay open.
func Zip(r io.ReaderAt, size int64, entries int) (*zip.Reader, error) {
	// Allow for the end of the archive with a comment of up to 64 KiB, and for each entry 46 bytes
	// and its name.
	b := &budget{ReaderAt: r, left: 256<<10 + int64(entries)*256}
	z, err := zip.NewReader(b, size)
	if err == nil && len(z.File) > entries {
		err = fmt.Errorf("%w of %d files", ErrLimit, entries)
	}
	b.lifted = true
	return z, err
}

// budget is an io.ReaderAt that allows left bytes until lifted is set.
type budget struct {
	io.ReaderAt
	left   int64
	lifted bool
}

// ReadAt implements io.ReaderAt.
func (b *budget) ReadAt(p []byte, at int64) (int, error) {
	if !b.lifted {
		if b.left -= int64(len(p)); b.left < 0 {
			return 0, fmt.Errorf("%w: the list of files is too long", ErrLimit)
		}
	}
	return b.ReaderAt.ReadAt(p, at)
}

// zipFile writes the zip archive f below dir. It supports archive/zip's part of APPNOTE.TXT: stored
// and deflated entries, not encrypted.
func zipFile(ctx context.Context, dir *os.Root, f *os.File, l Limits) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	z, err := Zip(f, info.Size(), l.Entries)
	if err != nil {
		return blame(err, nil)
	}
	u := newUnpacker(ctx, dir, l)
	for _, e := range z.File {
		if err := u.zipEntry(e); err != nil {
			return blame(fmt.Errorf("zip: %s: %w", clip(e.Name), err), nil)
		}
	}
	return u.finish()
}

func (u *unpacker) zipEntry(e *zip.File) error {
	if e.Flags&1 != 0 {
		return errors.New("is encrypted")
	}
	mode := e.Mode()
	if mode.IsDir() || strings.HasSuffix(e.Name, "/") {
		return u.directory(e.Name, mode, e.Modified)
	}
	name, err := u.place(e.Name)
	if err != nil {
		return err
	}
	body, err := e.Open()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	switch mode.Type() {
	case 0:
		return u.file(name, mode, e.Modified, body) // the last Read compares the checksum
	case fs.ModeSymlink:
		target, err := io.ReadAll(io.LimitReader(body, maxLink+1))
		if err != nil {
			return err
		}
		if len(target) == 0 || len(target) > maxLink {
			return fmt.Errorf("is a symbolic link to %d bytes", len(target))
		}
		return u.symlink(name, string(target), e.Modified)
	}
	return errors.New("is neither a file, a directory nor a link")
}
