package image

import (
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/lazyregexp"
)

// slimming decides which files of Debian packages a tree gets, and counts the rest. One
// goroutine at a time may use it.
type slimming struct {
	drop []dropped
	kept func(string) bool // false for files that always stay
	left LeftOut
}

type dropped struct {
	LeftOutFiles
	keeps func(string) bool // false if the pattern matches
}

func newSlimming(spec BaseSpec) (*slimming, error) {
	kept, err := debian.Keep(spec.Keep)
	if err != nil {
		return nil, err
	}
	s := &slimming{kept: kept}
	for _, pattern := range spec.Drop {
		keeps, err := debian.Keep([]string{pattern})
		if err != nil {
			return nil, err
		}
		s.drop = append(s.drop, dropped{LeftOutFiles{Pattern: pattern}, keeps})
	}
	return s, nil
}

// reason returns the index of the pattern that leaves a path out, or -1.
func (s *slimming) reason(path string) int {
	if !s.kept(path) {
		return -1
	}
	return slices.IndexFunc(s.drop, func(d dropped) bool { return !d.keeps(path) })
}

func (s *slimming) keep(path string) bool { return s.reason(path) < 0 }

// leavesOut reports whether a path is left out, and counts the path if so.
func (s *slimming) leavesOut(path string, bytes int64, names ...string) bool {
	i := s.reason(path)
	if i >= 0 {
		d := &s.drop[i]
		d.Files++
		d.Bytes += bytes
		if name := asked(d.Pattern, path); len(names) == 0 && name != "" {
			names = []string{name}
		}
		for _, name := range names {
			if !slices.Contains(d.Names, name) {
				d.Names = append(d.Names, name)
			}
		}
	}
	return i >= 0
}

// result returns the omissions, by pattern.
func (s *slimming) result() *LeftOut {
	for _, d := range s.drop {
		if d.Files > 0 {
			s.left.Files = append(s.left.Files, d.LeftOutFiles)
		}
	}
	return &s.left
}

// over returns a writer on w that also counts the files left out.
func (s *slimming) over(w debian.Writer) debian.Writer { return slimmed{w, s} }

type slimmed struct {
	debian.Writer
	s *slimming
}

// Dropped implements debian.Dropper.
func (w slimmed) Dropped(path string, size int64) {
	w.s.leavesOut(path, size)
}

// documentation returns patterns of files that no program reads. No base has them; packages have
// them only with slim: false.
func documentation() []string {
	return []string{
		"usr/share/bug", "usr/share/doc", "usr/share/doc-base", "usr/share/gtk-doc", "usr/share/info", "usr/share/lintian",
		"usr/share/locale", "usr/share/man", "usr/share/menu", "usr/share/bash-completion", "usr/share/zsh",
	}
}

// versioned matches the end of a gem's directory.
var versioned = lazyregexp.New(`-[0-9][0-9.]*$`)

// askedName returns the name by which programs ask for a file or directory: "nis" for
// nis.cpython-311-x86_64-linux-gnu.so, "debug" for debug-1.6.3.
func askedName(name string) string {
	return stem(versioned.ReplaceAllString(path.Base(name), ""))
}

// asked returns the name by which programs ask for the part of a path that pattern matches; "" for
// data, which programs open by path.
func asked(pattern, name string) string {
	if strings.HasPrefix(pattern, "usr/share/") || strings.HasPrefix(pattern, "usr/include") || strings.Contains(pattern, "**") {
		return ""
	}
	parts := strings.Split(name, "/")
	return askedName(parts[min(strings.Count(pattern, "/"), len(parts)-1)])
}

// stem returns a file's name up to the first dot.
func stem(p string) string {
	name, _, _ := strings.Cut(path.Base(p), ".")
	return name
}
