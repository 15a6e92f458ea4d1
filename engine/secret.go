package engine

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
)

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
