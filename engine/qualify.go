package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// NameOf is the qualified name that an image's function is deployed under, and its
// tenant: that of name, where it has one, else the image's. The error is an
// *image.FieldError.
func NameOf(name string, img *store.Image) (qualified, tenant string, err error) {
	plain, tenant, err := image.SplitName(name)
	if err != nil {
		return "", "", err
	}
	if plain == name {
		cfg, err := image.ConfigOf(img)
		if err != nil {
			return "", "", err
		}
		if image.ValidName(cfg.Tenant) { // an image that is no function has none
			tenant = cfg.Tenant
		}
	}
	return image.QualifiedName(plain, tenant), tenant, nil
}

// qualifyNames gives the functions of a state directory of before, where one name was
// one function whatever its tenant, the qualified names that they have now, and their
// logs with them. A crash in between has the next start go on. What is in the way of
// one keeps no other from answering.
func (e *Engine) qualifyNames() {
	for _, rec := range e.cfg.Store.Functions() {
		if err := e.qualifyName(rec); err != nil {
			e.log.Error("function's name not changed to its tenant's", "function", rec.Name, "error", err)
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
	name := image.QualifiedName(rec.Name, cfg.Tenant)
	if !image.ValidName(rec.Name) || !image.ValidName(cfg.Tenant) || name == rec.Name {
		return nil // it is qualified by now, or newFunction says what is wrong with it
	}
	if _, err := e.cfg.Store.Function(name); err == nil {
		return fmt.Errorf("%s: %w", name, fs.ErrExist)
	}
	if err := os.Rename(e.logDir(rec.Name), e.logDir(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return e.cfg.Store.RenameFunction(context.Background(), rec.Name, name)
}
