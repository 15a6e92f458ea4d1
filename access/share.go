package access

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Share moves the records to the table of a cluster, in which this engine is the named node. Call
// Share before any other use of a.
func (a *Access) Share(t Table, node string) { a.table, a.node = t, node }

// rowOf returns a tenant's row for the other nodes. The row omits an access key's secret that only
// this node can open, and passes on unchanged a secret that this node cannot open.
func (a *Access) rowOf(s *state, tenant string) *tenantRow {
	r := &tenantRow{Protocol: rowProtocol, Node: a.node, Tenant: tenant, Removed: s.removed == tenant}
	if t := s.Tenants[tenant]; t != nil {
		r.Record = &tenantFacts{t.Created, t.Quotas}
	}
	for _, t := range s.Tokens {
		if t.Tenant != tenant {
			continue
		}
		f := tokenFacts{Token: t.Token, Hash: t.Hash}
		f.LastUsed = time.Time{} // each node knows only its own uses
		if !a.keys.own.seals(t.Signing) {
			f.Signing = t.Signing
		}
		if t.Signing != nil && a.keys.shared != nil {
			if sealed, err := a.keys.reseal("", t.ID, t.Signing); err == nil {
				f.Signing = sealed
			}
		}
		r.Tokens = append(r.Tokens, f)
	}
	slices.SortFunc(r.Tokens, func(x, y tokenFacts) int { return cmp.Compare(x.ID, y.ID) })
	return r
}

// write writes the row that next makes of the newest state to the table, and takes the row here;
// a.changing is held. If another node was faster, write calls next again. If next returns no key,
// no write is needed.
func (a *Access) write(next func(*state) (key string, row any, err error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), tablePatience)
	defer cancel()
	var key string
	for range tableTries {
		if err := a.table.Ready(ctx); err != nil {
			return err
		}
		s := a.state.Load()
		var row any
		var err error
		if key, row, err = next(s); err != nil || key == "" {
			return err
		}
		raw, err := json.Marshal(row)
		if err != nil {
			return fmt.Errorf("encode %s: %w", key, err)
		}
		if len(raw) > MaxRow {
			return fmt.Errorf("%d bytes of tokens are %w: a tenant has at most %d: remove expired tokens (fre token rm)", len(raw), ErrInvalid, MaxRow)
		}
		revision, won, err := a.table.Write(ctx, key, raw, s.rows[key])
		if err != nil {
			return err
		}
		if won {
			return a.take(key, raw, revision)
		}
	}
	return fmt.Errorf("%s: %w, or the present node cannot read the other node's record: see the node's log", key, ErrChanged)
}

// changeShared is change in a cluster; edit may change one tenant.
func (a *Access) changeShared(edit func(*state) error) error {
	making := func(tokens map[string]*record) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.making = tokens
	}
	defer making(nil)
	return a.write(func(s *state) (string, any, error) {
		next := s.clone()
		if err := edit(next); err != nil {
			return "", nil, err
		}
		making(next.Tokens)
		tenant := changedTenant(s, next)
		if tenant == "" {
			return "", nil, nil
		}
		return rowKey(tenant), a.rowOf(next, tenant), nil
	})
}

// changedTenant returns the tenant in which two states differ, "" for equal states.
func changedTenant(was, now *state) string {
	for _, pair := range [][2]*state{{was, now}, {now, was}} {
		for name, t := range pair[0].Tenants {
			if pair[1].Tenants[name] != t {
				return name
			}
		}
		for id, t := range pair[0].Tokens {
			if pair[1].Tokens[id] != t {
				return t.Tenant
			}
		}
	}
	return ""
}

// Take applies a row of the table here; a nil value means that an operator deleted the row. A row
// that cannot be decoded is logged and ignored.
func (a *Access) Take(key string, value []byte, revision uint64) {
	if err := a.take(key, value, revision); err != nil {
		a.cfg.Log.Error("cluster: another node's record not in force on the present node", "record", key, "error", err)
	}
}

