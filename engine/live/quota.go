package live

import (
	"fmt"
	"sync"
	"time"

	"github.com/fre-engine/fre/failure"
)

// Quotas bound a tenant's resources at any time; 0 is no bound.
type Quotas struct {
	Instances   int64 // sandboxes of functions, idle ones too, and of containers
	MemoryBytes int64 // sum of the instances' limits
	CPUMillis   int64 // sum of the instances' limits
	Images      int64 // of functions
	ImageBytes  int64 // of the images' files; a shared file counts for each image
	WorkBytes   int64 // in /work, replaces WorkConfig's limit; in force from the next attach
	Builds      int64 // at a time; 0 is a default, not no bound
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

// QuotaOfBuilds is the What of the [QuotaError] of a build for which the queue has no room.
const QuotaOfBuilds = "waiting builds"

// Use is a tenant's present use, in the units of Quotas.
type Use struct {
	Instances, MemoryBytes, CPUMillis, Images, ImageBytes int64

	Containers            int64 // runs of containers, a part of Instances
	Builds, WaitingBuilds int64
}

// Values of QuotaError.What.
const (
	QuotaOfMemory = "bytes of memory"
	QuotaOfCPU    = "thousandths of a CPU"
)

// Share counts a tenant's instances and runs of containers. An instance counts from the
// decision to start it until its end, or until the instance is idle after a replacement of the
// function, whose next instance needs the quota. mu is taken last, under function.mu.
type Share struct {
	mu                     sync.Mutex
	instances, memory, cpu int64
	containers             int64 // of the instances
}

// Reserve counts one more instance with these limits, or returns a *QuotaError if q forbids it.
func (u *Share) Reserve(tenant string, q Quotas, memory, cpu int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	full := func(what string, limit int64) error {
		return &QuotaError{Tenant: tenant, What: what, Limit: limit}
	}
	switch {
	case q.Instances > 0 && u.instances+1 > q.Instances:
		return full("instances", q.Instances)
	case q.MemoryBytes > 0 && u.memory+memory > q.MemoryBytes:
		return full(QuotaOfMemory, q.MemoryBytes)
	case q.CPUMillis > 0 && u.cpu+cpu > q.CPUMillis:
		return full(QuotaOfCPU, q.CPUMillis)
	}
	u.instances++
	u.memory += memory
	u.cpu += cpu
	return nil
}

// Release undoes Reserve.
func (u *Share) Release(memory, cpu int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.instances--
	u.memory -= memory
	u.cpu -= cpu
}

// Now returns the current counts, without images and builds.
func (u *Share) Now() Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Use{
		Instances: u.instances, MemoryBytes: u.memory, CPUMillis: u.cpu, Containers: u.containers,
	}
}
