package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// Quotas bound what one tenant has at one time; 0 is no bound.
type Quotas struct {
	Instances   int64 // sandboxes of its functions, idle ones too, and of its containers
	MemoryBytes int64 // their limits together
	CPUMillis   int64 // likewise
	Images      int64 // of its functions
	ImageBytes  int64 // their files, those they share counted for each
	WorkBytes   int64 // in /work, instead of WorkConfig's; from when it is attached on
	Builds      int64 // at a time; 0 is defaultBuilds, not no bound
}

// QuotaError says that a tenant has as much as it may.
type QuotaError struct {
	Tenant, What string
	Limit        int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("tenant %s has reached its quota of %s (%d)", e.Tenant, e.What, e.Limit)
}

// Use is what a tenant has now, in the units of Quotas.
type Use struct {
	Instances, MemoryBytes, CPUMillis, Images, ImageBytes int64

	Containers            int64 // of Instances: those that are containers' runs, not functions'
	Builds, WaitingBuilds int64
}

// tenantUse counts a tenant's instances: from the decision to start one until it has
// gone, or stands idle while its function was replaced, whose next instance needs the
// room. Containers' runs are among them. mu is taken last, under function.mu.
type tenantUse struct {
	mu                     sync.Mutex
	instances, memory, cpu int64
	containers             int64 // of the instances
	builds                 builds

	storing chan struct{} // holds a token while an image of the tenant's is stored that counts
}

// reserve counts one more instance with these limits, unless that is more than q allows: a
// *QuotaError.
func (u *tenantUse) reserve(tenant string, q Quotas, memory, cpu int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	full := func(what string, limit int64) error {
		return &QuotaError{Tenant: tenant, What: what, Limit: limit}
	}
	switch {
	case q.Instances > 0 && u.instances+1 > q.Instances:
		return full("instances", q.Instances)
	case q.MemoryBytes > 0 && u.memory+memory > q.MemoryBytes:
		return full(quotaOfMemory, q.MemoryBytes)
	case q.CPUMillis > 0 && u.cpu+cpu > q.CPUMillis:
		return full(quotaOfCPU, q.CPUMillis)
	}
	u.instances++
	u.memory += memory
	u.cpu += cpu
	return nil
}

// release gives back what reserve counted.
func (u *tenantUse) release(memory, cpu int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.instances--
	u.memory -= memory
	u.cpu -= cpu
}

// Of a [QuotaError].
const (
	quotaOfMemory = "bytes of memory"
	quotaOfCPU    = "thousandths of a CPU"
)

// usage is where a tenant's instances are counted, for as long as the engine runs.
func (e *Engine) usage(tenant string) *tenantUse {
	if u, ok := e.uses.Load(tenant); ok {
		return u.(*tenantUse)
	}
	u, _ := e.uses.LoadOrStore(tenant, &tenantUse{storing: make(chan struct{}, 1)})
	return u.(*tenantUse)
}

func (e *Engine) quotas(tenant string) Quotas {
	if e.cfg.Quotas == nil {
		return Quotas{}
	}
	return e.cfg.Quotas(tenant)
}

// bounded says whether the function's instances count against a quota.
func (f *function) bounded() bool {
	q := f.e.quotas(f.config.Tenant)
	return !f.temporary && (q.Instances > 0 || q.MemoryBytes > 0 || q.CPUMillis > 0)
}

// reserveLocked counts one more instance against the tenant's quotas, f.mu held, unless
// that is too many: a *QuotaError. Temporary functions are nobody's.
func (f *function) reserveLocked() error {
	q, r, u := f.e.quotas(f.config.Tenant), &f.config.Resources, f.use
	if f.temporary {
		q = Quotas{}
	}
	return u.reserve(f.config.Tenant, q, r.MemoryBytes, r.CPUMillis)
}

// removeLocked is the end of an instance, f.mu held.
func (f *function) removeLocked(in *instance) {
	delete(f.instances, in)
	f.releaseLocked(in)
}

