package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Errors of revisions, beside *UnknownError for a revision no longer kept. The texts name the
// next step.
var (
	ErrTraffic      = failure.New(failure.BadRequest, "invalid traffic weights", "")
	ErrNoRevision   = failure.New(failure.Conflict, "no earlier revision", "")
	ErrRevisionUsed = failure.New(failure.InUse, "revision is in use", "")
	ErrImageGone    = failure.New(failure.ImageGone, "image of the revision is gone", "")
)

// defaultRevisions is how many revisions without events or aliases are kept.
const defaultRevisions = 5

// latest names the newest revision. No alias may have this name.
const latest = "latest"

// Revision is one deployment of a function.
type Revision struct {
	Number   int          `json:"number"` // 1, 2, …; a number is never used again
	Image    store.Digest `json:"image"`
	Template string       `json:"template"`
	Version  string       `json:"version"`
	Config   store.Digest `json:"config,omitempty"` // digest of the image's configuration: the part of the template in force
	Deployed time.Time    `json:"deployed"`
	By       string       `json:"by,omitempty"` // the deployer
}

// Weight is a revision's share of events, in percent.
type Weight struct {
	Revision int `json:"revision"`
	Percent  int `json:"percent"`
}

// HeaderRoute sends events with this header to a revision.
type HeaderRoute struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Revision int    `json:"revision"`
}

// Traffic says where events go unless they name a revision.
type Traffic struct {
	Weights []Weight      `json:"weights"`           // 100 in sum; newest revision first
	Headers []HeaderRoute `json:"headers,omitempty"` // tried before Weights; the first match wins

	// Sticky is "header:NAME" or "cookie:NAME": events with the same value go to the same
	// revision until the weights change.
	Sticky string `json:"sticky,omitempty"`
}

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
	main := s.revision(s.main())
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

func allTo(revision int) Traffic { return Traffic{Weights: []Weight{{revision, 100}}} }

// main returns the number of the revision with the largest weight; of equals, the newest.
func (s *functionSpec) main() int {
	return slices.MaxFunc(s.Traffic.Weights, func(a, b Weight) int {
		return cmp.Or(cmp.Compare(a.Percent, b.Percent), cmp.Compare(a.Revision, b.Revision))
	}).Revision
}

