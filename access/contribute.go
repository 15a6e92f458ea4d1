package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
)

// Contribute writes this node's records from the time before the cluster to the table. Rows and
// removals already in the table win. The caller calls Contribute once the table was read
// completely, and again after each complete reading. Errors: those of [Table], joined.
func (a *Access) Contribute(ctx context.Context) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	a.mu.Lock()
	a.caught = true
	s := a.state.Load()
	all := []error{a.saveLocked()}
	a.mu.Unlock()
	tenants := map[string]bool{}
	for name := range s.Tenants {
		tenants[name] = true
	}
	for _, t := range s.Tokens {
		tenants[t.Tenant] = true
	}
	for _, tenant := range slices.Sorted(maps.Keys(tenants)) {
		err := a.write(func(s *state) (string, any, error) {
			if ctx.Err() != nil || !a.lacks(s, tenant) {
				return "", nil, ctx.Err()
			}
			return rowKey(tenant), a.rowOf(s, tenant), nil
		})
		if err != nil {
			all = append(all, fmt.Errorf("tenant %s: %w", tenant, err))
		}
		if err != nil && !ofOne(err) {
			return errors.Join(all...)
		}
	}
	return errors.Join(append(all, a.contributeSecrets(ctx))...)
}

// ofOne reports whether an error concerns one record only, so that the next record may succeed.
func ofOne(err error) bool {
	return errors.Is(err, ErrChanged) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrSecret) || errors.Is(err, errKey)
}

// lacks reports whether the table lacks a part of this node's records of a tenant.
func (a *Access) lacks(s *state, tenant string) bool {
	t, found := s.Tenants[tenant], false
	if t != nil && !t.Shared {
		return true
	}
	for _, token := range s.Tokens {
		if token.Tenant != tenant {
			continue
		}
		found = true
		if !token.Shared || a.keys.outdated(token.Signing) {
			return true
		}
	}
	return (found || t != nil) && s.rows[rowKey(tenant)] == 0
}

// contributeSecrets writes secrets to the table that it never had, and reseals secrets that an
// older key of all nodes has sealed.
func (a *Access) contributeSecrets(ctx context.Context) error {
	if !a.sharesSecrets() {
		return nil
	}
	var all []error
	tenants, err := os.ReadDir(string(a.secrets))
	if err != nil {
		return err
	}
	for _, t := range tenants {
		if !tenantName.MatchString(t.Name()) {
			continue
		}
		secrets, err := a.Secrets(t.Name())
		if err != nil {
			return err
		}
		for _, secret := range secrets {
			err := a.contributeSecret(ctx, t.Name(), secret)
			if err != nil {
				all = append(all, fmt.Errorf("secret %s of tenant %s: %w", secret.Name, t.Name(), err))
			}
			if err != nil && !ofOne(err) {
				return errors.Join(all...)
			}
		}
	}
	return errors.Join(all...)
}

// contributeSecret writes a secret unless the table has it, sealed with the newest key.
func (a *Access) contributeSecret(ctx context.Context, tenant string, secret Secret) error {
	return a.write(func(s *state) (string, any, error) {
		key := secretKey(tenant, secret.Name)
		sealed, err := os.ReadFile(a.secrets.pathOf(tenant, secret.Name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && s.rows[key] != 0 && a.keys.shared[:1].seals(sealed) || ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		if err == nil {
			sealed, err = a.keys.reseal(tenant, secret.Name, sealed)
		}
		return key, &secretRow{Protocol: rowProtocol, Node: a.node, Tenant: tenant, Name: secret.Name, Updated: secret.Updated, Sealed: sealed}, err
	})
}
