package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Everything that builds for a tenant passes Engine.building: fre build and deploy, the
// remote builds and deployments of OpenFaaS's clients, code that comes by Lambda's API,
// slimming, and snapshots of agents' sandboxes. A tenant has so many builds at
// a time; the next ones wait, in the order in which they came, as people expect of a build
// that is queued, and see that they do. So that what they have sent does not fill the disk,
// so many may wait, and no more.
//
//	come ─▶ wait ─▶ build ─▶ the image is admitted ─▶ stored
//	  └─ refused: as many wait as may   └─ refused: more images, or bytes, than the tenant may have
const (
	defaultBuilds = 4             // of a tenant at a time, where its quota says nothing
	waitingBuilds = 16            // of a tenant
	buildTime     = 1 * time.Hour // of a build without its wait, all steps together
)

// QuotaOfBuilds is the What of a [QuotaError] for a build that may not even wait.
const QuotaOfBuilds = "builds that wait"

// ErrBuildTime says that a build took longer than it may, as a whole or in one step.
var ErrBuildTime = errors.New("the build took too long")

// builds of a tenant: so many run, and those wait. tenantUse.mu is held.
type builds struct {
	running int64
	waiting []chan struct{} // in their order; closed when it is a build's turn
}

// turnsLocked lets those go on that have their turn.
func (b *builds) turnsLocked(most int64) {
	for b.running < most && len(b.waiting) > 0 {
		b.running++
		close(b.waiting[0])
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}

func (e *Engine) mostBuilds(tenant string) int64 {
	return cmp.Or(e.quotas(tenant).Builds, defaultBuilds)
}

// beginBuild waits for a build's turn; waits is told, at most once, if that is not now, and
// how many come before it. done ends the build. Errors: a *QuotaError where too many wait,
// the cause of ctx.
func (e *Engine) beginBuild(ctx context.Context, tenant string, waits func(before int)) (done func(), err error) {
	u := e.usage(tenant)
	done = func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.builds.running--
		u.builds.turnsLocked(e.mostBuilds(tenant))
	}
	turn := make(chan struct{})
	u.mu.Lock()
	u.builds.waiting = append(u.builds.waiting, turn)
	u.builds.turnsLocked(e.mostBuilds(tenant)) // the quota may have been raised
	before := slices.Index(u.builds.waiting, turn)
	if before >= waitingBuilds {
		u.builds.waiting = u.builds.waiting[:before]
		u.mu.Unlock()
		return nil, &QuotaError{Tenant: tenant, What: QuotaOfBuilds, Limit: waitingBuilds}
	}
	u.mu.Unlock()
	if before < 0 {
		return done, nil
	}
	waits(before)
	select {
	case <-turn:
		return done, nil
	case <-ctx.Done():
	}
	u.mu.Lock()
	i := slices.Index(u.builds.waiting, turn)
	if i >= 0 {
		u.builds.waiting = slices.Delete(u.builds.waiting, i, i+1)
	}
	u.mu.Unlock()
	if i < 0 { // its turn came all the same
		done()
	}
	return nil, context.Cause(ctx)
}

// building runs a tenant's build, name, once it has its turn and unless the tenant has all
// the images that it may. What build stores under its ctx is admitted first.
func (e *Engine) building(ctx context.Context, tenant, name string, report func(image.Event), build func(context.Context) error) error {
	if err := e.checkImages(tenant); err != nil {
		return err
	}
	waited := false
	done, err := e.beginBuild(ctx, tenant, func(before int) {
		waited = true
		if report != nil {
			report(image.Event{Step: "wait", Name: name, Message: fmt.Sprintf("as many builds of tenant %s are under way as may (%d); before this one wait %d", tenant, e.mostBuilds(tenant), before)})
		}
	})
	if err != nil {
		return err
	}
	defer done()
	if waited && report != nil {
		report(image.Event{Step: "wait", Name: name, End: true})
	}
	most := cmp.Or(e.cfg.BuildTime, buildTime)
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%w: more than %s", ErrBuildTime, most))
	defer cancel()
	e.cache.mu.RLock() // not while it waits: who removes the cache would
	defer e.cache.mu.RUnlock()
	err = e.writing(ctx, func(ctx context.Context) error { return build(e.admitting(ctx, tenant)) })
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrBuildTime) && !errors.Is(err, ErrBuildTime) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// ErrOthersImage says that what was pulled for a tenant is the image of another's function,
// which would count as that one's.
var ErrOthersImage = errors.New("it is the image of another tenant's function")

// admitting is a context under which the store asks for each new image whether it may be
// there, before anything of the image is laid out; by is whose build makes it, "" for a
// change to an image.
func (e *Engine) admitting(ctx context.Context, by string) context.Context {
	return store.WithAdmission(ctx, func(img *store.Image) (done func(), err error) { return e.admitImage(ctx, img, by) })
}

// admitImage refuses an image with which its tenant would have more images or bytes than it
// may: a *QuotaError. Until done is called, when the image is in the lists or nowhere, the
// tenant's next one waits, where there are such quotas: two that are made at the same time
// cannot both have the last place.
func (e *Engine) admitImage(ctx context.Context, img *store.Image, by string) (done func(), err error) {
	none := func() {}
	tenant := ImageTenant(img)
	if tenant == "" {
		return none, e.admitBase(img, by)
	}
	if by != "" && tenant != by {
		return nil, ErrOthersImage
	}
	if q := e.quotas(tenant); q.Images == 0 && q.ImageBytes == 0 {
		return none, nil
	}
	u := e.usage(tenant)
	select {
	case u.storing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	done = func() { <-u.storing }
	if _, err := e.cfg.Store.Image(string(img.Digest)); err == nil { // another build of the same was faster
		return done, nil
	}
	q, use := e.quotas(tenant), e.TenantUse(tenant)
	switch {
	case q.Images > 0 && use.Images+1 > q.Images:
		err = &QuotaError{Tenant: tenant, What: "images", Limit: q.Images}
	case q.ImageBytes > 0 && use.ImageBytes+img.Size > q.ImageBytes:
		err = &QuotaError{Tenant: tenant, What: "bytes of images", Limit: q.ImageBytes}
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// admitBase refuses what a build stands on, from a registry for example, where it alone is
// more than the tenant may have yet: the build's image would have all of its files. It is
// nobody's once it is there, for others share it.
func (e *Engine) admitBase(img *store.Image, by string) error {
	q := e.quotas(by)
	if by == "" || q.ImageBytes == 0 {
		return nil
	}
	if c, err := image.ConfigOf(img); err != nil || c.Labels[image.LabelKind] == image.KindTools {
		return err
	}
	if e.TenantUse(by).ImageBytes+img.Size > q.ImageBytes {
		return &QuotaError{Tenant: by, What: "bytes of images", Limit: q.ImageBytes}
	}
	return nil
}
