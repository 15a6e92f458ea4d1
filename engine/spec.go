package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/fre-engine/fre/store"
)

// functionSpec is the JSON in store.Function.Spec. Template and Version are the main revision's.
// The function keeps them because an image loses its name to the next build.
type functionSpec struct {
	Template  string `json:"template"`
	Version   string `json:"version"`
	Tenant    string `json:"tenant"`              // "" in older records with unqualified names: see qualifyNames
	Temporary bool   `json:"temporary,omitempty"` // see DeployOptions
	Trace     bool   `json:"trace,omitempty"`     // see DeployOptions

	// Older records have one revision and lack the fields below.
	Revisions []Revision     `json:"revisions,omitempty"` // the kept revisions, oldest first
	Last      int            `json:"last,omitempty"`      // the highest number ever used
	Traffic   Traffic        `json:"traffic,omitzero"`
	Aliases   map[string]int `json:"aliases,omitempty"`

	known bool // came from Config.Table: do not write to the table again
}

// specOf decodes a record of the store.
func specOf(rec *store.Function) (*functionSpec, error) {
	s := new(functionSpec)
	if err := json.Unmarshal(rec.Spec, s); err != nil {
		return nil, fmt.Errorf("record of function %s: %w", rec.Name, err)
	}
	if len(s.Revisions) == 0 {
		s.Revisions = []Revision{{Number: 1, Image: rec.Image, Template: s.Template, Version: s.Version, Deployed: rec.Deployed}}
		s.Last, s.Traffic = 1, allTo(1)
	}
	return s, nil
}

func (s *functionSpec) clone() *functionSpec {
	c := *s
	c.Revisions, c.Aliases, c.known = slices.Clone(s.Revisions), maps.Clone(s.Aliases), false
	return &c
}

// record encodes s for the store, with the main revision's image, template and version.
func (s *functionSpec) record(name string) (*store.Function, error) {
	main := s.keptRevision(s.main())
	s.Template, s.Version = main.Template, main.Version
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	rec := &store.Function{Name: name, Image: main.Image, Spec: raw, Deployed: main.Deployed}
	for _, r := range s.Revisions {
		rec.Images = append(rec.Images, r.Image)
	}
	return rec, nil
}

// main returns the number of the revision with the largest weight; of equals, the newest.
func (s *functionSpec) main() int {
	return slices.MaxFunc(s.Traffic.Weights, func(a, b Weight) int {
		return cmp.Or(cmp.Compare(a.Percent, b.Percent), cmp.Compare(a.Revision, b.Revision))
	}).Revision
}

// keptRevision returns the kept revision of a number, or nil.
func (s *functionSpec) keptRevision(number int) *Revision {
	for i := range s.Revisions {
		if s.Revisions[i].Number == number {
			return &s.Revisions[i]
		}
	}
	return nil
}

// deployedAs returns the newest revision of an image and template, or nil.
func (s *functionSpec) deployedAs(img store.Digest, template string) *Revision {
	for i := range slices.Backward(s.Revisions) {
		if r := &s.Revisions[i]; r.Image == img && r.Template == template {
			return r
		}
	}
	return nil
}

// serves reports whether the revision has a weight, a header route or an alias.
func (s *functionSpec) serves(number int) bool {
	return slices.ContainsFunc(s.Traffic.Weights, func(w Weight) bool { return w.Revision == number }) ||
		slices.ContainsFunc(s.Traffic.Headers, func(h HeaderRoute) bool { return h.Revision == number }) ||
		slices.Contains(slices.Collect(maps.Values(s.Aliases)), number)
}

// prune keeps the newest keep revisions without events or aliases, and forgets older ones. The
// newest revision of all always stays.
func (s *functionSpec) prune(keep int) {
	idle := 0
	for i := len(s.Revisions) - 1; i >= 0; i-- {
		if n := s.Revisions[i].Number; s.serves(n) || n == s.Last {
			continue
		}
		if idle++; idle > keep {
			s.Revisions = slices.Delete(s.Revisions, i, i+1)
		}
	}
}

// configDigest returns the value of Revision.Config.
func configDigest(img *store.Image) store.Digest {
	return store.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(img.Config)))
}

func allTo(revision int) Traffic { return Traffic{Weights: []Weight{{revision, 100}}} }
