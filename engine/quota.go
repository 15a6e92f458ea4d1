package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// Quotas bound a tenant's resources at any time; 0 is no bound.
type Quotas struct {
	Instances   int64 // sandboxes of functions, idle ones too, and of containers
	MemoryBytes int64 // sum of the instances' limits
	CPUMillis   int64 // sum of the instances' limits
	Images      int64 // of functions
	ImageBytes  int64 // of the images' files; a shared file counts for each image
	WorkBytes   int64 // in /work, replaces WorkConfig's limit; in force from the next attach
	Builds      int64 // at a time; 0 is defaultBuilds, not no bound
}

// QuotaError names a quota that a tenant has reached.
type QuotaError struct {
	Tenant, What string
	Limit        int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("tenant %s has reached its quota of %s (%d)", e.Tenant, e.What, e.Limit)
}

// Code returns [failure.Quota].
func (e *QuotaError) Code() failure.Code { return failure.Quota }

// Next returns the user's next step for a build, which only has to wait.
func (e *QuotaError) Next() string {
	if e.What == QuotaOfBuilds {
		return "try again after Retry-After; fre tenant usage shows the tenant's builds"
	}
	return ""
}

// RetryAfter returns how long to wait: builds take longer than events.
func (e *QuotaError) RetryAfter() time.Duration {
	if e.What == QuotaOfBuilds {
		return 10 * time.Second
	}
	return time.Second
}

// Use is a tenant's present use, in the units of Quotas.
type Use struct {
	Instances, MemoryBytes, CPUMillis, Images, ImageBytes int64

	Containers            int64 // runs of containers, a part of Instances
	Builds, WaitingBuilds int64
}

// tenantUse counts a tenant's instances and runs of containers. An instance counts from the
// decision to start it until its end, or until the instance is idle after a replacement of the
// function, whose next instance needs the quota. mu is taken last, under function.mu.
type tenantUse struct {
	mu                     sync.Mutex
	instances, memory, cpu int64
	containers             int64 // of the instances
	builds                 builds

	storing chan struct{} // holds a token while a counted image of the tenant is stored
}

// reserve counts one more instance with these limits, or returns a *QuotaError if q forbids it.
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

// release undoes reserve.
func (u *tenantUse) release(memory, cpu int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.instances--
	u.memory -= memory
	u.cpu -= cpu
}

// Values of QuotaError.What.
const (
	quotaOfMemory = "bytes of memory"
	quotaOfCPU    = "thousandths of a CPU"
)

// usage returns the counts of a tenant, which live as long as the engine.
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

// bounded reports whether a quota bounds the function's instances.
func (f *function) bounded() bool {
	q := f.e.quotas(f.config.Tenant)
	return !f.temporary && (q.Instances > 0 || q.MemoryBytes > 0 || q.CPUMillis > 0)
}

// reserveLocked counts one more instance against the tenant's quotas, or returns a *QuotaError.
// No quota bounds temporary functions. The caller holds f.mu.
func (f *function) reserveLocked() error {
	q, r, u := f.e.quotas(f.config.Tenant), &f.config.Resources, f.use
	if f.temporary {
		q = Quotas{}
	}
	return u.reserve(f.config.Tenant, q, r.MemoryBytes, r.CPUMillis)
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
	f.use.release(f.config.Resources.MemoryBytes, f.config.Resources.CPUMillis)
}

// refuseLocked gives all waiters an error if no instance is left to serve them.
func (f *function) refuseLocked(err error) {
	if len(f.instances) > 0 {
		return
	}
	for f.waiters.Len() > 0 {
		f.waiters.Grant(grant{err: err})
		f.e.metrics.refuse(reasonQuota)
	}
}

// now returns the current counts.
func (u *tenantUse) now() Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Use{
		Instances: u.instances, MemoryBytes: u.memory, CPUMillis: u.cpu, Containers: u.containers,
		Builds: u.builds.running, WaitingBuilds: int64(u.builds.waiting.Len()),
	}
}

// TenantUse returns the current use of a tenant.
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

// ImageTenant returns the tenant whose function the image is, or "" for a base environment or a
// container's image.
func ImageTenant(img *store.Image) string {
	c, err := image.ConfigOf(img)
	if err != nil || c.Protocol == image.ProtocolNone || c.Protocol == "" {
		return ""
	}
	return c.Tenant
}

// checkImages refuses a build early if the tenant has reached its quota of images. admitImage
// decides finally.
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

// SecretError says that a template names a secret that the tenant does not have. A SecretError is
// an fs.ErrNotExist.
type SecretError struct{ Tenant, Name string }

func (e *SecretError) Error() string {
	return fmt.Sprintf("secret %s of tenant %s does not exist", e.Name, e.Tenant)
}
func (e *SecretError) Unwrap() error { return fs.ErrNotExist }

// Code returns [failure.Template].
func (e *SecretError) Code() failure.Code { return failure.Template }

// Next returns the command that makes the secret.
func (e *SecretError) Next() string {
	return fmt.Sprintf("create the secret, then deploy again: fre secret create %s --tenant %s < FILE", e.Name, e.Tenant)
}

// secrets reads the secrets of the template for a sandbox that starts now. The caller wipes the
// values. An updated secret reaches all sandboxes that start later.
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

// secret returns a secret of the tenant, or a *[SecretError].
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

// checkSecrets returns an error for the first missing secret of the function or its triggers.
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

// wipe zeroes the values.
func wipe(all []sandbox.Secret) {
	for _, s := range all {
		clear(s.Value)
	}
}
