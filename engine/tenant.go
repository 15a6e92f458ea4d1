package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/volume"
)

// functionUID is the user id of every function inside the namespace.
const functionUID = image.FunctionID

// WorkConfig bounds each tenant's /work, in bytes of disk blocks; 0 is no limit. The limit also
// allows one file per 4 KiB.
type WorkConfig struct {
	Limit   int64            // for each tenant
	Tenants map[string]int64 // for the named tenants, instead of Limit
}

func (c *WorkConfig) of(tenant string) int64 {
	if limit, ok := c.Tenants[tenant]; ok {
		return limit
	}
	return c.Limit
}

// check returns volume.ErrNoLimits if the host cannot enforce the limits.
func (c *WorkConfig) check(volumes *volume.Manager) error {
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

// user returns the identity of a tenant, new at first use.
func (e *Engine) user(name string) (sandbox.User, error) {
	t, err := e.cfg.Store.Tenant(context.Background(), name)
	if err != nil {
		return sandbox.User{}, err
	}
	return sandbox.User{Tenant: name, HostBase: e.cfg.UIDBase + (t.ID-1)<<16, UID: functionUID, GID: functionUID}, nil
}

// tenant returns the identity and the /work directory of a tenant, and makes both at first use.
//
// If the file system can map ids, files in /work belong to functionUID, so that they suit every
// user namespace; other users of the host cannot reach them, because only root may enter
// tenants/. Otherwise files belong to the tenant's host id. The first use changes a directory
// with the other owner, left by an older engine or another kernel. The directory is a volume,
// with the limit of the engine's configuration.
func (e *Engine) tenant(name string) (sandbox.User, string, error) {
	user, err := e.user(name)
	if err != nil {
		return user, "", err
	}
	id := int(user.HostBase + functionUID)
	if e.mapErr == nil {
		id = functionUID
	}
	e.tenantMu.Lock()
	defer e.tenantMu.Unlock()
	if v := e.works[name]; v != nil {
		return user, v.Dir(), nil
	}
	work := e.workPath(name)
	if err := os.MkdirAll(filepath.Dir(work), 0o700); err != nil {
		return user, "", fmt.Errorf("make /work of tenant %s: %w", name, err)
	}
	v, err := e.volumes.Attach(work, volume.Limits{Bytes: cmp.Or(e.quotas(name).WorkBytes, e.cfg.Work.of(name))})
	if err != nil {
		return user, "", fmt.Errorf("/work of tenant %s: %w", name, err)
	}
	if err := own(v.Dir(), id); err != nil {
		return user, "", fmt.Errorf("own /work of tenant %s: %w", name, err)
	}
	e.works[name] = v
	return user, v.Dir(), nil
}

// Work returns the directory seen by a tenant's sandboxes as /work. It is made at first use.
func (e *Engine) Work(tenant string) (string, error) {
	_, dir, err := e.tenant(tenant)
	return dir, err
}

func (e *Engine) workPath(tenant string) string {
	return filepath.Join(e.cfg.StateDir, "tenants", tenant, "work")
}

// attachWorks attaches each existing /work: DiskUsage counts a /work before the tenant's first
// sandbox.
func (e *Engine) attachWorks() {
	for _, t := range e.cfg.Store.Tenants() {
		if e.Stopping() {
			return
		}
		if _, err := os.Lstat(e.workPath(t.Name)); err != nil {
			continue
		}
		if _, _, err := e.tenant(t.Name); err != nil && !errors.Is(err, os.ErrClosed) {
			e.log.Error("tenant's files cannot be used", "tenant", t.Name, "error", err)
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

// tenantUsage reads the use of each attached /work, by one system call each.
func (e *Engine) tenantUsage() ([]TenantUsage, error) {
	var out []TenantUsage
	for _, t := range e.cfg.Store.Tenants() {
		e.tenantMu.Lock()
		v := e.works[t.Name]
		e.tenantMu.Unlock()
		if v == nil {
			continue
		}
		u, err := v.Usage()
		if errors.Is(err, fs.ErrClosed) {
			continue // the engine stops
		}
		if err != nil {
			return nil, fmt.Errorf("/work of tenant %s: %w", t.Name, err)
		}
		out = append(out, TenantUsage{Name: t.Name, Limit: v.Limits().Bytes, Kind: v.Kind(), Usage: u})
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
