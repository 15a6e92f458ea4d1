package engine

import (
	"errors"
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
