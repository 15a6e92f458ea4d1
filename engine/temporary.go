package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/sandbox"
)

// temporaryName is the tenant of temporary functions.
const temporaryName = live.TemporaryTenant

// temporaryTenant is tenant for a temporary function: all temporary functions share one user, and
// each has a /work of its own.
func (e *Engine) temporaryTenant(function string) (sandbox.User, string, error) {
	user, err := e.tenants.User(temporaryName)
	if err != nil {
		return user, "", err
	}
	id := int(user.HostBase + live.FunctionUID)
	if e.tenants.MapErr == nil {
		id = live.FunctionUID
	}
	work, err := e.tenants.AttachOther(function, e.cfg.Work.Of(temporaryName), id)
	return user, work, err
}

// removeTemporary removes the /work of a temporary function.
func (e *Engine) removeTemporary(function string) error {
	work := e.tenants.WorkPath(filepath.Join(temporaryName, function))
	return errors.Join(e.volumes.Remove(work), linux.RemoveAll(filepath.Dir(work)))
}

// forgetTemporary removes the temporary functions of an earlier engine. A function with an error
// does not keep the rest from starting.
func (e *Engine) forgetTemporary() {
	for _, rec := range e.cfg.Store.Functions() {
		var spec functionSpec
		if json.Unmarshal(rec.Spec, &spec) != nil || !spec.Temporary {
			continue
		}
		err := errors.Join(e.cfg.Store.RemoveFunction(context.Background(), rec.Name), os.RemoveAll(e.logDir(rec.Name)))
		if err != nil {
			e.log.Error("temporary function not removed", "function", rec.Name, "error", err)
		}
	}
	left, err := os.ReadDir(filepath.Join(e.cfg.StateDir, "tenants", temporaryName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.log.Error("temporary functions not removed", "error", err)
	}
	for _, dir := range left {
		if err := e.removeTemporary(dir.Name()); err != nil {
			e.log.Error("temporary function's /work not removed", "function", dir.Name(), "error", err)
		}
	}
}
