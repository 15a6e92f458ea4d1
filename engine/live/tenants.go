package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// TemporaryTenant is the tenant of temporary functions. A template cannot use this name.
const TemporaryTenant = "_temporary"

// FunctionUID is the user id of every function inside the namespace.
const FunctionUID = image.FunctionID

// WorkConfig bounds each tenant's /work, in bytes of disk blocks; 0 is no limit. The limit also
// allows one file per 4 KiB.
type WorkConfig struct {
	Limit   int64            // for each tenant
	Tenants map[string]int64 // for the named tenants, instead of Limit
}

// Of returns the limit of a tenant.
func (c *WorkConfig) Of(tenant string) int64 {
	if limit, ok := c.Tenants[tenant]; ok {
		return limit
	}
	return c.Limit
}

// Check returns volume.ErrNoLimits if the host cannot enforce the limits.
func (c *WorkConfig) Check(volumes *volume.Manager) error {
	wanted := c.Limit > 0
	for _, limit := range c.Tenants {
		wanted = wanted || limit > 0
	}
	if !wanted {
		return nil
	}
	if err := volumes.CanLimit(); err != nil {
		return fmt.Errorf("limits of tenants' /work: %w", err)
	}
	return nil
}

// TenantsConfig wires Tenants. All fields but Work and Quotas are required.
type TenantsConfig struct {
	Store    *store.Store
	Volumes  *volume.Manager
	Life     *Life
	Log      *slog.Logger
	StateDir string // parent directory of tenants/, which exists
	UIDBase  uint32 // first host id of tenant 1
	Work     WorkConfig
	Quotas   func(tenant string) Quotas // nil: no quotas
}

// Tenants knows the tenants of the engine: identities, /work, quotas and shares.
type Tenants struct {
	cfg    TenantsConfig
	MapErr error    // why /work cannot be mounted with mapped owners; nil if it can
	shares sync.Map // *Share by tenant

	mu    sync.Mutex // held over the disk while a tenant's directory is made
	works map[string]*volume.Volume
}

// NewTenants returns the tenants of an engine. Error: volume.ErrNoLimits if the host cannot
// enforce the limits of Work.
func NewTenants(cfg TenantsConfig) (*Tenants, error) {
	t := &Tenants{cfg: cfg, MapErr: sandbox.CanMap(filepath.Join(cfg.StateDir, "tenants")), works: make(map[string]*volume.Volume)}
	return t, cfg.Work.Check(cfg.Volumes)
}

// Quotas returns the quotas of a tenant.
func (t *Tenants) Quotas(tenant string) Quotas {
	if t.cfg.Quotas == nil {
		return Quotas{}
	}
	return t.cfg.Quotas(tenant)
}

// Share returns the counts of a tenant, which live as long as the engine.
func (t *Tenants) Share(tenant string) *Share {
	if u, ok := t.shares.Load(tenant); ok {
		return u.(*Share)
	}
	u, _ := t.shares.LoadOrStore(tenant, &Share{})
	return u.(*Share)
}

// Shares yields the shares of all tenants that have had one since the engine's start.
func (t *Tenants) Shares() iter.Seq2[string, *Share] {
	return func(yield func(string, *Share) bool) {
		t.shares.Range(func(name, share any) bool { return yield(name.(string), share.(*Share)) })
	}
}

// ReserveRun counts a run of a container, or of a command, against the tenant's quotas. Error: a
// *QuotaError if the quotas have no room. release undoes the count; further calls do nothing.
func (t *Tenants) ReserveRun(tenant string, l sandbox.Limits) (release func(), err error) {
	u := t.Share(tenant)
	if err := u.Reserve(tenant, t.Quotas(tenant), l.MemoryBytes, l.CPUMillis); err != nil {
		return nil, err
	}
	u.mu.Lock()
	u.containers++
	u.mu.Unlock()
	return sync.OnceFunc(func() {
		u.mu.Lock()
		u.containers--
		u.mu.Unlock()
		u.Release(l.MemoryBytes, l.CPUMillis)
	}), nil
}

// User returns the identity of a tenant, new at first use.
func (t *Tenants) User(name string) (sandbox.User, error) {
	rec, err := t.cfg.Store.Tenant(context.Background(), name)
	if err != nil {
		return sandbox.User{}, err
	}
	return sandbox.User{Tenant: name, HostBase: t.cfg.UIDBase + (rec.ID-1)<<16, UID: FunctionUID, GID: FunctionUID}, nil
}

