package oci

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/store"
)

// A recipe holds the bytes of a layer's archive around the contents of its files. With the tree, it
// makes the same archive again:
//
//	"fre layer 1\n"
//	'r' LENGTH BYTES...   LENGTH bytes as they are: headers, padding, all but file contents
//	'f' LENGTH PATH       the content of the tree's file PATH
//	…                     until the end; all of it gzip
//
// LENGTH is an unsigned varint (encoding/binary). docker uses tar-split for the same purpose.
const (
	recipeMagic = "fre layer 1\n"
	recipePath  = ".wh..wh..fre-recipe" // in the layer's tree; no entry of a layer has this name
	// replacedPath and a number name the content of an entry that a later entry of the same path
	// replaced.
	replacedPath = ".wh..wh..fre-replaced"
)

// redirect copies a recipe to a file and seeks to the file's beginning. For each path the first
// contents come from the paths in over.
func redirect(from io.Reader, to *os.File, over map[string][]string) error {
	rec, finish := newRecorder(nil, to, func(int64) error { return nil })
	err := readRecipe(from, func(b []byte) error {
		rec.record('r', b)
		return rec.err
	}, func(path string) error {
		if kept := over[path]; len(kept) > 0 {
			over[path], path = kept[1:], kept[0]
		}
		rec.record('f', []byte(path))
		return rec.err
	})
	if err = errors.Join(err, finish()); err != nil {
		return err
	}
	_, err = to.Seek(0, io.SeekStart)
	return err
}

const maxRaw = 1 << 20 // bytes of one 'r'

// ErrRecipe: a layer's recipe is damaged.
var ErrRecipe = failure.New(failure.Internal, "damaged layer recipe", "pull or load the image again")

// recorder passes an archive on and writes its recipe.
type recorder struct {
	r    io.Reader
	grow func(bytes int64) error // counts bytes of the recipe
	out  *bufio.Writer
	raw  []byte
	skip bool // the passing bytes are the content of a file
	err  error
}

func newRecorder(r io.Reader, w io.Writer, grow func(bytes int64) error) (*recorder, func() error) {
	z := gzip.NewWriter(w)
	rec := &recorder{r: r, grow: grow, out: bufio.NewWriter(z)}
	_, rec.err = rec.out.WriteString(recipeMagic)
	return rec, func() error {
		rec.flush()
		return errors.Join(rec.err, rec.out.Flush(), z.Close())
	}
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if !r.skip {
		if r.err == nil {
			r.err = r.grow(int64(n))
		}
		r.raw = append(r.raw, p[:n]...)
		if len(r.raw) >= maxRaw/2 {
			r.flush()
		}
	}
	if r.err != nil {
		return 0, r.err
	}
	return n, err
}

// file announces that the content of the tree's file passes until the next call of rest.
func (r *recorder) file(path string) {
	r.flush()
	r.record('f', []byte(path))
	r.skip = true
}

func (r *recorder) rest() { r.skip = false }

func (r *recorder) flush() {
	for raw := r.raw; len(raw) > 0; {
		n := min(len(raw), maxRaw)
		r.record('r', raw[:n])
		raw = raw[n:]
	}
	r.raw = r.raw[:0]
}

func (r *recorder) record(kind byte, b []byte) {
	if r.err != nil {
		return
	}
	head := binary.AppendUvarint([]byte{kind}, uint64(len(b)))
	if _, r.err = r.out.Write(head); r.err == nil {
		_, r.err = r.out.Write(b)
	}
}

// readRecipe calls raw for each piece of bytes and file for each file.
func readRecipe(r io.Reader, raw func([]byte) error, file func(path string) error) error {
	b, err := openPieces(r)
	if err != nil {
		return err
	}
	buf := make([]byte, 0, 64<<10)
	for {
		kind, err := b.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			buf, err = readPiece(b, buf)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRecipe, err)
		}
		switch kind {
		case 'r':
			err = raw(buf)
		case 'f':
			err = file(string(buf))
		default:
			return fmt.Errorf("%w: unknown piece %q", ErrRecipe, kind)
		}
		if err != nil {
			return err
		}
	}
}

// openPieces reads a recipe's first line.
func openPieces(r io.Reader) (*bufio.Reader, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecipe, err)
	}
	b := bufio.NewReader(z)
	magic := make([]byte, len(recipeMagic))
	if _, err := io.ReadFull(b, magic); err != nil || string(magic) != recipeMagic {
		return nil, fmt.Errorf("%w: first line is %q", ErrRecipe, magic)
	}
	return b, nil
}

// readPiece reads the length of a piece and its bytes, into buf if they fit.
func readPiece(b *bufio.Reader, buf []byte) ([]byte, error) {
	n, err := binary.ReadUvarint(b)
	if err != nil {
		return buf, err
	}
	if n > maxRaw {
		return buf, fmt.Errorf("a piece of %d bytes", n)
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, 0, n)
	}
	buf = buf[:n]
	_, err = io.ReadFull(b, buf)
	return buf, err
}

// files indexes a tree's files by path.
func files(t *store.Tree) map[string]*store.Entry {
	m := make(map[string]*store.Entry, len(t.Entries))
	for i := range t.Entries {
		if e := &t.Entries[i]; e.Kind == store.KindFile && (!e.Aside || strings.HasPrefix(e.Path, replacedPath)) {
			m[e.Path] = e
		}
	}
	return m
}

// openRecipe opens a tree's recipe; nil without one.
func openRecipe(s *store.Store, t *store.Tree) (io.ReadCloser, error) {
	for i := range t.Entries {
		if e := &t.Entries[i]; e.Aside && e.Path == recipePath {
			return s.OpenFile(e)
		}
	}
	return nil, nil
}
