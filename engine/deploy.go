package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// DeployOptions configure Deploy.
type DeployOptions struct {
	Replace bool // take over the name of another template's function

	// Within, unless "", is the required tenant of the function and the image: otherwise
	// ErrForeign.
	Within    string
	NoTraffic bool   // leave the traffic as before: only events that ask for the new revision reach it
	By        string // the deployer, for the record

	// Temporary: the function exists for a while under a new name. No data outlasts the
	// function or the engine. The function has a /work of its own, empty at first, and its
	// sandboxes belong to no tenant.
	Temporary bool

	// Trace records the files that a temporary function opens in its root, for [Engine.Slim].
	// The function starts neither from a parked sandbox nor as a fork.
	Trace bool
}

// templateOf returns the template from which an image was built, independent of the image's
// local name: the function of a pulled image REGISTRY/team/hello is called hello. An image
// without a template goes by its own name.
func templateOf(img *store.Image) (id, version string) {
	id, version, _ = strings.Cut(img.Built, ":")
	if template.ValidName(id) {
		return id, version
	}
	return img.Name, img.Version
}

// DefaultName returns the name of an image's function if the deployment gives none.
func DefaultName(img *store.Image) string {
	id, _ := templateOf(img)
	return id
}

// Deploy makes the image's function available as name; "" means the name of the template. A name
// without a tenant gets the image's tenant (template.QualifiedName). A name with a tenant deploys
// the image in that tenant.
//
// If the same template's function has the name, Deploy adds a revision without losing an event:
// events in flight end on the old instances. All events go to the new revision, and a split
// ends, unless o.NoTraffic is set. An image that was deployed under the name before counts as
// the same template's, whatever its local name: images deployed by other nodes have no name.
//
// Errors: ErrNameTaken if another template's function (without o.Replace) or a temporary
// function has the name; ErrForeign; fs.ErrNotExist if the image was removed meanwhile; an
// *template.FieldError, for example for a pipeline with a loop or a missing step.
func (e *Engine) Deploy(ctx context.Context, name string, img *store.Image, o DeployOptions) (_ *Function, err error) {
	if err := e.life.Begin(); err != nil {
		return nil, err
	}
	defer e.life.Done()
	defer e.Hold()()
	if !e.cfg.Store.Use(img.Digest) {
		return nil, fmt.Errorf("deploy: image %s was removed meanwhile: %w", img.Digest, fs.ErrNotExist)
	}
	name, tenant, err := NameOf(cmp.Or(name, DefaultName(img)), img)
	if err != nil {
		return nil, fmt.Errorf("deploy: %w", err)
	}
	if err := e.admitDeploy(ctx, name, tenant, img, &o); err != nil {
		return nil, err
	}
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	old := (*e.functions.Load())[name]
	spec, r, err := nextRevision(old, name, tenant, img, &o)
	if err != nil {
		return nil, err
	}
	if o.Temporary { // newRevision makes the name's own directories
		defer func() {
			if err != nil {
				err = errors.Join(err, e.removeTemporary(name))
			}
		}()
	}
	f, err := e.newRevision(name, spec, r)
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
	if err := e.checkFunction(f); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}
	if old != nil {
		f.logs = old.logs // all revisions of a name share a log
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

// admitDeploy refuses a deployment that the options forbid, and prepares the tenant and the table of
// other nodes: both may take a while.
func (e *Engine) admitDeploy(ctx context.Context, name, tenant string, img *store.Image, o *DeployOptions) error {
	if o.Within != "" && (tenant != o.Within || build.ImageTenant(img) != o.Within) {
		return fmt.Errorf("deploy %s of tenant %s: %w", name, tenant, ErrForeign)
	}
	if o.Temporary {
		return nil
	}
	if o.Trace {
		return fmt.Errorf("deploy: %w", &template.FieldError{Field: "trace", Message: "only a temporary function's files are traced"})
	}
	if _, _, err := e.tenants.Attach(tenant); err != nil { // before the lock: making a tenant's directory may take a while
		return err
	}
	if e.cfg.Table != nil {
		// The operator chooses the registry of the table, so no tenant's rules apply.
		if err := e.cfg.Table.Prepare(outward.With(ctx, nil), img); err != nil {
			return fmt.Errorf("deploy %s: %w", name, err)
		}
	}
	return nil
}

// nextRevision returns the spec of a function with one more revision, made of an image. old is nil
// for a new function. Error: ErrNameTaken.
func nextRevision(old *deployment, name, tenant string, img *store.Image, o *DeployOptions) (*functionSpec, *Revision, error) {
	from, version := templateOf(img)
	spec := &functionSpec{Tenant: tenant, Temporary: o.Temporary, Trace: o.Trace}
	if old != nil {
		if r := old.spec.deployedAs(img.Digest, old.main.template); r != nil && old.main.template != from {
			from, version = r.Template, r.Version
		}
		if o.Temporary || old.spec.Temporary || old.main.template != from && !o.Replace {
			return nil, nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, ErrNameTaken, old.main.template)
		}
		spec = old.spec.clone()
		spec.Tenant = tenant // old records may lack the tenant
	}
	spec.Last++
	r := Revision{
		Number: spec.Last, Image: img.Digest, Template: from, Version: version, Config: configDigest(img),
		Deployed: time.Now().UTC().Truncate(time.Millisecond), By: o.By,
	}
	spec.Revisions = append(spec.Revisions, r)
	if old == nil || !o.NoTraffic {
		spec.Traffic = allTo(r.Number)
	}
	return spec, &r, nil
}

// checkFunction returns an error if this engine cannot run a new function.
func (e *Engine) checkFunction(f *function) error {
	if _, err := f.spec(""); err != nil {
		return err
	}
	if err := e.checkPipeline(f); err != nil {
		return err
	}
	if err := live.CheckLimits(e.cfg.Sandboxes, f.config.Resources); err != nil {
		return err
	}
	if err := f.checkSecrets(); err != nil {
		return err
	}
	if e.cfg.Triggers != nil {
		return e.cfg.Triggers(f.config.Tenant, f.config.Triggers)
	}
	return nil
}

// RemoveFunction removes a function, ends its instances and deletes its logs. The image and the
// tenant's /work stay.
func (e *Engine) RemoveFunction(ctx context.Context, name string) error {
	return e.remove(ctx, name, func(d *deployment) error {
		if e.cfg.Table == nil || d.spec.Temporary {
			return nil
		}
		return e.cfg.Table.Commit(ctx, &Record{Name: d.name, Removed: true})
	})
}

func (e *Engine) remove(ctx context.Context, name string, first func(*deployment) error) error {
	if err := e.life.Begin(); err != nil {
		return err
	}
	defer e.life.Done()
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
	err = os.RemoveAll(d.logs.Dir())
	if d.spec.Temporary {
		err = errors.Join(err, e.removeTemporary(name))
	}
	return errors.Join(err, d.main.endTrace())
}
