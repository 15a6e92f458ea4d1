package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Part finds the part that PutPart remembered under key. A caller that goes on to use the part
// holds a lease ([Store.Hold]).
func (s *Store) Part(key string) (Part, bool) {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	p, ok := s.meta.snap.Load().parts[key]
	if ok {
		s.leases.useTreeLocked(p.Tree)
	}
	return p, ok
}

// PutPart remembers p under key until a Sweep finds no image with its tree. Errors:
// fs.ErrNotExist if the tree is not committed.
func (s *Store) PutPart(ctx context.Context, key string, p Part) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if key == "" {
		return fmt.Errorf("part: empty key")
	}
	if err := p.Tree.check(); err != nil {
		return fmt.Errorf("part %s: %w", key, err)
	}
	if old, ok := s.Part(key); ok && old == p {
		return nil
	}
	s.leases.useTree(p.Tree)
	var st unix.Stat_t
	if err := unix.Fstatat(int(s.disk.trees.Fd()), p.Tree.hex()+".json", &st, 0); err != nil {
		return fmt.Errorf("part %s: tree %s: %w", key, p.Tree, err)
	}
	if err := s.meta.update(false, func(t *tx) error { return t.putPart(key, p) }); err != nil {
		return fmt.Errorf("part %s: %w", key, err)
	}
	return nil
}

// PutFunction creates or replaces the function of that name. Deployed, if zero, becomes the
// current time. Errors: fs.ErrNotExist if one of its images does not exist.
func (s *Store) PutFunction(ctx context.Context, f Function) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkName("function name", f.Name); err != nil {
		return err
	}
	if len(f.Spec) == 0 {
		f.Spec = json.RawMessage("null")
	}
	if !json.Valid(f.Spec) {
		return fmt.Errorf("function %s: spec is not JSON", f.Name)
	}
	f.Spec = slices.Clone(f.Spec)
	if f.Deployed.IsZero() {
		f.Deployed = time.Now()
	}
	f.Deployed = f.Deployed.UTC().Round(0)
	f.Images = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(f.Images))), func(d Digest) bool { return d == f.Image })
	err := s.meta.update(true, func(t *tx) error {
		for _, d := range append([]Digest{f.Image}, f.Images...) {
			if t.next.byDigest[d] == nil {
				return fmt.Errorf("image %s: %w", d, fs.ErrNotExist)
			}
		}
		return t.putFunction(&f)
	})
	if err != nil {
		return fmt.Errorf("function %s: %w", f.Name, err)
	}
	return nil
}

// RenameFunction gives a function an unused name. Errors: fs.ErrNotExist, fs.ErrExist.
func (s *Store) RenameFunction(ctx context.Context, from, to string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkName("function name", to); err != nil {
		return err
	}
	err := s.meta.update(true, func(t *tx) error {
		f := t.next.functions[from]
		switch {
		case f == nil:
			return fs.ErrNotExist
		case t.next.functions[to] != nil:
			return fmt.Errorf("%q: %w", to, fs.ErrExist)
		}
		renamed := *f
		renamed.Name = to
		return errors.Join(t.removeFunction(from), t.putFunction(&renamed))
	})
	if err != nil {
		return fmt.Errorf("rename function %q: %w", from, err)
	}
	return nil
}

// RemoveFunction removes a function; its image stays. Errors: fs.ErrNotExist.
func (s *Store) RemoveFunction(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.meta.updateFreeing(true, func(t *tx) error {
		if t.next.functions[name] == nil {
			return fs.ErrNotExist
		}
		return t.removeFunction(name)
	})
	if err != nil {
		return fmt.Errorf("function %q: %w", name, err)
	}
	return nil
}

// Tenant finds the tenant or creates it, with an id that no tenant ever had.
func (s *Store) Tenant(ctx context.Context, name string) (Tenant, error) {
	if n, ok := s.meta.snap.Load().tenants[name]; ok {
		return n, nil
	}
	if err := ctx.Err(); err != nil {
		return Tenant{}, err
	}
	if err := checkName("tenant name", name); err != nil {
		return Tenant{}, err
	}
	var n Tenant
	err := s.meta.update(true, func(t *tx) error {
		var ok bool
		if n, ok = t.next.tenants[name]; ok {
			return nil
		}
		var err error
		n, err = t.putTenant(Tenant{Name: name})
		return err
	})
	if err != nil {
		return Tenant{}, fmt.Errorf("tenant %s: %w", name, err)
	}
	return n, nil
}
