package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// ErrBuildTime says that a build, or one of its steps, exceeded its time limit.
var ErrBuildTime = failure.New(failure.BuildFailed, "the build took too long", "build again (finished steps are kept), use fewer packages, or compile code before the build")

// ParseTemplate reads a fret.yaml; name is the file in errors. Errors: [template.Errors].
func (l *Library) ParseTemplate(name string, src []byte) (*template.Template, error) {
	return l.cfg.Builder.Parse(name, src)
}

// Template reads the template in dir, for [Library.Build]. Errors: as of [Library.ParseTemplate], and
// fs.ErrNotExist.
func (l *Library) Template(dir *os.Root) (*template.Template, error) {
	return l.cfg.Builder.Template(dir)
}

// Base builds the named base environment, or finds it in the store.
func (l *Library) Base(ctx context.Context, name string, report func(image.Progress)) (img *store.Image, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		l.cache.mu.RLock()
		defer l.cache.mu.RUnlock()
		return l.writing(ctx, func(ctx context.Context) error {
			img, err = l.cfg.Builder.Base(ctx, name, report)
			return err
		})
	})
	return img, err
}

// Build makes an image of t, the template in dir, when the tenant's turn has come. It returns the
// image and the lock to write beside the template. One goroutine at a time calls report. Errors:
// those of the builder, *[live.QuotaError], [ErrBuildTime].
func (l *Library) Build(ctx context.Context, dir *os.Root, t *template.Template, report func(image.Progress)) (img *store.Image, lock *image.Lock, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		return l.Building(ctx, t.Tenant, t.ID, report, func(ctx context.Context) error {
			img, lock, err = l.cfg.Builder.Build(ctx, dir, t, report)
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	return img, lock, nil
}

// Building waits for its turn and runs a tenant's build, unless the tenant has reached its quota
// of images. name is for reports. The context of build admits every new image (Admitting).
func (l *Library) Building(ctx context.Context, tenant, name string, report func(image.Progress), build func(context.Context) error) error {
	if err := l.CheckImages(tenant); err != nil {
		return err
	}
	waited := false
	done, err := l.beginBuild(ctx, tenant, func(before int) {
		waited = true
		if report != nil {
			report(image.Progress{Step: "wait", Name: name, Message: fmt.Sprintf("tenant %s runs %d builds, the most allowed; builds ahead in the queue: %d", tenant, l.mostBuilds(tenant), before)})
		}
	})
	if err != nil {
		return err
	}
	defer done()
	if waited && report != nil {
		report(image.Progress{Step: "wait", Name: name, End: true})
	}
	most := cmp.Or(l.cfg.BuildTime, buildTime)
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%w: more than %s", ErrBuildTime, most))
	defer cancel()
	l.cache.mu.RLock() // not locked during the wait, so that the cache can be removed then
	defer l.cache.mu.RUnlock()
	err = l.writing(ctx, func(ctx context.Context) error { return build(l.Admitting(ctx, tenant)) })
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrBuildTime) && !errors.Is(err, ErrBuildTime) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
