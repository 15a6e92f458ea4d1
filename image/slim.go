package image

import (
	"slices"

	"github.com/fre-engine/fre/image/debian"
)

// LeftOut is what slimming left out of a base environment, and so of the functions
// that stand on it.
type LeftOut struct {
	Packages     []string       `json:"packages,omitempty"`      // that those taken depend on for their installation
	PackageBytes int64          `json:"package_bytes,omitempty"` // that those take where they are installed, as the archive's index has it
	Files        []LeftOutFiles `json:"files,omitempty"`         // of the packages taken
	Unopened     []LeftOutPart  `json:"unopened,omitempty"`      // of a slimmed image ([Builder.Slim])

	// Apart are parts of the language in Debian packages that a template can add: what a
	// program asks for → the package.
	Apart map[string]string `json:"apart,omitempty"`
}

// LeftOutFiles are the files for which one pattern of [BaseSpec] is the reason.
type LeftOutFiles struct {
	Pattern string `json:"pattern"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`

	// Names are what programs ask for: modules, programs, packages of Java.
	Names []string `json:"names,omitempty"`
}

// slimming decides what of Debian packages becomes part of a tree, and counts the
// rest. It is used by one goroutine at a time.
type slimming struct {
	drop []dropped
	kept func(string) bool // false for what stays in any case
	left LeftOut
}

type dropped struct {
	LeftOutFiles
	keeps func(string) bool // false where the pattern matches
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

// reason is the pattern for which a path is left out: an index, or -1.
func (s *slimming) reason(path string) int {
	if !s.kept(path) {
		return -1
	}
	return slices.IndexFunc(s.drop, func(d dropped) bool { return !d.keeps(path) })
}

func (s *slimming) keep(path string) bool { return s.reason(path) < 0 }

// leavesOut says whether a path is left out, and counts it.
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

// result is what was left out, by pattern.
func (s *slimming) result() *LeftOut {
	for _, d := range s.drop {
		if d.Files > 0 {
			s.left.Files = append(s.left.Files, d.LeftOutFiles)
		}
	}
	return &s.left
}

// over is a writer that is told what is left out, besides what w is.
func (s *slimming) over(w debian.Writer) debian.Writer { return slimmed{w, s} }

type slimmed struct {
	debian.Writer
	s *slimming
}

// Dropped is of debian.Dropper.
func (w slimmed) Dropped(path string, size int64) {
	w.s.leavesOut(path, size)
}
