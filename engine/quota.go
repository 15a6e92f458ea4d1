package engine

import (
	"github.com/fre-engine/fre/engine/live"
)

// bounded reports whether a quota bounds the function's instances.
func (p *program) bounded() bool {
	q := p.host.tenants.Quotas(p.config.Tenant)
	return !p.temporary && (q.Instances > 0 || q.MemoryBytes > 0 || q.CPUMillis > 0)
}

// reserveLocked counts one more instance against the tenant's quotas, or returns a *QuotaError.
// No quota bounds temporary functions. The caller holds f.mu.
func (f *function) reserveLocked() error {
	q, r, u := f.host.tenants.Quotas(f.config.Tenant), &f.config.Resources, f.use
	if f.temporary {
		q = live.Quotas{}
	}
	return u.Reserve(f.config.Tenant, q, r.MemoryBytes, r.CPUMillis)
}

// removeLocked removes an ended instance. The caller holds f.mu.
func (f *function) removeLocked(in *instance) {
	delete(f.instances, in)
	f.releaseLocked(in)
}

// releaseLocked gives back the quota of an instance, at most once. The caller holds f.mu.
func (f *function) releaseLocked(in *instance) {
	if !in.reserved {
		return
	}
	in.reserved = false
	f.use.Release(f.config.Resources.MemoryBytes, f.config.Resources.CPUMillis)
}

// refuseLocked gives all waiters an error if no instance is left to serve them.
func (f *function) refuseLocked(err error) {
	if len(f.instances) > 0 {
		return
	}
	for f.waiters.Len() > 0 {
		f.waiters.Grant(grant{err: err})
		f.host.metrics.refuse(reasonQuota)
	}
}
