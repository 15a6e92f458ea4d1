package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Records returns the records of all but temporary functions.
func (e *Engine) Records() ([]*Record, error) {
	var all []*Record
	m := *e.functions.Load()
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name].spec.Temporary {
			continue
		}
		r, err := recordOf(m[name])
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Apply puts a record of another node in force, with the same revision numbers. The images of
// revisions with events or an alias must be in the store. Revisions that are already in force
// stay as they are; a local function with a different history is replaced. Errors: those of
// Deploy, *[template.FieldError] for a record that makes no sense.
func (e *Engine) Apply(ctx context.Context, r *Record) error {
	if err := e.life.Begin(); err != nil {
		return err
	}
	defer e.life.Done()
	spec, err := checkRecord(r)
	if err != nil {
		return fmt.Errorf("apply %s: %w", r.Name, err)
	}
	spec.known = true
	if _, _, err := e.tenants.Attach(spec.Tenant); err != nil {
		return err
	}
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	was := (*e.functions.Load())[r.Name]
	if was != nil && was.spec.Temporary {
		return fmt.Errorf("apply %s: %w by a temporary function", r.Name, ErrNameTaken)
	}
	old := &deployment{name: r.Name, spec: spec, live: map[int]*function{}}
	var strangers []*function // different revisions under the same number
	if was != nil {
		if now, err := recordOf(was); err == nil && bytes.Equal(now.Spec, r.Spec) {
			return nil
		}
		old.spec, old.logs = was.spec, was.logs
		for number, f := range was.live {
			if a, b := was.spec.keptRevision(number), spec.keptRevision(number); b == nil || a != nil && a.Image == b.Image && a.Deployed.Equal(b.Deployed) {
				old.live[number] = f
			} else {
				strangers = append(strangers, f)
			}
		}
	}
	for i := range spec.Revisions {
		rev := &spec.Revisions[i]
		if !spec.serves(rev.Number) || old.live[rev.Number] != nil {
			continue
		}
		if err := e.checkRevision(r.Name, spec, rev); err != nil {
			return fmt.Errorf("apply %s: revision %d: %w", r.Name, rev.Number, err)
		}
	}
	if old.logs == nil {
		if old.logs, err = e.openLog(r.Name); err != nil {
			return err
		}
	}
	d, err := e.applyLocked(ctx, old, r.Name, spec, nil)
	if err != nil {
		if was == nil {
			old.logs.Close()
		}
		return err
	}
	for _, f := range strangers {
		f.retire()
	}
	e.Changes().Add(d.main.changed(store.ActionDeploy))
	return nil
}

// checkRevision returns an error if this host cannot run a revision accepted by another node.
func (e *Engine) checkRevision(name string, spec *functionSpec, rev *Revision) error {
	f, err := e.newRevision(name, spec, rev)
	if err == nil {
		_, err = f.spec("")
	}
	if err == nil {
		err = live.CheckLimits(e.cfg.Sandboxes, f.config.Resources)
	}
	if err == nil {
		err = f.checkSecrets()
	}
	return err
}

// checkRecord decodes and checks the record of another node.
func checkRecord(r *Record) (*functionSpec, error) {
	bad := func(message string) error { return &template.FieldError{Field: "record", Message: message} }
	name, tenant, err := template.SplitName(r.Name)
	if err != nil {
		return nil, err
	}
	if !template.ValidName(name) || !template.ValidName(tenant) || template.QualifiedName(name, tenant) != r.Name {
		return nil, bad("name is not qualified")
	}
	spec := new(functionSpec)
	d := json.NewDecoder(bytes.NewReader(r.Spec))
	d.DisallowUnknownFields()
	if err := d.Decode(spec); err != nil {
		return nil, bad(err.Error())
	}
	if spec.Tenant != tenant || spec.Temporary || spec.Trace {
		return nil, bad("function is another tenant's, or temporary")
	}
	return spec, spec.check(bad)
}

// check checks the numbers in the spec of another node. bad makes the error.
func (s *functionSpec) check(bad func(message string) error) error {
	last := 0
	for _, rev := range s.Revisions {
		if rev.Number <= last || rev.Number > s.Last || rev.Deployed.After(time.Now().AddDate(100, 0, 0)) {
			return bad(fmt.Sprintf("revision %d is out of order", rev.Number))
		}
		last = rev.Number
	}
	sum := 0
	for _, w := range s.Traffic.Weights {
		if w.Percent < 1 || s.keptRevision(w.Revision) == nil {
			return bad(fmt.Sprintf("weight of revision %d", w.Revision))
		}
		sum += w.Percent
	}
	if sum != 100 {
		return bad("weights do not add up to 100")
	}
	for _, h := range s.Traffic.Headers {
		if s.keptRevision(h.Revision) == nil {
			return bad(fmt.Sprintf("header of revision %d", h.Revision))
		}
	}
	for alias, number := range s.Aliases {
		if s.keptRevision(number) == nil || !template.ValidName(alias) {
			return bad(fmt.Sprintf("alias %q of revision %d", alias, number))
		}
	}
	return nil
}

// Withdraw removes a function after another node has removed it. Missing and temporary functions
// are left alone.
func (e *Engine) Withdraw(ctx context.Context, name string) error {
	if d := (*e.functions.Load())[name]; d == nil || d.spec.Temporary {
		return nil
	}
	return e.remove(ctx, name, func(*deployment) error { return nil })
}
