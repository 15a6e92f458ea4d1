package engine

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
)

// bounded reports whether a quota bounds the function's instances.
func (p *program) bounded() bool {
	q := p.host.tenants.Quotas(p.config.Tenant)
	return !p.temporary && (q.Instances > 0 || q.MemoryBytes > 0 || q.CPUMillis > 0)
}

// reserveLocked counts one more instance against the tenant's quotas, or returns a *QuotaError.
// No quota bounds temporary functions. The caller holds f.mu.
func (f *function) reserveLocked() error {
	q, r, u := f.host.tenants.Quotas(f.config.Tenant), &f.config.Resources, f.use
	if f.temporary {
		q = live.Quotas{}
	}
	return u.Reserve(f.config.Tenant, q, r.MemoryBytes, r.CPUMillis)
}

// removeLocked removes an ended instance. The caller holds f.mu.
func (f *function) removeLocked(in *instance) {
	delete(f.instances, in)
	f.releaseLocked(in)
}

// releaseLocked gives back the quota of an instance, at most once. The caller holds f.mu.
func (f *function) releaseLocked(in *instance) {
	if !in.reserved {
		return
	}
	in.reserved = false
	f.use.Release(f.config.Resources.MemoryBytes, f.config.Resources.CPUMillis)
}

// refuseLocked gives all waiters an error if no instance is left to serve them.
func (f *function) refuseLocked(err error) {
	if len(f.instances) > 0 {
		return
	}
	for f.waiters.Len() > 0 {
		f.waiters.Grant(grant{err: err})
		f.host.metrics.refuse(reasonQuota)
	}
}

// SecretError says that a template names a secret that the tenant does not have. A SecretError is
// an fs.ErrNotExist.
type SecretError struct{ Tenant, Name string }

func (e *SecretError) Error() string {
	return fmt.Sprintf("secret %s of tenant %s does not exist", e.Name, e.Tenant)
}
func (e *SecretError) Unwrap() error { return fs.ErrNotExist }

// Code returns [failure.Template].
func (e *SecretError) Code() failure.Code { return failure.Template }

// Next returns the command that makes the secret.
func (e *SecretError) Next() string {
	return fmt.Sprintf("create the secret, then deploy again: fre secret create %s --tenant %s < FILE", e.Name, e.Tenant)
}

// secrets reads the secrets of the template for a sandbox that starts now. The caller wipes the
// values. An updated secret reaches all sandboxes that start later.
func (p *program) secrets() ([]sandbox.Secret, error) {
	var out []sandbox.Secret
	for _, name := range p.config.Secrets {
		value, err := p.secret(name)
		if err != nil {
			wipe(out)
			return nil, err
		}
		out = append(out, sandbox.Secret{Name: name, Value: value})
	}
	return out, nil
}

// secret returns a secret of the tenant, or a *[SecretError].
func (p *program) secret(name string) (value []byte, err error) {
	err = fs.ErrNotExist
	if p.host.cfg.Secrets != nil {
		value, err = p.host.cfg.Secrets(p.config.Tenant, name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &SecretError{p.config.Tenant, name}
	}
	return value, err
}

// checkSecrets returns an error for the first missing secret of the function or its triggers.
func (p *program) checkSecrets() error {
	for _, name := range p.config.SecretNames() {
		value, err := p.secret(name)
		if err != nil {
			return err
		}
		clear(value)
	}
	return nil
}

// wipe zeroes the values.
func wipe(all []sandbox.Secret) {
	for _, s := range all {
		clear(s.Value)
	}
}
