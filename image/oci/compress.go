package oci

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// decompress detects the compression of r by the first bytes: gzip, zstd or none. The caller closes
// the returned reader, which does not close r.
func decompress(r io.Reader, l Limits) (io.ReadCloser, error) {
	packed := &counter{r: r}
	b := bufio.NewReaderSize(packed, 64<<10)
	magic, err := b.Peek(6)
	if err != nil && err != io.EOF { //nolint:errorlint // Peek returns io.EOF itself
		return nil, err
	}
	var open io.ReadCloser
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if open, err = gzip.NewReader(b); err != nil {
			return nil, fmt.Errorf("%w: gzip: %w", ErrArchive, err)
		}
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// One goroutine: layers are unpacked in parallel already.
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(128<<20))
		if err != nil {
			return nil, fmt.Errorf("%w: zstd: %w", ErrArchive, err)
		}
		open = z.IOReadCloser()
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, fmt.Errorf("%w: compressed with bzip2 or xz: decompress the archive first (bunzip2, unxz), or use gzip or zstd", ErrArchive)
	default:
		return io.NopCloser(b), nil
	}
	return &unpacked{ReadCloser: open, packed: packed, limits: l}, nil
}

type counter struct {
	r      io.Reader
	n      int64
	failed bool // r returned an error besides io.EOF
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.failed = c.failed || err != nil && err != io.EOF
	return n, err
}

// unpacked enforces the limit on the compression ratio and reports a broken stream as ErrArchive.
type unpacked struct {
	io.ReadCloser
	packed *counter
	limits Limits
	n      int64
}

func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if u.n += int64(n); u.n > u.limits.Free && u.n/u.limits.Ratio > u.packed.n {
		return 0, fmt.Errorf("%w: compression ratio above %d", ErrLimit, u.limits.Ratio)
	}
	if err != nil && err != io.EOF && !u.packed.failed { //nolint:errorlint // a Reader's end is io.EOF itself
		err = fmt.Errorf("%w: damaged or truncated: %w", ErrArchive, err)
	}
	return n, err
}

// zstdWriter is deterministic: equal input gives equal output. One goroutine is enough, because
// layers are packed in parallel already.
func zstdWriter(w io.Writer) (io.WriteCloser, error) {
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
