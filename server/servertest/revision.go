package servertest

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/store"
)

// reviseLocked records a deployment as the function's newest revision.
func (e *Engine) reviseLocked(f *engine.Function, img *store.Image, o engine.DeployOptions) {
	r := e.revisions[f.Name]
	if r == nil {
		r = &engine.Revisions{Function: f.Name}
		e.revisions[f.Name] = r
	}
	n := len(r.Revisions) + 1
	r.Revisions = slices.Insert(r.Revisions, 0, engine.RevisionState{
		Revision: engine.Revision{Number: n, Image: img.Digest, Template: img.Name, Version: img.Version, Deployed: Epoch}, Aliases: []string{},
	})
	if n == 1 || !o.NoTraffic {
		giveLocked(r, map[int]int{n: 100})
	}
	f.Latest, f.Revision = n, r.Traffic.Weights[0].Revision
}

// giveLocked distributes the events among revisions, in percent.
func giveLocked(r *engine.Revisions, percent map[int]int) {
	r.Traffic.Weights = nil
	for i := range r.Revisions {
		v := &r.Revisions[i]
		if v.Percent = percent[v.Number]; v.Percent > 0 {
			r.Traffic.Weights = append(r.Traffic.Weights, engine.Weight{Revision: v.Number, Percent: v.Percent})
		}
	}
}

// changeRevisions finds the function's revisions and calls change with a look-up function. It
// returns a copy.
func (e *Engine) changeRevisions(name string, change func(r *engine.Revisions, find func(string) (*engine.RevisionState, error)) error) (*engine.Revisions, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.revisions[name]
	if r == nil {
		return nil, &engine.UnknownError{Function: name}
	}
	err := change(r, func(what string) (*engine.RevisionState, error) {
		for i := range r.Revisions {
			v := &r.Revisions[i]
			if strconv.Itoa(v.Number) == what || slices.Contains(v.Aliases, what) || what == "latest" && i == 0 {
				return v, nil
			}
		}
		return nil, &engine.UnknownError{Function: name, Revision: what}
	})
	shown := *r
	shown.Revisions = slices.Clone(r.Revisions)
	return &shown, err
}

// Revisions returns the revisions of a function.
func (e *Engine) Revisions(name string) (*engine.Revisions, error) {
	return e.changeRevisions(name, func(*engine.Revisions, func(string) (*engine.RevisionState, error)) error { return nil })
}

// SetTraffic splits a function's events among revisions.
func (e *Engine) SetTraffic(_ context.Context, name string, o engine.Split) (*engine.Revisions, error) {
	return e.changeRevisions(name, func(r *engine.Revisions, find func(string) (*engine.RevisionState, error)) error {
		percent, sum := map[int]int{}, 0
		for _, w := range o.Weights {
			v, err := find(w.Revision)
			if err != nil {
				return err
			}
			percent[v.Number] = w.Percent
			sum += w.Percent
		}
		if sum != 100 && len(o.Weights) > 0 {
			return fmt.Errorf("split %s: %w: the weights add up to %d", name, engine.ErrTraffic, sum)
		}
		var headers []engine.HeaderRoute
		for _, h := range o.Headers {
			v, err := find(h.Revision)
			if err != nil {
				return err
			}
			headers = append(headers, engine.HeaderRoute{Name: h.Header, Value: h.Value, Revision: v.Number})
		}
		if len(o.Weights) > 0 {
			giveLocked(r, percent)
		}
		r.Traffic.Headers, r.Traffic.Sticky = headers, o.Sticky
		return nil
	})
}

// Rollback sends all events to the previous revision, or to the named revision.
func (e *Engine) Rollback(_ context.Context, name, to string) (*engine.Revisions, error) {
	return e.changeRevisions(name, func(r *engine.Revisions, find func(string) (*engine.RevisionState, error)) error {
		if to == "" {
			to = strconv.Itoa(r.Traffic.Weights[0].Revision - 1)
		}
		if to == "0" {
			return fmt.Errorf("roll %s back: %w than 1", name, engine.ErrNoRevision)
		}
		v, err := find(to)
		if err == nil {
			giveLocked(r, map[int]int{v.Number: 100})
			e.functions[name].Revision = v.Number
		}
		return err
	})
}

// SetAliases sets and removes aliases of revisions.
func (e *Engine) SetAliases(_ context.Context, name string, set map[string]string, remove []string) (*engine.Revisions, error) {
	return e.changeRevisions(name, func(r *engine.Revisions, find func(string) (*engine.RevisionState, error)) error {
		for _, alias := range remove {
			v, err := find(alias)
			if err != nil {
				return err
			}
			v.Aliases = slices.DeleteFunc(slices.Clone(v.Aliases), func(a string) bool { return a == alias })
		}
		for alias, to := range set {
			v, err := find(to)
			if err != nil {
				return err
			}
			v.Aliases = append(slices.Clone(v.Aliases), alias)
		}
		return nil
	})
}

// RemoveRevision removes a revision. Removing fails for the newest revision, and for a revision
// with events or aliases.
func (e *Engine) RemoveRevision(_ context.Context, name, revision string) error {
	_, err := e.changeRevisions(name, func(r *engine.Revisions, find func(string) (*engine.RevisionState, error)) error {
		v, err := find(revision)
		switch {
		case err != nil:
			return err
		case v.Percent > 0 || len(v.Aliases) > 0 || v == &r.Revisions[0]:
			return fmt.Errorf("forget revision %d of %s: %w", v.Number, name, engine.ErrRevisionUsed)
		}
		r.Revisions = slices.DeleteFunc(r.Revisions, func(o engine.RevisionState) bool { return o.Number == v.Number })
		return nil
	})
	return err
}