func (a *Access) take(key string, value []byte, revision uint64) error {
	if strings.HasPrefix(key, keySecret) {
		return a.takeSecret(key, value, revision)
	}
	var row *tenantRow
	if value == nil {
		tenant, ok := strings.CutPrefix(key, keyTenant)
		if !ok {
			tenant = AllTenants
		}
		row = &tenantRow{Tenant: tenant, Removed: true}
	} else {
		var err error
		if row, err = decodeTenant(key, value); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.state.Load()
	if now.rows[key] >= revision {
		return a.saveLocked()
	}
	next := now.clone()
	if err := a.mergeLocked(next, row); err != nil {
		return err
	}
	next.rows[key] = revision
	a.state.Store(next) // even with a full disk, because the row is in force on all nodes
	if changedTenant(now, next) == "" {
		return nil
	}
	a.unsaved = true
	return a.saveLocked()
}

// saveLocked writes rows from the table to disk, but only after the whole table was read: until
// then there may be many.
func (a *Access) saveLocked() error {
	if !a.unsaved || !a.caught {
		return nil
	}
	if err := a.writeLocked(a.state.Load()); err != nil {
		return fmt.Errorf("in force on all nodes, but not on the present node's disk: %w", err)
	}
	return nil
}

// mergeLocked makes a tenant in s equal to its row. Records from the time before the cluster, which
// the table never had, stay, unless the row says that the tenant was removed.
func (a *Access) mergeLocked(s *state, row *tenantRow) error {
	a.mergeTenant(s, row)
	in := map[string]bool{}
	for _, f := range row.Tokens {
		in[f.ID] = true
		if err := a.mergeTokenLocked(s, row.Tenant, f); err != nil {
			return err
		}
	}
	for id, t := range s.Tokens {
		if t.Tenant != row.Tenant || in[id] {
			continue
		}
		if t.Shared || row.Removed {
			delete(s.Tokens, id)
		}
		if !t.Shared && row.Removed {
			a.cfg.Log.Warn("cluster: a token from before the cluster was removed with the token's tenant", "token", id, "name", t.Name, "tenant", t.Tenant)
		}
	}
	return nil
}

// mergeTenant takes the tenant's quotas from the row.
func (a *Access) mergeTenant(s *state, row *tenantRow) {
	old := s.Tenants[row.Tenant]
	if row.Record == nil {
		if old != nil && (old.Shared || row.Removed) {
			delete(s.Tenants, row.Tenant)
		}
		return
	}
	t := &Tenant{Name: row.Tenant, Created: row.Record.Created, Quotas: row.Record.Quotas, Shared: true, events: new(bucket)}
	if old != nil {
		t.events = old.events
		if !old.Shared && old.Quotas != t.Quotas {
			a.cfg.Log.Warn("cluster: the cluster's quotas replace the node's earlier quotas of a tenant", "tenant", t.Name)
		}
	}
	if !old.same(t) {
		s.Tenants[row.Tenant] = t
	}
}

// mergeTokenLocked takes a token of the tenant's row.
func (a *Access) mergeTokenLocked(s *state, tenant string, f tokenFacts) error {
	was := s.Tokens[f.ID]
	own := was
	if own == nil {
		own = a.making[f.ID]
	}
	t := &record{Token: f.Token, Hash: f.Hash, Signing: f.Signing, Shared: true, used: new(atomic.Int64)}
	if own != nil {
		if own.Tenant != tenant {
			return fmt.Errorf("token %s is tenant %s's", f.ID, own.Tenant)
		}
		t.used = own.used
		if t.Signing == nil {
			t.Signing = own.Signing // this node's own
		}
	}
	if was == nil || !was.same(t) {
		s.Tokens[f.ID] = t
	}
	return nil
}

// shareSecret writes a secret for all nodes; a nil value removes the secret.
func (a *Access) shareSecret(tenant, name string, value []byte, check func() error) error {
	r := &secretRow{Protocol: rowProtocol, Node: a.node, Tenant: tenant, Name: name, Updated: a.cfg.Now().UTC(), Removed: value == nil}
	if value != nil {
		r.Sealed = a.keys.shared.seal(tenant, name, value)
	}
	return a.write(func(*state) (string, any, error) { return secretKey(tenant, name), r, check() })
}

// takeSecret is take for a secret's row.
func (a *Access) takeSecret(key string, value []byte, revision uint64) error {
	if a.keys.shared == nil {
		a.warnOwn.Do(func() {
			a.cfg.Log.Warn("cluster: other nodes share secrets, but the node has no key: set cluster.key_file")
		})
		return nil
	}
	r, err := parseSecret(key, value)
	if err != nil {
		return err
	}
	if err := a.keys.opens(r); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.state.Load()
	if now.rows[key] >= revision {
		return nil
	}
	next := now.clone()
	next.rows[key] = revision
	defer a.state.Store(next) // after the file, which the start of a change has checked
	path := a.secrets.pathOf(r.Tenant, r.Name)
	if r.Removed { // so the table had the secret before
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, syncDir(filepath.Dir(path)))
	}
	return a.replaceSecretLocked(path, r)
}

// replaceSecretLocked writes the row's secret unless the file has it.
func (a *Access) replaceSecretLocked(path string, r *secretRow) error {
	here, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.Equal(here, r.Sealed):
		return nil
	case err == nil && !a.keys.shared.seals(here):
		a.cfg.Log.Warn("cluster: the cluster's secret replaces the node's earlier secret", "secret", r.Name, "tenant", r.Tenant)
	}
	if err := a.secrets.write(r.Tenant, r.Name, r.Sealed); err != nil {
		return err
	}
	return os.Chtimes(path, time.Time{}, r.Updated)
}

// change applies edit to a copy of the state, writes the copy to disk or, in a cluster, to the
// table, and publishes it. edit must replace records and not modify them. edit may be called again
// with a newer state, if another node made a change meanwhile.
func (a *Access) change(edit func(*state) error) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	if a.table != nil {
		return a.changeShared(edit)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.state.Load().clone()
	if err := edit(next); err != nil {
		return err
	}
	if err := a.writeLocked(next); err != nil {
		return err
	}
	a.state.Store(next)
	return nil
}
