// Package freignore says which files of a directory are left out of a function's
// code, and so are not sent to the engine: those that its .freignore names.
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

// List holds the patterns of a .freignore: as in .gitignore, one a line;
// # begins a comment, ! takes back, a slash at the end means directories only,
// a slash elsewhere ties the pattern to the top, ** stands for any depth. The
// last line that matches counts. What is below an ignored directory stays out.
type List []pattern

type pattern struct {
	glob    glob.Pattern
	dirOnly bool
	keep    bool
}

// Parse reads a .freignore, which may begin with a byte order mark. An error names the line,
// not the file.
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

// Match says whether the path, relative to the .freignore, is left out.
func (l List) Match(p string, dir bool) bool {
	segments := strings.Split(p, "/")
	for _, p := range slices.Backward(l) {
		if (dir || !p.dirOnly) && p.glob.Match(segments) {
			return !p.keep
		}
	}
	return false
}

// Kind names the type of a file that a template's code cannot hold: no regular file,
// directory or symlink.
func Kind(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "fifo"
	case mode&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}
