package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/volume"
)

// temporaryName is the tenant of temporary functions. A template cannot use this name.
const temporaryName = "_temporary"

// temporaryTenant is tenant for a temporary function: all temporary functions share one user, and
// each has a /work of its own.
func (e *Engine) temporaryTenant(function string) (sandbox.User, string, error) {
	user, err := e.user(temporaryName)
	if err != nil {
		return user, "", err
	}
	id := int(user.HostBase + functionUID)
	if e.mapErr == nil {
		id = functionUID
	}
	work, err := e.temporaryWork(function, e.cfg.Work.of(temporaryName), id)
	return user, work, err
}

// temporaryWork makes the /work of one function, with a limit in bytes and an owner.
func (e *Engine) temporaryWork(name string, bytes int64, owner int) (string, error) {
	work := e.workPath(filepath.Join(temporaryName, name))
	if err := os.MkdirAll(filepath.Dir(work), 0o700); err != nil {
		return "", fmt.Errorf("make /work of %s: %w", name, err)
	}
	v, err := e.volumes.Attach(work, volume.Limits{Bytes: bytes})
	if err != nil {
		return "", fmt.Errorf("/work of %s: %w", name, err)
	}
	if err := own(v.Dir(), owner); err != nil {
		return "", fmt.Errorf("own /work of %s: %w", name, err)
	}
	return v.Dir(), nil
}

// removeTemporary removes the /work of a temporary function.
func (e *Engine) removeTemporary(function string) error {
	work := e.workPath(filepath.Join(temporaryName, function))
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
