// Package freignore selects the files of a directory that do not belong to a function's code. A
// .freignore names these files, and the client does not send them to the engine.
package freignore

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/bom"
	"github.com/fre-engine/fre/internal/glob"
)

// File is the name of the file with the patterns.
const File = ".freignore"

// List holds the patterns of a .freignore, one per line, with the syntax of .gitignore: # begins a
// comment, ! takes a match back, a slash at the end restricts a pattern to directories, a slash
// elsewhere anchors a pattern at the top, ** matches any depth. The last matching line decides.
// Nothing below an ignored directory can be included again.
type List []pattern

type pattern struct {
	glob    glob.Pattern
	dirOnly bool
	keep    bool
}

// Parse reads a .freignore, with or without a byte order mark. An error names the line, but not the
// file.
func Parse(text []byte) (List, error) {
	var list List
	n := 0
	for line := range strings.Lines(string(bom.Decode(text))) {
		n++
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		p := pattern{}
		line, p.keep = strings.CutPrefix(line, "!")
		line, p.dirOnly = strings.CutSuffix(line, "/")
		if !strings.Contains(line, "/") {
			line = "**/" + line
		}
		var err error
		if p.glob, err = glob.Parse(strings.TrimPrefix(line, "/")); err != nil {
			return nil, fmt.Errorf("line %d: %w: write it as in a .gitignore", n, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// Match reports whether the path, relative to the .freignore, is ignored.
func (l List) Match(p string, dir bool) bool {
	segments := strings.Split(p, "/")
	for _, p := range slices.Backward(l) {
		if (dir || !p.dirOnly) && p.glob.Match(segments) {
			return !p.keep
		}
	}
	return false
}

// Kind names the type of a file that a template's code cannot contain: neither a regular file nor a
// directory nor a symlink.
func Kind(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "fifo"
	case mode&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}
