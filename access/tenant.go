package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// CreateTenant creates a record. ErrExists if the tenant has one.
func (a *Access) CreateTenant(name string, q Quotas) (*Tenant, error) {
	if err := errors.Join(checkTenant(name), q.check()); err != nil {
		return nil, err
	}
	t := &Tenant{Name: name, Created: a.seconds(), Quotas: q, events: new(bucket)}
	return t, a.change(func(s *state) error {
		if s.Tenants[name] != nil {
			return fmt.Errorf("tenant %s %w", name, ErrExists)
		}
		s.Tenants[name] = t
		return nil
	})
}

// SetQuotas replaces a tenant's quotas and creates the record if missing. New quotas apply from the
// next event, start or build; existing objects stay. ErrChanged if another node changed the quotas
// at the same time.
func (a *Access) SetQuotas(name string, q Quotas) (*Tenant, error) {
	if err := errors.Join(checkTenant(name), q.check()); err != nil {
		return nil, err
	}
	t := &Tenant{Name: name, Created: a.seconds(), Quotas: q, events: new(bucket)}
	var before *Quotas // the quotas when the change began
	return t, a.change(func(s *state) error {
		var now Quotas
		if old := s.Tenants[name]; old != nil {
			t.Created, t.events = old.Created, old.events
			now = old.Quotas
		}
		if before == nil {
			before = &now
		}
		if *before != now {
			return fmt.Errorf("quotas of tenant %s: %w: read the quotas and try again", name, ErrChanged)
		}
		s.Tenants[name] = t
		return nil
	})
}

// RemoveTenant removes a tenant's record, tokens and secrets. fs.ErrNotExist if it has none of
// them.
func (a *Access) RemoveTenant(name string) error {
	if err := checkTenant(name); err != nil {
		return err
	}
	found := false
	err := a.change(func(s *state) error {
		found = s.Tenants[name] != nil
		delete(s.Tenants, name)
		for id, t := range s.Tokens {
			if t.Tenant == name {
				found = true
				delete(s.Tokens, id)
			}
		}
		s.removed = name
		return nil
	})
	if err != nil {
		return err
	}
	dir := a.secrets.pathOf(name, "")
	if _, statErr := os.Lstat(dir); statErr == nil {
		found = true
	}
	if err = a.removeSecrets(name); err == nil && !found {
		return fmt.Errorf("tenant %q: %w", name, fs.ErrNotExist)
	}
	return err
}

// removeSecrets removes all secrets of a tenant.
func (a *Access) removeSecrets(tenant string) error {
	if a.sharesSecrets() {
		all, err := a.Secrets(tenant)
		if err != nil {
			return err
		}
		for _, s := range all {
			if err := a.RemoveSecret(tenant, s.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return os.RemoveAll(a.secrets.pathOf(tenant, ""))
}

// Event counts an event for a tenant; *SlowDownError if the tenant's rate is exceeded. Event
// allocates memory only to refuse.
func (a *Access) Event(tenant string) error {
	t := a.state.Load().Tenants[tenant]
	if t == nil || t.Quotas.EventsPerSecond == 0 {
		return nil
	}
	each := time.Second / time.Duration(t.Quotas.EventsPerSecond)
	if wait := t.events.take(time.Since(a.begun), each, EventBurst*time.Second); wait > 0 {
		return &SlowDownError{What: "events of tenant " + tenant, Quota: true, After: wait}
	}
	return nil
}