// Attach returns the identity and the /work directory of a tenant, and makes both at first use.
//
// If the file system can map ids, files in /work belong to FunctionUID, so that they suit every
// User namespace; other users of the host cannot reach them, because only root may enter
// tenants/. Otherwise files belong to the tenant's host id. The first use changes a directory
// with the other owner, left by an older engine or another kernel. The directory is a volume,
// with the limit of the engine's configuration.
func (t *Tenants) Attach(name string) (sandbox.User, string, error) {
	user, err := t.User(name)
	if err != nil {
		return user, "", err
	}
	id := int(user.HostBase + FunctionUID)
	if t.MapErr == nil {
		id = FunctionUID
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.works[name]; v != nil {
		return user, v.Dir(), nil
	}
	work := t.WorkPath(name)
	if err := os.MkdirAll(filepath.Dir(work), 0o700); err != nil {
		return user, "", fmt.Errorf("make /work of tenant %s: %w", name, err)
	}
	v, err := t.cfg.Volumes.Attach(work, volume.Limits{Bytes: cmp.Or(t.Quotas(name).WorkBytes, t.cfg.Work.Of(name))})
	if err != nil {
		return user, "", fmt.Errorf("/work of tenant %s: %w", name, err)
	}
	if err := own(v.Dir(), id); err != nil {
		return user, "", fmt.Errorf("own /work of tenant %s: %w", name, err)
	}
	t.works[name] = v
	return user, v.Dir(), nil
}

// Work returns the directory seen by a tenant's sandboxes as /work. It is made at first use.
func (t *Tenants) Work(tenant string) (string, error) {
	_, dir, err := t.Attach(tenant)
	return dir, err
}

// WorkPath returns the path of a tenant's /work, which may be missing.
func (t *Tenants) WorkPath(tenant string) string {
	return filepath.Join(t.cfg.StateDir, "tenants", tenant, "work")
}

// AttachAll attaches each existing /work: DiskUsage counts a /work before the tenant's first
// sandbox.
func (t *Tenants) AttachAll() {
	for _, rec := range t.cfg.Store.Tenants() {
		if t.cfg.Life.Stopping() {
			return
		}
		if _, err := os.Lstat(t.WorkPath(rec.Name)); err != nil {
			continue
		}
		if _, _, err := t.Attach(rec.Name); err != nil && !errors.Is(err, os.ErrClosed) {
			t.cfg.Log.Error("tenant's files cannot be used", "tenant", rec.Name, "error", err)
		}
	}
}

// TenantUsage is the use of a tenant's /work.
type TenantUsage struct {
	Name  string
	Limit int64       // bytes; 0: no limit
	Kind  volume.Kind // how the volume is counted
	volume.Usage
}

// Usage reads the use of each attached /work, by one system call each.
func (t *Tenants) Usage() ([]TenantUsage, error) {
	var out []TenantUsage
	for _, rec := range t.cfg.Store.Tenants() {
		t.mu.Lock()
		v := t.works[rec.Name]
		t.mu.Unlock()
		if v == nil {
			continue
		}
		u, err := v.Usage()
		if errors.Is(err, fs.ErrClosed) {
			continue // the engine stops
		}
		if err != nil {
			return nil, fmt.Errorf("/work of tenant %s: %w", rec.Name, err)
		}
		out = append(out, TenantUsage{Name: rec.Name, Limit: v.Limits().Bytes, Kind: v.Kind(), Usage: u})
	}
	return out, nil
}

// own gives dir and all files in dir to a user, unless dir has the owner already. dir comes last:
// after a crash the next call repeats the rest.
func own(dir string, id int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := root.Stat(".")
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == id && int(sys.Gid) == id {
		return nil
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		return root.Lchown(path, id, id)
	})
	if err != nil {
		return err
	}
	return root.Chown(".", id, id)
}

// AttachOther makes the /work of one temporary function, with a limit in bytes and an owner.
func (t *Tenants) AttachOther(name string, bytes int64, owner int) (string, error) {
	work := t.WorkPath(filepath.Join(TemporaryTenant, name))
	if err := os.MkdirAll(filepath.Dir(work), 0o700); err != nil {
		return "", fmt.Errorf("make /work of %s: %w", name, err)
	}
	v, err := t.cfg.Volumes.Attach(work, volume.Limits{Bytes: bytes})
	if err != nil {
		return "", fmt.Errorf("/work of %s: %w", name, err)
	}
	if err := own(v.Dir(), owner); err != nil {
		return "", fmt.Errorf("own /work of %s: %w", name, err)
	}
	return v.Dir(), nil
}
