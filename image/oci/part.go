package oci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/store"
)

// A part of an image that FRE built is sent as a tar of its tree:
//
//	tree.json   the tree's canonical encoding, whose digest the image's manifest names
//	0           the content of its first object (store.Tree.Objects)
//	1           the content of the second
//	…
//
// The archive holds nothing else, and has the same bytes each time. It names no files: tree.json
// alone decides the result, and is checked before the reader looks at the rest.
const partTree = "tree.json"

// maxTreeBytes bounds a tree's encoding: some 500,000 files.
const maxTreeBytes = 128 << 20

// packPart writes the part's archive.
func (j *job) packPart(ctx context.Context, w *tar.Writer, tree store.Digest) error {
	b, err := j.store.TreeBytes(tree)
	if err != nil {
		return err
	}
	t, err := store.DecodeTree(tree, b)
	if err != nil {
		return err
	}
	header := func(name string, size int64) error {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
	}
	if err := header(partTree, int64(len(b))); err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	n := 0
	for e := range t.Objects() {
		if err := header(strconv.Itoa(n), e.Size); err != nil {
			return err
		}
		if err := j.copyFile(ctx, w, e); err != nil {
			return err
		}
		n++
	}
	return nil
}

// unpackPart reads an archive of packPart, packed or not, and puts the tree into the store. The
// caller holds the store. Errors: ErrArchive for any other archive, ErrLimit, and the errors of r
// and of the store.
func (j *job) unpackPart(ctx context.Context, want store.Digest, r io.Reader) error {
	plain, err := decompress(r, j.limits)
	if err != nil {
		return err
	}
	defer plain.Close()
	if err := j.readPart(ctx, want, plain); err != nil {
		return err
	}
	return nil
}

func (j *job) readPart(ctx context.Context, want store.Digest, r io.Reader) error {
	a := tar.NewReader(r)
	t, size, err := j.readTree(want, a)
	if err != nil {
		return err
	}
	if err := j.growTree(t, size); err != nil {
		return err
	}
	n := 0
	err = j.store.PutTree(ctx, t, func(e *store.Entry) (io.Reader, error) {
		if n%256 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		size, err := member(a, strconv.Itoa(n))
		if err == nil && size != e.Size {
			err = fmt.Errorf("%w: %s is to have %d bytes and has %d", ErrArchive, clip(e.Path), e.Size, size)
		}
		n++
		return a, err
	})
	switch {
	case errors.Is(err, store.ErrTree):
		return fmt.Errorf("%w: %w", ErrArchive, err)
	case err != nil:
		return archiveError(err)
	}
	return readEnd(a, r)
}

// growTree counts a tree against the limits, before its first object is stored.
func (j *job) growTree(t *store.Tree, size int64) error {
	if j.names.Add(size) > j.limits.Names {
		return fmt.Errorf("%w of %d bytes of lists of files", ErrLimit, j.limits.Names)
	}
	if err := j.grow(int64(len(t.Entries)), 0); err != nil {
		return err
	}
	for e := range t.Objects() {
		if err := j.grow(0, e.Size); err != nil {
			return err
		}
	}
	return nil
}

// readTree reads the list of a part's files, and returns the list's size.
func (j *job) readTree(want store.Digest, a *tar.Reader) (*store.Tree, int64, error) {
	size, err := member(a, partTree)
	if err != nil {
		return nil, 0, err
	}
	if limit := min(maxTreeBytes, j.limits.Names); size > limit {
		return nil, 0, fmt.Errorf("%w of %d bytes of a list of files", ErrLimit, limit)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(a, b); err != nil {
		return nil, 0, archiveError(err)
	}
	t, err := store.DecodeTree(want, b)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	return t, size, nil
}

// readEnd checks that the archive ends after its last file, and reads to the end of r.
func readEnd(a *tar.Reader, r io.Reader) error {
	if h, err := a.Next(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = fmt.Errorf("%w: %s after the last file", ErrArchive, clip(h.Name))
		}
		return archiveError(err)
	}
	// Read to the end, for the digest; little can follow a tar's end.
	if n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20)); err != nil || n == 1<<20 {
		if err == nil {
			err = fmt.Errorf("%w: data after the end of the archive", ErrArchive)
		}
		return err
	}
	return nil
}

// member goes to the next file of the archive, which must have the given name.
func member(a *tar.Reader, name string) (size int64, err error) {
	h, err := a.Next()
	switch {
	case errors.Is(err, io.EOF):
		return 0, fmt.Errorf("%w: ends before %s", ErrArchive, name)
	case err != nil:
		return 0, archiveError(err)
	case h.Name != name || h.Typeflag != tar.TypeReg:
		return 0, fmt.Errorf("%w: %s instead of the file %s", ErrArchive, clip(h.Name), name)
	case sparse(h):
		return 0, fmt.Errorf("%w: %s has holes", ErrArchive, name)
	}
	return h.Size, nil
}

// partKey names a tree's archive in the store's memory, as a diff id names a layer's.
func partKey(tree store.Digest) string { return "part:" + string(tree) }

// partTitle is a part's name for people and for file names.
func partTitle(p store.Part) string {
	words := slices.DeleteFunc([]string{p.Kind, p.Name, p.Version}, func(s string) bool { return s == "" })
	return strings.ReplaceAll(strings.Join(words, "-"), "/", "-")
}

func (j *job) copyFile(ctx context.Context, w io.Writer, e *store.Entry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f, err := j.store.OpenFile(e)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(w, f)
	if err == nil && n != e.Size {
		err = fmt.Errorf("%s has %d bytes, not %d: fre system fsck finds out why", e.Path, n, e.Size)
	}
	return err
}
