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

// temporaryName is the tenant of temporary functions. No template can name it.
const temporaryName = "_temporary"

// temporaryTenant is tenant for a temporary function: its user is the same for
// all of them, its /work its own.
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

// temporaryWork makes a /work that is nobody else's.
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

// forgetTemporary removes what an engine before this one has left of its
// temporary functions. What is in the way of one keeps no other from answering.
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
