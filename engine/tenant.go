package engine

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fre-engine/fre/sandbox"
)

// functionUID is the user every function runs as, inside its namespace.
const functionUID = 1000

// tenant returns the identity and the /work directory of a tenant, making both
// at first use.
//
// What lies in /work belongs to functionUID where the file system can map ids,
// so that it suits a sandbox of any user namespace; no other user of the host
// gets that far (tenants/ is root's alone). Elsewhere it belongs to the tenant's
// host id. A directory that is in the other way, from an engine on another
// kernel or before this one, is changed over at the first use.
func (e *Engine) tenant(name string) (sandbox.User, string, error) {
	t, err := e.cfg.Store.Tenant(context.Background(), name)
	if err != nil {
		return sandbox.User{}, "", err
	}
	user := sandbox.User{Tenant: name, HostBase: e.cfg.UIDBase + (t.ID-1)<<16, UID: functionUID, GID: functionUID}
	work := filepath.Join(e.cfg.StateDir, "tenants", name, "work")
	id := int(user.HostBase + functionUID)
	if e.mapErr == nil {
		id = functionUID
	}
	e.tenantMu.Lock()
	defer e.tenantMu.Unlock()
	if err := os.MkdirAll(work, 0o700); err != nil {
		return user, "", fmt.Errorf("make /work of tenant %s: %w", name, err)
	}
	if err := own(work, id); err != nil {
		return user, "", fmt.Errorf("own /work of tenant %s: %w", name, err)
	}
	return user, work, nil
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
