package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/fre-engine/fre/engine/live"
)

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
	if f := d.routed(r.Headers); f != nil {
		return f
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

// routed returns the revision that the first matching header route names, or nil.
func (d *deployment) routed(header [][2]string) *function {
	for _, h := range d.spec.Traffic.Headers {
		if f := d.live[h.Revision]; f != nil && slices.ContainsFunc(header, func(f [2]string) bool {
			return strings.EqualFold(f[0], h.Name) && f[1] == h.Value
		}) {
			return f
		}
	}
	return nil
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

// describe returns the function as lists show it: the same pointer until a value changes.
func (d *deployment) describe() *Function {
	now := d.main.count()
	for _, f := range d.live {
		if f == d.main {
			continue
		}
		c := f.count()
		now.instances, now.busy, now.queued = now.instances+c.instances, now.busy+c.busy, now.queued+c.queued
		if d.spec.serves(f.revision) {
			now.invocations, now.failures = now.invocations+c.invocations, now.failures+c.failures
		}
	}
	if last := d.shown.Load(); last != nil && last.counters == now {
		return last
	}
	f := d.main
	shown := &Function{
		Name: d.name, Image: f.image.Digest, ImageRef: f.ref(),
		Config: f.config, Deployed: f.deployed, Revision: f.revision, Latest: d.spec.Last, Traffic: d.spec.Traffic,
		Instances: now.instances, Busy: now.busy, Queued: now.queued, Fork: now.fork,
		Invocations: now.invocations, Failures: now.failures,
		Defences: f.host.cfg.Sandboxes.Defences(), counters: now,
	}
	if f.interpreters != nil {
		interpreters := now.interpreters
		shown.Interpreters = &interpreters
	}
	d.shown.Store(shown)
	return shown
}

// recordOf builds the record of a deployment.
func recordOf(d *deployment) (*Record, error) {
	raw, err := json.Marshal(d.spec)
	if err != nil {
		return nil, err
	}
	r := &Record{Name: d.name, Spec: raw, Front: d.front}
	for _, serving := range []bool{true, false} {
		for _, rev := range d.spec.Revisions {
			if d.spec.serves(rev.Number) == serving && !slices.Contains(r.Images, rev.Image) {
				r.Images = append(r.Images, rev.Image)
			}
		}
		if serving {
			r.Serving = len(r.Images)
		}
	}
	return r, nil
}

// listRevisions lists the kept revisions, newest first.
func (d *deployment) listRevisions() *Revisions {
	out := &Revisions{Function: d.name, Traffic: d.spec.Traffic}
	for _, r := range slices.Backward(d.spec.Revisions) {
		s := RevisionState{Revision: r, Aliases: []string{}}
		for _, w := range d.spec.Traffic.Weights {
			if w.Revision == r.Number {
				s.Percent = w.Percent
			}
		}
		for _, alias := range slices.Sorted(maps.Keys(d.spec.Aliases)) {
			if d.spec.Aliases[alias] == r.Number {
				s.Aliases = append(s.Aliases, alias)
			}
		}
		_, err := d.main.host.cfg.Store.Image(string(r.Image))
		s.ImageGone = errors.Is(err, fs.ErrNotExist)
		if f := d.live[r.Number]; f != nil {
			f.mu.Lock()
			s.Instances, s.Resting = len(f.instances), f.resting
			f.mu.Unlock()
		}
		out.Revisions = append(out.Revisions, s)
	}
	return out
}
