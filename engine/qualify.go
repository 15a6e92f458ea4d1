package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// NameOf returns the qualified name for an image's function and its tenant: the tenant in name if
// name has one, else the image's. The error is a *template.FieldError.
func NameOf(name string, img *store.Image) (qualified, tenant string, err error) {
	plain, tenant, err := template.SplitName(name)
	if err != nil {
		return "", "", err
	}
	if plain == name {
		cfg, err := image.ConfigOf(img)
		if err != nil {
			return "", "", err
		}
		if template.ValidName(cfg.Tenant) { // only images of functions have a tenant
			tenant = cfg.Tenant
		}
	}
	return template.QualifiedName(plain, tenant), tenant, nil
}

// qualifyNames gives qualified names to the functions of an older state directory, whose names
// lack the tenant, and moves their logs. After a crash the next start continues. A function with
// an error does not keep the rest from starting.
func (e *Engine) qualifyNames() {
	for _, rec := range e.cfg.Store.Functions() {
		if err := e.qualifyName(rec); err != nil {
			e.log.Error("function not renamed to the tenant's full name", "function", rec.Name, "error", err)
		}
	}
}

func (e *Engine) qualifyName(rec *store.Function) error {
	spec, err := specOf(rec)
	if err != nil || spec.Tenant != "" {
		return err
	}
	img, err := e.cfg.Store.Image(string(rec.Image))
	if err != nil {
		return err
	}
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return err
	}
	name := template.QualifiedName(rec.Name, cfg.Tenant)
	if !template.ValidName(rec.Name) || !template.ValidName(cfg.Tenant) || name == rec.Name {
		return nil // qualified already, or newFunction reports the invalid name
	}
	if _, err := e.cfg.Store.Function(name); err == nil {
		return fmt.Errorf("%s: %w", name, fs.ErrExist)
	}
	if err := os.Rename(e.logDir(rec.Name), e.logDir(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return e.cfg.Store.RenameFunction(context.Background(), rec.Name, name)
}
