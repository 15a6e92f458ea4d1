package access

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

// Quotas bound a tenant's use at any time. 0 means no bound.
type Quotas struct {
	Instances       int64 `json:"instances,omitempty"`         // running sandboxes of functions and containers
	MemoryBytes     int64 `json:"memory_bytes,omitempty"`      // sum of their memory limits
	CPUMillis       int64 `json:"cpu_millis,omitempty"`        // sum of their CPU limits
	Images          int64 `json:"images,omitempty"`            // images of its functions
	ImageBytes      int64 `json:"image_bytes,omitempty"`       // files of the images; shared files count for each image
	WorkBytes       int64 `json:"work_bytes,omitempty"`        // in /work; a change takes effect when the engine starts
	EventsPerSecond int64 `json:"events_per_second,omitempty"` // by the gateway and the control API
	Builds          int64 `json:"builds,omitempty"`            // at the same time; 0: as many as the engine allows
}

// EventBurst is the burst allowance, in seconds of the event rate.
const EventBurst = 2

func (q Quotas) check() error {
	for name, n := range map[string]int64{
		"instances": q.Instances, "memory": q.MemoryBytes, "cpu": q.CPUMillis, "images": q.Images, "image-bytes": q.ImageBytes, "work": q.WorkBytes, "events": q.EventsPerSecond, "builds": q.Builds,
	} {
		if n < 0 {
			return fmt.Errorf("quota %s: %d is %w: use 0 for no quota", name, n, ErrInvalid)
		}
	}
	if q.EventsPerSecond > 1e6 {
		return fmt.Errorf("quota events: %d each second is %w: 1000000 at most", q.EventsPerSecond, ErrInvalid)
	}
	return nil
}

// Tenant is a tenant's record. A Tenant is never modified.
type Tenant struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Quotas  Quotas    `json:"quotas"`
	Shared  bool      `json:"shared,omitempty"` // the table of a cluster has or had the record

	events *bucket // survives changes of the record
}

// Tenants returns the tenants with a record, sorted by name.
func (r *records) Tenants() []*Tenant {
	return slices.SortedFunc(maps.Values(r.state.Load().Tenants), func(x, y *Tenant) int { return cmp.Compare(x.Name, y.Name) })
}

// Tenant returns a tenant's record; fs.ErrNotExist without one.
func (r *records) Tenant(name string) (*Tenant, error) {
	if t := r.state.Load().Tenants[name]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("tenant %q: %w", name, fs.ErrNotExist)
}

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
	dir := a.secrets.path(name, "")
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
	return os.RemoveAll(a.secrets.path(tenant, ""))
}

// Quotas returns a tenant's quotas; no bounds without a record. A call is cheap.
func (r *records) Quotas(tenant string) Quotas {
	if t := r.state.Load().Tenants[tenant]; t != nil {
		return t.Quotas
	}
	return Quotas{}
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

// seconds returns the current time in whole seconds, as records hold it.
func (a *Access) seconds() time.Time { return a.cfg.Now().UTC().Truncate(time.Second) }
