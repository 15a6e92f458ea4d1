package engine

import (
	"sync"

	"github.com/fre-engine/fre/sandbox"
)

// A container counts against its tenant's quotas during a run, like an instance of a function:
// from before the sandbox is made until the sandbox has ended. A stopped container counts
// nothing. A restarted engine begins at zero: sandboxes end with their engine.

// leastMemory is the least memory of a container created without a memory limit.
const leastMemory = 32 << 20

// reserveRun counts a run of a container, or of a command, against the tenant's quotas. Error: a
// *QuotaError if the quotas have no room. release undoes the count; further calls do nothing.
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

// withinQuotas cuts default limits (0 in given) to a quarter of the tenant's quota, to leave
// room for several containers. Limits above the whole quota are a *QuotaError, because the
// container could never start.
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
