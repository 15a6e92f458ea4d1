package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// SetTraffic splits a function's events. Errors: *UnknownError, ErrTraffic, ErrImageGone.
func (e *Engine) SetTraffic(ctx context.Context, name string, o Split) (*Revisions, error) {
	return e.change(ctx, name, func(name string, s *functionSpec) error {
		traffic := Traffic{Weights: s.Traffic.Weights, Sticky: o.Sticky}
		if kind, of, _ := strings.Cut(o.Sticky, ":"); o.Sticky != "" && (kind != "header" && kind != "cookie" || !isToken(of)) {
			return badSplit(name, "sticky is %q: write header:NAME or cookie:NAME", o.Sticky)
		}
		var err error
		if len(o.Weights) > 0 {
			if traffic.Weights, err = s.splitWeights(name, o.Weights); err != nil {
				return err
			}
		}
		for _, t := range o.Headers {
			n, err := s.resolve(name, t.Revision)
			if err != nil {
				return err
			}
			if !isToken(t.Header) {
				return badSplit(name, "%q is no header's name: write NAME=VALUE:REVISION", t.Header)
			}
			traffic.Headers = append(traffic.Headers, HeaderRoute{t.Header, t.Value, n})
		}
		s.Traffic = traffic
		return nil
	})
}

// badSplit returns an ErrTraffic.
func badSplit(name, format string, args ...any) error {
	return fmt.Errorf("split %s: %w: %s", name, ErrTraffic, fmt.Sprintf(format, args...))
}

// splitWeights returns the weights of a split, newest revision first.
func (s *functionSpec) splitWeights(name string, targets []Target) (weights []Weight, err error) {
	sum := 0
	for _, t := range targets {
		n, err := s.resolve(name, t.Revision)
		switch {
		case err != nil:
			return nil, err
		case t.Percent < 0 || t.Percent > 100:
			return nil, badSplit(name, "revision %s has the weight %d: give 0 to 100", t.Revision, t.Percent)
		case slices.ContainsFunc(weights, func(w Weight) bool { return w.Revision == n }):
			return nil, badSplit(name, "revision %d is named twice: name each revision once", n)
		}
		if sum += t.Percent; t.Percent > 0 {
			weights = append(weights, Weight{n, t.Percent})
		}
	}
	if sum != 100 {
		return nil, badSplit(name, "the weights add up to %d: they must add up to 100, for example 3=90 4=10", sum)
	}
	slices.SortFunc(weights, func(a, b Weight) int { return cmp.Compare(b.Revision, a.Revision) })
	return weights, nil
}

// isToken reports whether s can name a header or a cookie (RFC 9110 section 5.6.2).
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}) < 0
}

// Rollback sends all events of a function to an earlier revision: the named revision, or else the
// newest kept revision before those in the traffic now. Errors: *UnknownError, ErrNoRevision,
// ErrImageGone.
func (e *Engine) Rollback(ctx context.Context, name, to string) (*Revisions, error) {
	return e.change(ctx, name, func(name string, s *functionSpec) error {
		if to != "" {
			n, err := s.resolve(name, to)
			s.Traffic = allTo(n)
			return err
		}
		newest := s.Traffic.Weights[0].Revision
		for _, r := range slices.Backward(s.Revisions) {
			if r.Number < newest {
				s.Traffic = allTo(r.Number)
				return nil
			}
		}
		return fmt.Errorf("roll %s back: %w than %d: name a revision from fre function revisions %s", name, ErrNoRevision, newest, name)
	})
}

// SetAliases sets and removes aliases of revisions. Errors: *UnknownError for a revision or a
// removed alias that does not exist, *template.FieldError for a bad alias, ErrImageGone.
func (e *Engine) SetAliases(ctx context.Context, name string, set map[string]string, remove []string) (*Revisions, error) {
	return e.change(ctx, name, func(name string, s *functionSpec) error {
		aliases := map[string]int{}
		maps.Copy(aliases, s.Aliases)
		for _, alias := range remove {
			if _, ok := aliases[alias]; !ok {
				return &UnknownError{Function: name, Revision: alias}
			}
			delete(aliases, alias)
		}
		for alias, to := range set {
			if !template.ValidName(alias) || alias == latest || strings.Trim(alias, "0123456789") == "" {
				return &template.FieldError{Field: "alias", Message: fmt.Sprintf("%q names no revision: lower-case letters, digits and dashes, not digits alone, and not %q", alias, latest)}
			}
			n, err := s.resolve(name, to)
			if err != nil {
				return err
			}
			aliases[alias] = n
		}
		s.Aliases = aliases
		return nil
	})
}

