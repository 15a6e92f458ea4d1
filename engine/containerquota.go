package engine

import (
	"sync"

	"github.com/fre-engine/fre/sandbox"
)

// A container takes of its tenant's quotas while it runs, as an instance of a function does:
// from before its sandbox is made until that has gone, however it ends. What is made and
// does not run takes nothing; a restarted engine counts from nothing, as no container has
// outlived the one before.

// leastMemory is what a container has at least that was made without a limit.
const leastMemory = 32 << 20

// reserveRun counts a run of a container, or of a command, against its tenant's quotas: a
// *QuotaError where that is too much. release gives it back, once.
func (e *Engine) reserveRun(tenant string, l sandbox.Limits) (release func(), err error) {
	u := e.usage(tenant)
	if err := u.reserve(tenant, e.quotas(tenant), l.MemoryBytes, l.CPUMillis); err != nil {
		return nil, err
	}
	u.mu.Lock()
	u.containers++
	u.mu.Unlock()
	return sync.OnceFunc(func() {
		u.mu.Lock()
		u.containers--
		u.mu.Unlock()
		u.release(l.MemoryBytes, l.CPUMillis)
	}), nil
}

// withinQuotas cuts the limits of a container that nobody has named (those that are 0 in
// given) to a quarter of the tenant's quota, so that there can be several, and refuses
// limits that alone are above it: a *QuotaError. Such a container could never be started.
func (e *Engine) withinQuotas(tenant string, given, l sandbox.Limits) (sandbox.Limits, error) {
	q := e.quotas(tenant)
	if q.MemoryBytes > 0 && given.MemoryBytes == 0 {
		l.MemoryBytes = min(l.MemoryBytes, q.MemoryBytes, max(q.MemoryBytes/4, leastMemory))
	}
	if q.CPUMillis > 0 && given.CPUMillis == 0 {
		l.CPUMillis = min(l.CPUMillis, q.CPUMillis, max(q.CPUMillis/4, 100))
	}
	switch {
	case q.MemoryBytes > 0 && l.MemoryBytes > q.MemoryBytes:
		return l, &QuotaError{Tenant: tenant, What: quotaOfMemory, Limit: q.MemoryBytes}
	case q.CPUMillis > 0 && l.CPUMillis > q.CPUMillis:
		return l, &QuotaError{Tenant: tenant, What: quotaOfCPU, Limit: q.CPUMillis}
	}
	return l, nil
}
