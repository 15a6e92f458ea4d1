package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// newRevision makes a revision from its record and image. It starts nothing; the caller sets
// logs. Error: fs.ErrNotExist if the image is missing.
func (e *Engine) newRevision(name string, spec *functionSpec, r *Revision) (*function, error) {
	img, err := e.cfg.Store.Image(string(r.Image))
	if err != nil {
		return nil, err
	}
	cfg, plain, err := configOf(name, spec, img)
	if err != nil {
		return nil, err
	}
	var user sandbox.User
	var work string
	owner := cfg.Tenant // of the quotas
	if spec.Temporary {
		owner = temporaryName
		user, work, err = e.temporaryTenant(name)
	} else {
		user, work, err = e.tenants.Attach(cfg.Tenant)
	}
	if err != nil {
		return nil, err
	}
	f := &function{
		program: program{
			host: e.host, name: name, plain: plain, revision: r.Number, template: r.Template, version: r.Version, image: img, config: cfg, deployed: r.Deployed, temporary: spec.Temporary,
			user: user, work: work,
			lends: cfg.Network.LendConnection && slices.Contains(e.cfg.LendConnections, cfg.Tenant+"/"+plain),
			held:  heldAnswers{bytes: int64(max(cfg.Instances.Max, 1)) * cfg.Resources.MemoryBytes},
		},
		instances: make(map[*instance]struct{}),
		queue:     admission.NewQueue(e.cfg.Queue),
		use:       e.tenants.Share(owner),
	}
	// A fork server would keep old values of secrets.
	if cfg.Forks && f.loopbackOnly() && !spec.Trace && len(cfg.Secrets) == 0 {
		f.forks = newForker(&f.program)
	}
	return f, nil
}

// configOf returns the configuration of a function: the image's, with the tenant and the variables
// of the qualified name. plain is the name without the tenant.
func configOf(name string, spec *functionSpec, img *store.Image) (cfg image.Config, plain string, err error) {
	if cfg, err = image.ConfigOf(img); err != nil {
		return cfg, "", err
	}
	if cfg.Protocol == image.ProtocolNone || len(cfg.Args) == 0 && cfg.Protocol != image.ProtocolPipeline {
		return cfg, "", fmt.Errorf("%s: %w", name, ErrNotReady)
	}
	plain, tenant, err := template.SplitName(name)
	if err != nil {
		return cfg, "", err
	}
	if spec.Tenant == "" && cfg.Tenant != tenant {
		return cfg, "", fmt.Errorf("function %s of tenant %s: another function has the full name: deploy the function again", name, cfg.Tenant) // qualifyNames found no free name
	}
	cfg.Tenant = tenant
	if cfg.Protocol != image.ProtocolPipeline {
		cfg.Env = withName(live.WithLimits(cfg.Env, cfg.Resources), cfg.Contract, plain)
	}
	return cfg, plain, nil
}

// withName puts the function's name into the variables of AWS Lambda that hold a name
// (docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html). An image of the contract
// lambda has the template's id there, because a build does not know the name.
func withName(env []string, c template.Contract, name string) []string {
	if c != template.ContractLambda {
		return env
	}
	env = slices.Clone(env)
	for _, v := range []struct{ name, value string }{
		{"AWS_LAMBDA_FUNCTION_NAME", name},
		{"AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + name},
	} {
		// The runtime's variables come before the template's, which stay.
		if i := slices.IndexFunc(env, func(s string) bool { return strings.HasPrefix(s, v.name+"=") }); i >= 0 {
			env[i] = v.name + "=" + v.value
		}
	}
	return env
}

// prepare makes a function ready just before lookups by name find the function.
func (e *Engine) prepare(f *function) {
	if f.isPipeline() {
		return
	}
	if !f.loopbackOnly() || f.opens != nil {
		return
	}
	if f.interpreters = e.interpreters.use(&f.program); f.interpreters == nil {
		return
	}
	if f.furniture = f.newFurniture(); f.furniture == nil {
		f.interpreters.leave()
		f.interpreters = nil
	}
}

// loadRecord makes the deployment of a record. Revisions without their image get no events, as long as
// another revision is left.
func (e *Engine) loadRecord(rec *store.Function) (*deployment, error) {
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
