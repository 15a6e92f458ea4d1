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

// functionUID is the user every function runs as, inside its namespace.
const functionUID = image.FunctionID

// WorkConfig bounds what tenants keep in /work, in bytes of disk blocks; 0 is no
// limit. One file is allowed for each 4 KiB.
type WorkConfig struct {
	Limit   int64            // of each tenant
	Tenants map[string]int64 // of those named, instead
}

func (c *WorkConfig) of(tenant string) int64 {
	if limit, ok := c.Tenants[tenant]; ok {
		return limit
	}
	return c.Limit
}

// check returns volume.ErrNoLimits where limits are wanted that cannot be kept.
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

// user returns the identity of a tenant, entering it at first use.
func (e *Engine) user(name string) (sandbox.User, error) {
	t, err := e.cfg.Store.Tenant(context.Background(), name)
	if err != nil {
		return sandbox.User{}, err
	}
	return sandbox.User{Tenant: name, HostBase: e.cfg.UIDBase + (t.ID-1)<<16, UID: functionUID, GID: functionUID}, nil
}

// tenant returns the identity and the /work directory of a tenant, making both
// at first use.
//
// What lies in /work belongs to functionUID where the file system can map ids,
// so that it suits a sandbox of any user namespace; no other user of the host
// gets that far (tenants/ is root's alone). Elsewhere it belongs to the tenant's
// host id. A directory that is in the other way, from an engine on another
// kernel or before this one, is changed over at the first use. It is a volume:
// its limit is what the engine was started with.
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

// Work is the directory that a tenant's sandboxes see as /work, made if it is not there.
func (e *Engine) Work(tenant string) (string, error) {
	_, dir, err := e.tenant(tenant)
	return dir, err
}

func (e *Engine) workPath(tenant string) string {
	return filepath.Join(e.cfg.StateDir, "tenants", tenant, "work")
}

// attachWorks makes the /work of every tenant that has one known to DiskUsage
// before its first sandbox.
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

// TenantUsage is what a tenant keeps in /work.
type TenantUsage struct {
	Name  string
	Limit int64       // bytes, 0: none
	Kind  volume.Kind // how it is counted
	volume.Usage
}

// tenantUsage reads what those tenants keep whose /work is attached, by one
// system call each.
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

// own gives dir and all in it to a user, unless dir is theirs already: it comes
// last, so that a crash half-way has it done again.
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
