package node

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fre-engine/fre/runtimes/install"
)

// treeWriter receives a package's files; *store.Writer is one.
type treeWriter interface {
	File(path string, mode fs.FileMode, mtime time.Time, r io.Reader) error
	Directory(path string, mode fs.FileMode, mtime time.Time) error
}

// unpack writes the files of a package's archive, a tar in gzip, to w: without the first directory
// of each name, with modes 0644 and 0755 and one time for all. Like npm, unpack leaves links out,
// and returns their number. programs, the paths in package.json's bin, become executable. Paths
// that leave the archive, special files, and more data than limits allows are errors.
func unpack(r io.Reader, programs map[string]bool, limits *install.Counter, w treeWriter) (links int, err error) {
	z, err := gzip.NewReader(bufio.NewReaderSize(r, 64<<10))
	if err != nil {
		return 0, fmt.Errorf("archive: %w", err)
	}
	t := tar.NewReader(z)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return links, nil
		}
		if err != nil {
			return links, fmt.Errorf("archive: %w", err)
		}
		name, err := place(h.Name)
		if err != nil {
			return links, err
		}
		if err := limits.Add(h.Size); err != nil {
			return links, err
		}
		if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
			links++
			continue
		}
		if err := unpackEntry(h, name, programs, t, w); err != nil {
			return links, err
		}
	}
}

// unpackEntry writes the file or directory h to w as name.
func unpackEntry(h *tar.Header, name string, programs map[string]bool, content io.Reader, w treeWriter) (err error) {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
	case tar.TypeDir:
		if name != "" {
			err = w.Directory(name, 0o755, install.Time)
		}
	case tar.TypeReg, tar.TypeCont:
		mode := fs.FileMode(0o644)
		if h.Mode&0o111 != 0 || programs[name] {
			mode = 0o755
		}
		if name == "" {
			return fmt.Errorf("archive: %q is not below a directory", clip(h.Name))
		}
		err = w.File(name, mode, install.Time, content)
	default:
		return fmt.Errorf("archive: %q is a device or the like: only files and directories are in a package", clip(h.Name))
	}
	if err != nil {
		return fmt.Errorf("archive: %s: %w", clip(name), err)
	}
	return nil
}

// place returns the path of an archive's entry without the first directory, "" for that directory.
func place(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case path.IsAbs(name), clean == "..", strings.HasPrefix(clean, "../"), strings.Contains(name, "/../"), strings.HasSuffix(name, "/.."), strings.Contains(name, `\..\`):
		return "", fmt.Errorf("archive: %q leads out of the package", clip(name))
	case !utf8.ValidString(name), strings.ContainsRune(name, 0):
		return "", fmt.Errorf("archive: %q is no name for a file", clip(name))
	}
	_, rest, _ := strings.Cut(clean, "/")
	return rest, nil
}

// clip shortens a name for an error.
func clip(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

// pinnedHash is the expected hash of an archive.
type pinnedHash struct {
	algorithm string // "sha512"
	sum       func() hash.Hash
	want      []byte
}

// strongest returns the best hash of an integrity value (W3C Subresource Integrity):
// "sha512-BASE64", perhaps several with spaces between.
func strongest(integrity string) (pinnedHash, error) {
	for _, p := range []pinnedHash{
		{algorithm: "sha512", sum: sha512.New},
		{algorithm: "sha384", sum: sha512.New384},
		{algorithm: "sha256", sum: sha256.New},
		{algorithm: "sha1", sum: sha1.New}, // of packages from before 2017
	} {
		for word := range strings.FieldsSeq(integrity) {
			text, ok := strings.CutPrefix(word, p.algorithm+"-")
			if !ok {
				continue
			}
			text, _, _ = strings.Cut(text, "?")
			var err error
			if p.want, err = base64.StdEncoding.DecodeString(text); err != nil || len(p.want) != p.sum().Size() {
				return pinnedHash{}, fmt.Errorf("bad integrity %q", word)
			}
			return p, nil
		}
	}
	return pinnedHash{}, fmt.Errorf("bad integrity %q: no hash of a known kind", integrity)
}
