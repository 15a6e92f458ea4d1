package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// Function is what lists and inspections show of a deployed function.
type Function struct {
	Name        string // qualified
	Image       store.Digest
	ImageRef    string // "name:version"
	Config      image.Config
	Deployed    time.Time
	Instances   int    // live sandboxes
	Busy        int    // events being handled
	Queued      int    // events waiting for an instance
	Fork        string // whether its instances are forked, or why not: "on", "waiting", "off: …"; "" where its runtime cannot
	Invocations uint64
	Failures    uint64
	Defences    []string    // in force around its sandboxes (sandbox.Host.Defences)
	Shells      *ShellStats // what its instances can start from; nil: nothing

	counters counters
}

// DeployOptions adjust Deploy.
type DeployOptions struct {
	Replace bool // take over the name of a function that came from another template

	// Temporary: a function for a while, of a name that no other has. Nothing of it
	// outlasts it, or the engine: it has a /work of its own, empty at first, and
	// its sandboxes are no tenant's.
	Temporary bool

	// Trace notes what a temporary function opens in its root, for [Engine.Slim]. It
	// is started anew, from no shell and as no fork.
	Trace bool
}

// Deploy puts the image's function behind name, by default the image's. A name
// without a tenant gets the image's own (image.QualifiedName); one with a tenant
// deploys the image in that. The same template's function of the qualified name is
// replaced without losing an event: what is in flight ends on the old instances.
// ErrNameTaken when another template has the name, or a temporary function.
func (e *Engine) Deploy(ctx context.Context, name string, img *store.Image, o DeployOptions) (_ *Function, err error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.flight.Done()
	if name == "" {
		name = img.Name
	}
	name, tenant, err := NameOf(name, img)
	if err != nil {
		return nil, fmt.Errorf("deploy: %w", err)
	}
	spec, err := json.Marshal(functionSpec{Template: img.Name, Version: img.Version, Tenant: tenant, Temporary: o.Temporary, Trace: o.Trace})
	if err != nil {
		return nil, err
	}
	if o.Trace && !o.Temporary {
		return nil, fmt.Errorf("deploy: %w", &image.FieldError{Field: "trace", Message: "only a temporary function's files are traced"})
	}
	if o.Temporary { // before newFunction makes what is the name's alone
		e.deployMu.Lock()
		defer e.deployMu.Unlock()
		if old := (*e.functions.Load())[name]; old != nil {
			return nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, ErrNameTaken, old.template)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, e.removeTemporary(name))
			}
		}()
	}
	rec := store.Function{Name: name, Image: img.Digest, Spec: spec, Deployed: time.Now().UTC().Truncate(time.Millisecond)}
	f, err := e.newFunction(&rec)
	if err != nil {
		return nil, err
	}
	if o.Trace {
		if f.opens, err = sandbox.NewOpens(); err != nil {
			return nil, fmt.Errorf("deploy %s: %w", name, err)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, f.opens.Close())
			}
		}()
	}
	if _, err := f.spec(""); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}
	if err := e.checkLimits(f.config.Resources); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}

	if !o.Temporary {
		e.deployMu.Lock()
		defer e.deployMu.Unlock()
	}
	old := (*e.functions.Load())[name]
	if old != nil && (old.temporary || old.template != img.Name && !o.Replace) {
		return nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, ErrNameTaken, old.template)
	}
	if old != nil {
		f.logs = old.logs // one log over all deployments of a name
	} else if f.logs, err = e.openLog(name); err != nil {
		return nil, err
	}
	if err := e.cfg.Store.PutFunction(ctx, rec); err != nil {
		if old == nil {
			f.logs.Close()
		}
		return nil, err
	}
	f.publish()
	e.replaceLocked(name, f)
	e.Changes().Add(f.changed(store.ActionDeploy))
	if old != nil {
		old.retire()
	}
	f.warm()
	return f.describe(), nil
}

func (e *Engine) logDir(function string) string {
	return filepath.Join(e.cfg.StateDir, "logs", function)
}

func (e *Engine) openLog(function string) (*functionLog, error) {
	return openLog(e.logDir(function), function, e.cfg.LogBytes, e.cfg.LogFiles)
}

// replaceLocked publishes, with deployMu held, a new map of functions with name
// set to f, or removed where f is nil.
func (e *Engine) replaceLocked(name string, f *function) {
	next := maps.Clone(*e.functions.Load())
	if f == nil {
		delete(next, name)
	} else {
		f.measure()
		next[name] = f
	}
	e.functions.Store(&next)
}

// Functions lists the deployed functions by name. The same pointer stands for the
// same content: nobody changes it.
func (e *Engine) Functions() []*Function {
	m := *e.functions.Load()
	out := make([]*Function, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[name].describe())
	}
	return out
}

// Function describes one; fs.ErrNotExist when there is none of that name.
func (e *Engine) Function(name string) (*Function, error) {
	f, err := e.lookup(name)
	if err != nil {
		return nil, err
	}
	return f.describe(), nil
}

func (e *Engine) lookup(name string) (*function, error) {
	all := *e.functions.Load()
	if f := all[name]; f != nil {
		return f, nil
	}
	if plain, tenant, err := image.SplitName(name); err == nil { // maybe NAME.default
		if f := all[image.QualifiedName(plain, tenant)]; f != nil {
			return f, nil
		}
	}
	return nil, &UnknownError{Function: name}
}

// RemoveFunction forgets a function, ends its instances and deletes its logs.
// Its image and its tenant's /work stay.
func (e *Engine) RemoveFunction(ctx context.Context, name string) error {
	if err := e.begin(); err != nil {
		return err
	}
	defer e.flight.Done()
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	f, err := e.lookup(name)
	if err == nil {
		name = f.name
		err = e.cfg.Store.RemoveFunction(ctx, name)
	}
	if err != nil {
		return err
	}
	e.replaceLocked(name, nil)
	e.Changes().Add(f.changed(store.ActionRemove))
	f.retire()
	f.logs.Close()
	e.metrics.forget(name)
	err = os.RemoveAll(f.logs.dir)
	if f.temporary {
		err = errors.Join(err, e.removeTemporary(name))
	}
	return errors.Join(err, f.endTrace())
}
