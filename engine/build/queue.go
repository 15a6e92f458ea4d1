package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/waiting"
	"github.com/fre-engine/fre/store"
)

// Every build for a tenant passes Library.Building: fre build and fre deploy, remote builds and
// deployments of OpenFaaS's clients, code sent by Lambda's API, slimming, and snapshots of
// agents' sandboxes. A tenant may run a limited number of builds at a time. Further builds wait
// in order of arrival and report their position. The number of waiting builds is limited too,
// because the files sent for them take disk space.
//
//	arrive ─▶ wait ─▶ build ─▶ the image is admitted ─▶ stored
//	  └─ refused: too many builds wait   └─ refused: images or bytes exceed a quota
const (
	DefaultBuilds = 4             // of a tenant at a time, without a quota
	MostWaiting   = 16            // of a tenant
	buildTime     = 1 * time.Hour // of a build without its wait, all steps together
)

// ErrBuildTime says that a build, or one of its steps, exceeded its time limit.
var ErrBuildTime = failure.New(failure.BuildFailed, "the build took too long", "build again (finished steps are kept), use fewer packages, or compile code before the build")

// builds counts a tenant's builds.
type builds struct {
	mu      sync.Mutex
	running int64
	waiting waiting.Queue[struct{}, struct{}]

	storing chan struct{} // holds a token while a counted image of the tenant is stored
}

// buildsOf returns the counts of a tenant, which live as long as the engine.
func (l *Library) buildsOf(tenant string) *builds {
	if b, ok := l.tenants.Load(tenant); ok {
		return b.(*builds)
	}
	l.cfg.Tenants.Share(tenant) // metrics list the tenant from now on
	b, _ := l.tenants.LoadOrStore(tenant, &builds{storing: make(chan struct{}, 1)})
	return b.(*builds)
}

// Builds returns how many builds of a tenant run and how many wait.
func (l *Library) Builds(tenant string) (running, waiting int64) {
	b := l.buildsOf(tenant)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running, int64(b.waiting.Len())
}

// turnsLocked starts waiting builds while fewer than most run.
func (b *builds) turnsLocked(most int64) {
	for b.running < most && b.waiting.Len() > 0 {
		b.running++
		b.waiting.Grant(struct{}{})
	}
}

func (l *Library) mostBuilds(tenant string) int64 {
	return cmp.Or(l.cfg.Tenants.Quotas(tenant).Builds, DefaultBuilds)
}

// beginBuild waits for a build's turn. If the build must wait, beginBuild calls waits once with
// the number of builds before it. The caller calls done after the build. Errors: a *QuotaError
// if too many builds wait, the cause of ctx.
func (l *Library) beginBuild(ctx context.Context, tenant string, waits func(before int)) (done func(), err error) {
	u := l.buildsOf(tenant)
	done = func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.running--
		u.turnsLocked(l.mostBuilds(tenant))
	}
	u.mu.Lock()
	turn := u.waiting.Push(struct{}{})
	u.turnsLocked(l.mostBuilds(tenant)) // the quota may have been raised
	before := u.waiting.Len() - 1       // below 0: it is this build's turn
	if before >= MostWaiting {
		turn.Leave()
		u.mu.Unlock()
		return nil, &live.QuotaError{Tenant: tenant, What: live.QuotaOfBuilds, Limit: MostWaiting}
	}
	u.mu.Unlock()
	if before < 0 {
		return done, nil
	}
	waits(before)
	if _, err := turn.Wait(ctx, &u.mu, func(struct{}) { done() }); err != nil {
		return nil, err
	}
	return done, nil
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

// ErrOthersImage says that an image pulled for one tenant is an image of another tenant's
// function. It would count against the other tenant's quota.
var ErrOthersImage = failure.New(failure.Template, "the image belongs to another tenant's function", "name an image to build functions on")

// Admitting returns a context under which the store calls Admit for each new image before
// any file of the image is written. by is the tenant of the build, "" for a change to an image.
func (l *Library) Admitting(ctx context.Context, by string) context.Context {
	return store.WithAdmission(ctx, func(img *store.Image) (done func(), err error) { return l.Admit(ctx, img, by) })
}

// Admit refuses an image that would exceed its tenant's quotas of images or bytes: a
// *QuotaError. The caller calls done when the image is in the lists or has failed. With such
// quotas the tenant's next image waits until done is called: two concurrent images cannot
// both take the rest of a quota.
func (l *Library) Admit(ctx context.Context, img *store.Image, by string) (done func(), err error) {
	none := func() {}
	tenant := ImageTenant(img)
	if tenant == "" {
		return none, l.admitBase(img, by)
	}
	if by != "" && tenant != by {
		return nil, ErrOthersImage
	}
	if q := l.cfg.Tenants.Quotas(tenant); q.Images == 0 && q.ImageBytes == 0 {
		return none, nil
	}
	u := l.buildsOf(tenant)
	select {
	case u.storing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	done = func() { <-u.storing }
	if _, err := l.store.Image(string(img.Digest)); err == nil { // another build has made the same image meanwhile
		return done, nil
	}
	q, use := l.cfg.Tenants.Quotas(tenant), l.TenantUse(tenant)
	switch {
	case q.Images > 0 && use.Images+1 > q.Images:
		err = &live.QuotaError{Tenant: tenant, What: "images", Limit: q.Images}
	case q.ImageBytes > 0 && use.ImageBytes+img.Size > q.ImageBytes:
		err = &live.QuotaError{Tenant: tenant, What: "bytes of images", Limit: q.ImageBytes}
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// admitBase refuses a base of a build, for example from a registry, that alone exceeds the rest
// of the tenant's quota: the build's image would hold all of the base's files. A stored base
// counts against no tenant, because tenants share it.
func (l *Library) admitBase(img *store.Image, by string) error {
	q := l.cfg.Tenants.Quotas(by)
	if by == "" || q.ImageBytes == 0 {
		return nil
	}
	if c, err := image.ConfigOf(img); err != nil || c.Labels[image.LabelKind] == image.KindTools {
		return err
	}
	if l.TenantUse(by).ImageBytes+img.Size > q.ImageBytes {
		return &live.QuotaError{Tenant: by, What: "bytes of images", Limit: q.ImageBytes}
	}
	return nil
}