// revision returns the kept revision of a number, or nil.
func (s *functionSpec) revision(number int) *Revision {
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

// resolve returns the number of the revision that a number, an alias or "latest" names.
func (s *functionSpec) resolve(name, what string) (int, error) {
	number, ok := s.Aliases[what]
	if !ok {
		number, _ = strconv.Atoi(what)
	}
	if what == latest {
		number = s.Last
	}
	if s.revision(number) == nil || strconv.Itoa(number) != what && !ok && what != latest {
		return 0, &UnknownError{Function: name, Revision: what}
	}
	return number, nil
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

// deployment is a function with its revisions. A deployment is immutable: a change publishes a
// new deployment in Engine.functions.
type deployment struct {
	name string
	only *function // takes all events without a named revision; nil while traffic is split
	main *function
	spec *functionSpec
	live map[int]*function // by number: serving and resting revisions
	logs *live.Log

	front   Front     // for events without a named revision
	weights []weighed // of the split
	total   int
	shown   atomic.Pointer[Function] // the last value of describe
}

type weighed struct {
	*function
	percent int
}

func newDeployment(name string, spec *functionSpec, live map[int]*function, logs *live.Log) (*deployment, error) {
	d := &deployment{name: name, spec: spec, live: live, logs: logs}
	for _, w := range spec.Traffic.Weights {
		if f := live[w.Revision]; f != nil { // else the image is lost: the rest of the weights share its events
			d.weights = append(d.weights, weighed{f, w.Percent})
			d.total += w.Percent
		}
	}
	if d.main = live[spec.main()]; d.main == nil {
		if len(d.weights) == 0 {
			return nil, fmt.Errorf("function %s: no revision can run: %w", name, fs.ErrNotExist)
		}
		d.main = d.weights[0].function
	}
	if len(d.weights) == 1 && len(spec.Traffic.Headers) == 0 {
		d.only = d.weights[0].function
	}
	d.front = d.main.front()
	for _, w := range d.weights {
		d.front.Access = strictest(d.front.Access, w.config.Access)
	}
	for _, h := range spec.Traffic.Headers {
		if f := live[h.Revision]; f != nil {
			d.front.Access = strictest(d.front.Access, f.config.Access)
		}
	}
	return d, nil
}

// pick chooses the revision of an event by header route, sticky value or weight.
func (d *deployment) pick(r *Request) *function {
	for _, h := range d.spec.Traffic.Headers {
		if f := d.live[h.Revision]; f != nil && slices.ContainsFunc(r.Headers, func(f [2]string) bool {
			return strings.EqualFold(f[0], h.Name) && f[1] == h.Value
		}) {
			return f
		}
	}
	if len(d.weights) == 0 { // only header routes are left: see newDeployment
		return d.main
	}
	n := -1
	if value := stickyValue(d.spec.Traffic.Sticky, r.Headers); value != "" {
		h := uint32(2166136261) // FNV-1a: every engine picks the same revision
		for i := range len(value) {
			h = (h ^ uint32(value[i])) * 16777619
		}
		n = int(h % uint32(d.total))
	}
	if n < 0 {
		n = rand.IntN(d.total)
	}
	for _, w := range d.weights {
		if n -= w.percent; n < 0 {
			return w.function
		}
	}
	return d.main
}

// stickyValue returns the value of the header or cookie that Traffic.Sticky names, or "".
func stickyValue(sticky string, header [][2]string) string {
	kind, name, _ := strings.Cut(sticky, ":")
	for _, f := range header {
		switch {
		case kind == "header" && strings.EqualFold(f[0], name):
			return f[1]
		case kind == "cookie" && strings.EqualFold(f[0], "Cookie"):
			for pair := range strings.SplitSeq(f[1], ";") {
				if key, value, _ := strings.Cut(strings.TrimSpace(pair), "="); key == name {
					return value
				}
			}
		}
	}
	return ""
}

// find returns the deployment of a qualified name.
func (e *Engine) find(name string) (*deployment, error) {
	all := *e.functions.Load()
	if d := all[name]; d != nil {
		return d, nil
	}
	if plain, tenant, err := template.SplitName(name); err == nil { // maybe NAME.default
		if d := all[template.QualifiedName(plain, tenant)]; d != nil {
			return d, nil
		}
	}
	return nil, &UnknownError{Function: name}
}

// route returns the revision to handle an event: by the traffic of NAME, or the revision in
// NAME@REVISION. told says that the caller is to learn the revision.
func (e *Engine) route(name string, r *Request) (f *function, told bool, err error) {
	if d := (*e.functions.Load())[name]; d != nil && d.only != nil {
		return d.only, false, nil
	}
	qualified, revision, asked := strings.Cut(name, "@")
	d, err := e.find(qualified)
	switch {
	case err != nil:
		return nil, false, err
	case !asked && d.only != nil:
		return d.only, false, nil
	case !asked:
		return d.pick(r), true, nil
	}
	number, err := d.spec.resolve(d.name, revision)
	if err != nil {
		return nil, false, err
	}
	if f := d.live[number]; f != nil {
		return f, true, nil
	}
	f, err = e.revive(d.name, number)
	return f, true, err
}

// lookup returns the main revision of a function.
func (e *Engine) lookup(name string) (*function, error) {
	d, err := e.find(name)
	if err != nil {
		return nil, err
	}
	return d.main, nil
}

// each calls fn with every live revision and with the functions behind agents.
func (e *Engine) each(fn func(*function)) {
	for _, d := range *e.functions.Load() {
		for _, f := range d.live {
			fn(f)
		}
	}
	for _, a := range e.agents.all() {
		fn(a.f)
	}
}