// releaseLocked gives back what was reserved for an instance, f.mu held, if it has not
// been yet.
func (f *function) releaseLocked(in *instance) {
	if !in.reserved {
		return
	}
	in.reserved = false
	f.use.release(f.config.Resources.MemoryBytes, f.config.Resources.CPUMillis)
}

// refuseLocked gives all who wait an error, once no instance is left that could serve
// them.
func (f *function) refuseLocked(err error) {
	if len(f.instances) > 0 {
		return
	}
	for _, w := range f.waiters {
		w.grant <- grant{err: err}
		f.e.metrics.refuse(reasonQuota)
	}
	f.waiters = nil
}

// now is what is counted here.
func (u *tenantUse) now() Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Use{
		Instances: u.instances, MemoryBytes: u.memory, CPUMillis: u.cpu, Containers: u.containers,
		Builds: u.builds.running, WaitingBuilds: int64(len(u.builds.waiting)),
	}
}

// TenantUse is what a tenant has.
func (e *Engine) TenantUse(tenant string) Use {
	out := e.usage(tenant).now()
	for _, img := range e.cfg.Store.Images() {
		if ImageTenant(img) == tenant {
			out.Images++
			out.ImageBytes += img.Size
		}
	}
	return out
}

// ImageTenant is whose function an image is of; "" for those of none, such as base
// environments and containers' images.
func ImageTenant(img *store.Image) string {
	c, err := image.ConfigOf(img)
	if err != nil || c.Protocol == image.ProtocolNone || c.Protocol == "" {
		return ""
	}
	return c.Tenant
}

// checkImages refuses a build for a tenant that has all the images it may, before it does
// any work; admitImage has the last word.
func (e *Engine) checkImages(tenant string) error {
	q := e.quotas(tenant)
	if q.Images == 0 && q.ImageBytes == 0 {
		return nil
	}
	use := e.TenantUse(tenant)
	switch {
	case q.Images > 0 && use.Images >= q.Images:
		return &QuotaError{Tenant: tenant, What: "images", Limit: q.Images}
	case q.ImageBytes > 0 && use.ImageBytes >= q.ImageBytes:
		return &QuotaError{Tenant: tenant, What: "bytes of images", Limit: q.ImageBytes}
	}
	return nil
}

// SecretError says that a template names a secret that its tenant does not have. It is an
// fs.ErrNotExist.
type SecretError struct{ Tenant, Name string }

func (e *SecretError) Error() string {
	return fmt.Sprintf("secret %s of tenant %s does not exist", e.Name, e.Tenant)
}
func (e *SecretError) Unwrap() error { return fs.ErrNotExist }

// secrets opens what the template names, for a sandbox that starts now; wipe follows. An
// update reaches whatever starts after it.
func (f *function) secrets() ([]sandbox.Secret, error) {
	var out []sandbox.Secret
	for _, name := range f.config.Secrets {
		value, err := f.secret(name)
		if err != nil {
			wipe(out)
			return nil, err
		}
		out = append(out, sandbox.Secret{Name: name, Value: value})
	}
	return out, nil
}

// secret is one of the tenant's; an *[SecretError] where there is none.
func (f *function) secret(name string) (value []byte, err error) {
	err = fs.ErrNotExist
	if f.e.cfg.Secrets != nil {
		value, err = f.e.cfg.Secrets(f.config.Tenant, name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &SecretError{f.config.Tenant, name}
	}
	return value, err
}

// checkSecrets says which is missing of those that function and triggers need.
func (f *function) checkSecrets() error {
	for _, name := range f.config.SecretNames() {
		value, err := f.secret(name)
		if err != nil {
			return err
		}
		clear(value)
	}
	return nil
}

// wipe forgets values.
func wipe(all []sandbox.Secret) {
	for _, s := range all {
		clear(s.Value)
	}
}
