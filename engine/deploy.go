package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/outward"
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
	Revision    int         // that most events go to: Image, Config and Deployed are its
	Latest      int         // the newest that was deployed
	Traffic     Traffic     // nobody changes it
	Defences    []string    // in force around its sandboxes (sandbox.Host.Defences)
	Shells      *ShellStats // what its instances can start from; nil: nothing

	counters counters
}

// DeployOptions adjust Deploy.
type DeployOptions struct {
	Replace bool // take over the name of a function that came from another template

	// Within, unless it is "", is the tenant that the function and its image must belong
	// to: else ErrForeign.
	Within    string
	NoTraffic bool   // events go on to go where they do, unless they ask for the new revision
	By        string // who deploys, for the record

	// Temporary: a function for a while, of a name that no other has. Nothing of it
	// outlasts it, or the engine: it has a /work of its own, empty at first, and
	// its sandboxes are no tenant's.
	Temporary bool

	// Trace notes what a temporary function opens in its root, for [Engine.Slim]. It
	// is started anew, from no shell and as no fork.
	Trace bool
}

// templateOf is the template that an image was built of, whatever name the image has here:
// one that was pulled is called REGISTRY/team/hello, and its function hello. An image that
// no template made goes by its own name.
func templateOf(img *store.Image) (id, version string) {
	id, version, _ = strings.Cut(img.Built, ":")
	if image.ValidName(id) {
		return id, version
	}
	return img.Name, img.Version
}

// DefaultName is the name of an image's function where a deployment says none.
func DefaultName(img *store.Image) string {
	id, _ := templateOf(img)
	return id
}

// Deploy puts the image's function behind name, by default its template's. A name
// without a tenant gets the image's own (image.QualifiedName); one with a tenant
// deploys the image in that. The same template's function of the qualified name is
// followed by a new revision without losing an event: what is in flight ends on the old
// instances. All events go to the new one, and a split is over, unless o says otherwise.
// An image that was deployed behind the name before is of that template, whatever it is
// called here: what another node has deployed has no name.
// ErrNameTaken when another template has the name, or a temporary function; an
// *image.FieldError for a pipeline without end, or with a step that is not there.
func (e *Engine) Deploy(ctx context.Context, name string, img *store.Image, o DeployOptions) (_ *Function, err error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.flight.Done()
	defer e.Hold()()
	if !e.cfg.Store.Use(img.Digest) {
		return nil, fmt.Errorf("deploy: image %s was removed meanwhile: %w", img.Digest, fs.ErrNotExist)
	}
	template, version := templateOf(img)
	if name == "" {
		name = template
	}
	name, tenant, err := NameOf(name, img)
	if err != nil {
		return nil, fmt.Errorf("deploy: %w", err)
	}
	if o.Within != "" && (tenant != o.Within || ImageTenant(img) != o.Within) {
		return nil, fmt.Errorf("deploy %s of tenant %s: %w", name, tenant, ErrForeign)
	}
	if o.Trace && !o.Temporary {
		return nil, fmt.Errorf("deploy: %w", &image.FieldError{Field: "trace", Message: "only a temporary function's files are traced"})
	}
	if !o.Temporary {
		if _, _, err := e.tenant(tenant); err != nil { // it may take a while to make: not under the lock
			return nil, err
		}
	}
	if e.cfg.Table != nil && !o.Temporary {
		// The table's registry is the operator's choice, whoever deploys.
		if err := e.cfg.Table.Prepare(outward.With(ctx, nil), img); err != nil {
			return nil, fmt.Errorf("deploy %s: %w", name, err)
		}
	}
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	old := (*e.functions.Load())[name]
	if old != nil && old.main.template != template {
		if r := old.spec.deployedAs(img.Digest, old.main.template); r != nil {
			template, version = r.Template, r.Version
		}
	}
	if old != nil && (o.Temporary || old.spec.Temporary || old.main.template != template && !o.Replace) {
		return nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, ErrNameTaken, old.main.template)
	}
	if o.Temporary { // newRevision makes what is the name's alone
		defer func() {
			if err != nil {
				err = errors.Join(err, e.removeTemporary(name))
			}
		}()
	}
	spec := &functionSpec{Tenant: tenant, Temporary: o.Temporary, Trace: o.Trace}
	if old != nil {
		spec = old.spec.clone()
		spec.Tenant = tenant // records of before may lack it
	}
	spec.Last++
	r := Revision{
		Number: spec.Last, Image: img.Digest, Template: template, Version: version, Config: configDigest(img),
		Deployed: time.Now().UTC().Truncate(time.Millisecond), By: o.By,
	}
	spec.Revisions = append(spec.Revisions, r)
	if old == nil || !o.NoTraffic {
		spec.Traffic = allTo(r.Number)
	}
	f, err := e.newRevision(name, spec, &r)
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
	if err := f.checkPipeline(); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}
	if err := e.checkLimits(f.config.Resources); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}
	if err := f.checkSecrets(); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}
	if e.cfg.Triggers != nil {
		if err := e.cfg.Triggers(tenant, f.config.Triggers); err != nil {
			return nil, fmt.Errorf("deploy %s: %w", name, err)
		}
	}
	if old != nil {
		f.logs = old.logs // one log over all revisions of a name
	} else if f.logs, err = e.openLog(name); err != nil {
		return nil, err
	}
	d, err := e.applyLocked(ctx, old, name, spec, f)
	if err != nil {
		if old == nil {
			f.logs.Close()
		}
		return nil, err
	}
	e.Changes().Add(f.changed(store.ActionDeploy))
	return d.describe(), nil
}

