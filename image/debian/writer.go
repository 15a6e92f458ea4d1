package debian

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/glob"
)

// Writer takes the files of a tree. Paths are relative, slash-separated and clean. Parents come
// before their contents, and no path comes twice. *store.Writer is one.
type Writer interface {
	File(path string, mode fs.FileMode, mtime time.Time, r io.Reader) error
	Directory(path string, mode fs.FileMode, mtime time.Time) error
	Symlink(path, target string, mtime time.Time) error
}

// Dropper is a Writer that also learns which files keep rejects.
type Dropper interface {
	Dropped(path string, size int64)
}

// Keep returns a keep function for Unpack that drops the given globs, see [glob.Pattern]. A pattern
// that matches a directory drops all files below.
func Keep(drop []string) (func(string) bool, error) {
	patterns := make([]glob.Pattern, len(drop))
	for i, d := range drop {
		p, err := glob.Parse(d)
		if err != nil {
			return nil, fmt.Errorf("pattern %w", err)
		}
		patterns[i] = append(p, "**")
	}
	return func(p string) bool {
		segments := strings.Split(p, "/")
		return !slices.ContainsFunc(patterns, func(p glob.Pattern) bool { return p.Match(segments) })
	}, nil
}