// RemoveRevision forgets a revision, so that garbage collection may remove the image. Errors:
// *UnknownError; ErrRevisionUsed if the revision has events or an alias, or is the newest.
func (e *Engine) RemoveRevision(ctx context.Context, name, revision string) error {
	_, err := e.change(ctx, name, func(name string, s *functionSpec) error {
		n, err := s.resolve(name, revision)
		if err != nil {
			return err
		}
		switch {
		case n == s.Last:
			return fmt.Errorf("forget revision %d of %s: %w: the newest revision (%s@%s) stays: deploy another revision first", n, name, ErrRevisionUsed, name, latest)
		case s.serves(n):
			return fmt.Errorf("forget revision %d of %s: %w: first move traffic to another revision (fre function split, rollback) and remove aliases", n, name, ErrRevisionUsed)
		}
		s.Revisions = slices.DeleteFunc(s.Revisions, func(r Revision) bool { return r.Number == n })
		return nil
	})
	return err
}

// change applies a function to a copy of the spec, stores the copy and puts it in force.
func (e *Engine) change(ctx context.Context, name string, change func(name string, s *functionSpec) error) (*Revisions, error) {
	if err := e.life.Begin(); err != nil {
		return nil, err
	}
	defer e.life.Done()
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	old, err := e.find(name)
	if err != nil {
		return nil, err
	}
	spec := old.spec.clone()
	if err := change(old.name, spec); err != nil {
		return nil, err
	}
	d, err := e.applyLocked(ctx, old, old.name, spec, nil)
	if err != nil {
		return nil, err
	}
	e.Changes().Add(d.main.changed(store.ActionRoute))
	return d.listRevisions(), nil
}

// applyLocked stores a function's new spec and puts it in force. The caller holds deployMu. old
// is nil for a new function; made, unless nil, is the newest revision. A revision that loses its
// traffic finishes its present events and rests: a rollback needs no start. A revision already at
// rest and still without traffic is retired.
func (e *Engine) applyLocked(ctx context.Context, old *deployment, name string, spec *functionSpec, made *function) (*deployment, error) {
	spec.prune(e.cfg.Revisions)
	var logs *live.Log
	var was map[int]*function
	if old != nil {
		was, logs = old.live, old.logs
	} else {
		logs = made.logs
	}
	live := map[int]*function{}
	var added []*function
	for i := range spec.Revisions {
		r := &spec.Revisions[i]
		f, serves := was[r.Number], spec.serves(r.Number)
		switch {
		case f != nil && !serves && f.rests(), f == nil && !serves:
			continue
		case f == nil && made != nil && made.revision == r.Number:
			f, added = made, append(added, made)
		case f == nil:
			var err error
			if f, err = e.newRevision(name, spec, r); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					err = fmt.Errorf("revision %d of %s: %w: deploy again", r.Number, name, ErrImageGone)
				}
				return nil, err
			}
			f.logs, added = logs, append(added, f)
		}
		live[r.Number] = f
	}
	d, err := newDeployment(name, spec, live, logs)
	if err != nil {
		return nil, err
	}
	rec, err := spec.record(name)
	if err != nil {
		return nil, err
	}
	rec.Images = slices.DeleteFunc(rec.Images, func(img store.Digest) bool {
		_, err := e.cfg.Store.Image(string(img))
		return err != nil
	})
	if err := e.commitLocked(ctx, d); err != nil {
		return nil, err
	}
	if err := e.cfg.Store.PutFunction(ctx, *rec); err != nil {
		return nil, err
	}
	for _, f := range added {
		e.prepare(f)
		f.measure()
	}
	e.publishLocked(name, d)
	for number, f := range live {
		if spec.serves(number) {
			f.wake()
		} else {
			e.rest(f)
		}
	}
	for number, f := range was {
		if live[number] == nil {
			f.retire()
		}
	}
	if old != nil {
		for _, r := range old.spec.Revisions {
			if spec.keptRevision(r.Number) == nil {
				e.metrics.forget(name, r.Number)
			}
		}
	}
	return d, nil
}

// commitLocked writes a deployment to the table, unless it is temporary or came from the table.
func (e *Engine) commitLocked(ctx context.Context, d *deployment) error {
	if e.cfg.Table == nil || d.spec.Temporary || d.spec.known {
		return nil
	}
	r, err := recordOf(d)
	if err != nil {
		return err
	}
	return e.cfg.Table.Commit(ctx, r)
}
