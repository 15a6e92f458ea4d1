package image

import (
	"slices"

	"github.com/fre-engine/fre/image/debian"
)

// LeftOut is what slimming left out of a base environment, and so out of functions on the base.
type LeftOut struct {
	// Packages are dependencies that are needed only for an installation.
	Packages []string `json:"packages,omitempty"`
	// PackageBytes is the installed size of Packages, by the archive's index.
	PackageBytes int64          `json:"package_bytes,omitempty"`
	Files        []LeftOutFiles `json:"files,omitempty"`    // of the packages in the base
	Unopened     []LeftOutPart  `json:"unopened,omitempty"` // of a slimmed image ([Builder.Slim])

	// Apart are parts of the language in Debian packages that a template can add: name that a
	// program asks for → package.
	Apart map[string]string `json:"apart,omitempty"`
}

// LeftOutFiles are the files left out because of one pattern of [BaseSpec].
type LeftOutFiles struct {
	Pattern string `json:"pattern"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`

	// Names are the names that programs ask for: modules, programs, packages of classes.
	Names []string `json:"names,omitempty"`
}

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