// load makes the deployment of a record; revisions whose image is lost go without
// events, as long as there is another.
func (e *Engine) load(rec *store.Function) (*deployment, error) {
	spec, err := specOf(rec)
	if err != nil {
		return nil, err
	}
	live := map[int]*function{}
	var lost error
	for i := range spec.Revisions {
		r := &spec.Revisions[i]
		if !spec.serves(r.Number) {
			continue
		}
		f, err := e.newRevision(rec.Name, spec, r)
		if err != nil {
			lost = errors.Join(lost, fmt.Errorf("revision %d: %w", r.Number, err))
			continue
		}
		live[r.Number] = f
	}
	d, err := newDeployment(rec.Name, spec, live, nil)
	if err != nil {
		return nil, errors.Join(err, lost)
	}
	if d.logs, err = e.openLog(rec.Name); err != nil {
		return nil, err
	}
	for _, f := range live {
		f.measure()
		f.logs = d.logs
	}
	if lost != nil {
		e.log.Error("function has lost revisions", "function", rec.Name, "error", lost)
	}
	return d, nil
}

func (e *Engine) logDir(function string) string {
	return filepath.Join(e.cfg.StateDir, "logs", function)
}

func (e *Engine) openLog(function string) (*functionLog, error) {
	return openLog(e.logDir(function), function, e.cfg.LogBytes, e.cfg.LogFiles)
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
	d, err := e.find(name)
	if err != nil {
		return nil, err
	}
	return d.describe(), nil
}

// RemoveFunction forgets a function, ends its instances and deletes its logs.
// Its image and its tenant's /work stay.
func (e *Engine) RemoveFunction(ctx context.Context, name string) error {
	return e.remove(ctx, name, func(d *deployment) error {
		if e.cfg.Table == nil || d.spec.Temporary {
			return nil
		}
		return e.cfg.Table.Commit(ctx, &Record{Name: d.name, Removed: true})
	})
}

func (e *Engine) remove(ctx context.Context, name string, first func(*deployment) error) error {
	if err := e.begin(); err != nil {
		return err
	}
	defer e.flight.Done()
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	d, err := e.find(name)
	if err == nil {
		name = d.name
		err = first(d)
	}
	if err == nil {
		err = e.cfg.Store.RemoveFunction(ctx, name)
	}
	if err != nil {
		return err
	}
	e.publishLocked(name, nil)
	e.Changes().Add(d.main.changed(store.ActionRemove))
	for _, f := range d.live {
		f.retire()
	}
	d.logs.Close()
	e.metrics.forget(name, 0)
	err = os.RemoveAll(d.logs.dir)
	if d.spec.Temporary {
		err = errors.Join(err, e.removeTemporary(name))
	}
	return errors.Join(err, d.main.endTrace())
}
