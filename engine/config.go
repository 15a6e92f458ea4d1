package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// Config wires an Engine. Required: Store, Sandboxes, Builder, StateDir and Log. The caller owns
// Store and Sandboxes and closes both after the Engine.
type Config struct {
	Store     *store.Store
	Sandboxes *sandbox.Host
	Builder   *image.Builder // Open sets Builder.Run and Builder.Images if they are nil
	StateDir  string         // parent directory of logs/ and tenants/
	Log       *slog.Logger

	BufferBytes int64 // memory for answers that wait to be sent; default 256 MiB
	BufferLock  bool  // as in buffer.Config
	BufferHuge  bool

	// Admission configures when events that need memory for bodies are refused. The engine sets
	// Free, Now and Changed.
	Admission admission.Config

	AllowHostNetwork bool     // templates may ask for the host's network
	LendConnections  []string // functions, as TENANT/NAME, that may ask for their clients' connections

	Metrics      prometheus.Registerer // nil: not exported
	UIDBase      uint32                // first host id of tenant 1; default 0x10000000
	Interpreters InterpreterConfig

	Revisions int // kept revisions of a function beside those with events or an alias; default 5, below 0: none

	Concurrency int                   // events under way at once, of all functions; default 256 for each CPU
	Queue       admission.QueueConfig // limits each queue: one for each function, and one for the engine

	LogBytes int64 // size of a function's log file before it is rotated; default 8 MiB
	LogFiles int   // rotated files kept beside the current file; default 3

	ImageLimits        oci.Limits       // for loaded, imported and pulled images; defaults of package oci
	InsecureRegistries []string         // hosts reached without TLS, beside loopback
	Outward            outward.Rule     // destinations that tenants may have the engine connect to
	Signatures         signature.Policy // signatures required of pulled images

	Work live.WorkConfig // limits of tenants' /work; default: no limit

	Quotas  func(tenant string) live.Quotas           // called at each start and build; nil: no quotas
	Secrets func(tenant, name string) ([]byte, error) // returns a value for the engine to wipe, or fs.ErrNotExist; nil: no secrets

	// Triggers returns an error if a tenant's function may not have these triggers; nil: any.
	Triggers func(tenant string, all []template.Trigger) error
	Calls    func(tenant string) error // called before each event that a function's call makes; nil: no call is refused
	Called   func(*CallRecord)         // called after each call; nil: not called. It must not block
	Table    Table                     // learns of each deployment before it takes effect; may be nil

	BuildTime time.Duration // limit for all steps of a build, without the wait for its turn; default an hour

	GC build.GCConfig

	// ForkPercent bounds the sum of the memory limits of all fork servers, in percent of the
	// host's memory; default 25, below 0: no fork servers.
	ForkPercent int

	avoid []volume.Kind // kinds of volumes that tests do without
}

// defaultRevisions is how many revisions without events or aliases are kept.
const defaultRevisions = 5

// slotsPerCPU times the number of CPUs is the default of Config.Concurrency.
const slotsPerCPU = 256

// defaultSlots returns the default of Config.Concurrency.
func defaultSlots() int { return slotsPerCPU * runtime.GOMAXPROCS(0) }

// complete checks c and sets the defaults for a host with this memory in bytes.
func (c *Config) complete(memory int64) error {
	c.UIDBase = cmp.Or(c.UIDBase, 0x10000000)
	c.Concurrency = cmp.Or(c.Concurrency, defaultSlots())
	c.Revisions = max(cmp.Or(c.Revisions, defaultRevisions), 0)
	c.BufferBytes = cmp.Or(c.BufferBytes, 256<<20)
	c.LogBytes, c.LogFiles = cmp.Or(c.LogBytes, 8<<20), cmp.Or(c.LogFiles, 3)
	c.GC.Interval = cmp.Or(c.GC.Interval, 6*time.Hour)
	c.ForkPercent = cmp.Or(c.ForkPercent, 25)
	c.Interpreters.setDefaults(memory)
	if err := c.Queue.Check(); err != nil {
		return fmt.Errorf("overload: %w", err)
	}
	if err := c.GC.Policy.Check(); err != nil {
		return fmt.Errorf("garbage collection: %w", err)
	}
	return nil
}

// InterpreterConfig bounds the parked interpreters: each is started in a sandbox of its own before
// its function is known.
type InterpreterConfig struct {
	Off         bool
	Ready       int   // parked for each base environment in use, without demand; default 2
	Max         int   // parked for each base environment after great demand; default 8
	MemoryBytes int64 // of all parked interpreters; default a tenth of the host's memory
}

func (c *InterpreterConfig) setDefaults(memory int64) {
	if c.Ready == 0 {
		c.Ready = 2
	}
	if c.Max == 0 {
		c.Max = max(8, c.Ready)
	}
	c.Ready = min(c.Ready, c.Max)
	if c.MemoryBytes == 0 {
		c.MemoryBytes = memory / 10
	}
}

// Table records deployments for other nodes. The engine writes a deployment to the table before
// putting it in force; if the write fails, so does the deployment. Temporary functions are not
// written.
type Table interface {
	// Prepare brings an image to where peers pull it from. Prepare may take a while, and blocks
	// no deployment.
	Prepare(ctx context.Context, img *store.Image) error
	// Commit writes a function's record. The engine calls Commit under its deployment lock: one
	// call at a time, and Commit must not deploy, change or remove functions.
	Commit(ctx context.Context, r *Record) error
}

// Record is a function with all revisions, as exchanged by nodes.
type Record struct {
	Name    string          // qualified
	Removed bool            // the function was removed; all fields but Name are zero
	Spec    json.RawMessage // revisions, split and aliases; decoded by [Engine.Apply] only
	Images  []store.Digest  // of the revisions; those with events or an alias come first
	Serving int             // how many of Images have events or an alias; the rest may be missing
	Front   Front
}

// CallRecord describes a call that has ended, for [Config].Called.
type CallRecord struct {
	At           time.Time
	Took         time.Duration // until the caller had the head of the answer, or the error
	RequestID    string        // of the HTTP request at the root of the calls, if any
	From         string        // the calling function
	Function     string        // as the caller named it
	Method, Path string
	Status       int // 0 after an error
	Invocation   string
	Cold         bool
	Bytes        int64  // of the answer's body, -1 while the body is incomplete
	Error        string // code of the CallError

	qualified string // qualified name of Function, "" if unknown
}
