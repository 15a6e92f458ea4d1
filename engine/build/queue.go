package build

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/internal/waiting"
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
