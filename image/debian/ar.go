package debian

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// openMember returns the uncompressed data.tar or control.tar of a .deb; see deb(5). An ar file is
// "!<arch>\n", then members:
//
//	offset 0  name, 16 bytes      48  size, decimal, 10 bytes
//	      16  mtime, ids, mode    58  "`\n"
//	      60  content, padded to an even length
//
// closeData frees the decoder.
func openMember(r io.Reader, member string) (data io.Reader, closeData func(), err error) {
	if err := readMagic(r); err != nil {
		return nil, nil, err
	}
	for first := true; ; first = false {
		h := make([]byte, 60)
		if _, err := io.ReadFull(r, h); err != nil {
			return nil, nil, fmt.Errorf("no %s in the package: %w", member, err)
		}
		name, size, err := parseMember(h)
		if err != nil {
			return nil, nil, err
		}
		content := io.LimitReader(r, size)
		if first {
			if err := checkFormat(name, content); err != nil {
				return nil, nil, err
			}
		}
		if ext, ok := strings.CutPrefix(name, member); ok {
			return decompress(ext, content)
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return nil, nil, err
		}
		if _, err := io.CopyN(io.Discard, r, size%2); err != nil {
			return nil, nil, fmt.Errorf("no %s in the package: %w", member, err)
		}
	}
}

func readMagic(r io.Reader) error {
	magic := make([]byte, 8)
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != "!<arch>\n" {
		return errors.New("not a Debian package: no ar header")
	}
	return nil
}

// parseMember reads a member's header of 60 bytes.
func parseMember(h []byte) (name string, size int64, err error) {
	name = strings.TrimSuffix(strings.TrimRight(string(h[:16]), " "), "/")
	size, err = strconv.ParseInt(strings.TrimRight(string(h[48:58]), " "), 10, 64)
	if err != nil || size < 0 || !bytes.Equal(h[58:], []byte("`\n")) {
		return "", 0, errors.New("bad ar member header")
	}
	return name, size, nil
}

// checkFormat refuses a first member other than debian-binary of version 2.
func checkFormat(name string, content io.Reader) error {
	v, err := io.ReadAll(io.LimitReader(content, 64))
	if err != nil {
		return err
	}
	if name != "debian-binary" || !bytes.HasPrefix(v, []byte("2.")) {
		return fmt.Errorf("not a Debian package of format 2: %q %q", name, v)
	}
	return nil
}

func decompress(ext string, r io.Reader) (io.Reader, func(), error) {
	none := func() {}
	switch ext {
	case "":
		return r, none, nil
	case ".gz":
		z, err := gzip.NewReader(r)
		return z, none, err
	case ".xz":
		z, err := xz.NewReader(r, 0) // a dictionary of at most 64 MiB, the largest of dpkg-deb
		return z, none, err
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return nil, nil, fmt.Errorf("compression %q is not supported", ext)
}

// boundReader returns an error at the limit; io.LimitReader would end quietly.
type boundReader struct {
	r    io.Reader
	left int64
}

func (b *boundReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

var errTooLarge = errors.New("larger than announced or allowed")
