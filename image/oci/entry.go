package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/fre-engine/fre/store"
)

// inside returns the clean path of an entry below the root, "" for the root.
func inside(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse("an entry without a name: make the image again")
	case strings.IndexByte(name, 0) >= 0:
		return "", refuse("a name with a NUL byte: make the layer with clean names")
	}
	name = path.Clean(strings.TrimLeft(name, "/"))
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", refuse("path out of the root: pack the layer with clean paths")
	}
	if name == "." {
		return "", nil
	}
	return name, nil
}

func clip(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return fmt.Sprintf("%q", name)
}

// archiveError marks errors of a broken archive with ErrArchive and errors of its entries with
// ErrLayer.
func archiveError(err error) error {
	if errors.Is(err, ErrArchive) {
		return err
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: damaged or truncated: %w", ErrArchive, err)
	}
	if errors.Is(err, store.ErrPath) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrOwner) {
		return fmt.Errorf("%w: %w", ErrLayer, err)
	}
	return err
}

func refuse(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrLayer, fmt.Sprintf(format, a...))
}

// sparse reports whether the archive stores the entry's content in a sparse format: GNU tar's
// formats 0.0, 0.1 and 1.0, or the oldest, which archive/tar reads as a regular file.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}
