package engine

import (
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

// A container counts against its tenant's quotas during a run, like an instance of a function:
// from before the sandbox is made until the sandbox has ended. A stopped container counts
// nothing. A restarted engine begins at zero: sandboxes end with their engine.

// leastMemory is the least memory of a container created without a memory limit.
const leastMemory = 32 << 20

// withinQuotas cuts default limits (0 in given) to a quarter of the tenant's quota, to leave
// room for several containers. Limits above the whole quota are a *QuotaError, because the
// container could never start.
func (e *Engine) withinQuotas(tenant string, given, l sandbox.Limits) (sandbox.Limits, error) {
	q := e.tenants.Quotas(tenant)
	if q.MemoryBytes > 0 && given.MemoryBytes == 0 {
		l.MemoryBytes = min(l.MemoryBytes, q.MemoryBytes, max(q.MemoryBytes/4, leastMemory))
	}
	if q.CPUMillis > 0 && given.CPUMillis == 0 {
		l.CPUMillis = min(l.CPUMillis, q.CPUMillis, max(q.CPUMillis/4, 100))
	}
	switch {
	case q.MemoryBytes > 0 && l.MemoryBytes > q.MemoryBytes:
		return l, &QuotaError{Tenant: tenant, What: live.QuotaOfMemory, Limit: q.MemoryBytes}
	case q.CPUMillis > 0 && l.CPUMillis > q.CPUMillis:
		return l, &QuotaError{Tenant: tenant, What: live.QuotaOfCPU, Limit: q.CPUMillis}
	}
	return l, nil
}
