package node

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Packages makes one part for each package version, placed below /node_modules, for the function's
// files to find. It runs install scripts only of packages in packages.npm_scripts.
func (r Site) Packages(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	site := &site{step: step, tools: r.Tools, compilers: r.Compilers, patience: cmp.Or(r.Patience, 10*time.Minute)}
	locked, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		var err error
		if locked, err = site.lock(ctx, t.Packages.Of("npm")); err != nil {
			return nil, err
		}
		lock.Sites[r.Name()] = locked
	}
	var l packageLock
	if err := json.Unmarshal(locked.PackageLock, &l); err != nil {
		return nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf("%s: package_lock: %s: delete the file to resolve again", image.LockFile, err)}
	}
	if err := l.check(); err != nil {
		return nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf("%s: package_lock: %s: delete the file to resolve again", image.LockFile, err)}
	}
	places := l.places()
	site.allowed = t.Packages.Of("npm").Scripts
	if err := site.warn(&l, places); err != nil {
		return nil, err
	}
	if len(t.Packages.Of("npm").Scripts) > 0 {
		return site.installScripted(ctx, &l, places, t.Packages.Of("npm").Scripts)
	}
	return site.installPlain(ctx, &l, places)
}

// lock resolves the requests.
func (s *site) lock(ctx context.Context, r *template.Requests) (*Locked, error) {
	s.step.Report(image.Progress{Step: "packages", Message: "resolve"})
	m, raw, err := requested(r)
	if err == nil && raw == nil {
		if err := image.Offline(ctx, "an answer to packages.npm"); err != nil {
			return nil, err
		}
		raw, err = s.resolve(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	if raw, err = s.withLibc(ctx, raw); err != nil {
		return nil, err
	}
	return &Locked{Request: r.Key(), PackageLock: raw}, nil
}
