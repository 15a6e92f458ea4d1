package engine

import (
	"time"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Errors of revisions, beside *UnknownError for a revision no longer kept. The texts name the
// next step.
var (
	ErrTraffic      = failure.New(failure.BadRequest, "invalid traffic weights", "")
	ErrNoRevision   = failure.New(failure.Conflict, "no earlier revision", "")
	ErrRevisionUsed = failure.New(failure.InUse, "revision is in use", "")
	ErrImageGone    = failure.New(failure.ImageGone, "image of the revision is gone", "")
)

// latest names the newest revision. No alias may have this name.
const latest = "latest"

// Revision is one deployment of a function.
type Revision struct {
	Number   int          `json:"number"` // 1, 2, …; a number is never used again
	Image    store.Digest `json:"image"`
	Template string       `json:"template"`
	Version  string       `json:"version"`
	Config   store.Digest `json:"config,omitempty"` // digest of the image's configuration: the part of the template in force
	Deployed time.Time    `json:"deployed"`
	By       string       `json:"by,omitempty"` // the deployer
}

// Weight is a revision's share of events, in percent.
type Weight struct {
	Revision int `json:"revision"`
	Percent  int `json:"percent"`
}

// HeaderRoute sends events with this header to a revision.
type HeaderRoute struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Revision int    `json:"revision"`
}

// Traffic says where events go unless they name a revision.
type Traffic struct {
	Weights []Weight      `json:"weights"`           // 100 in sum; newest revision first
	Headers []HeaderRoute `json:"headers,omitempty"` // tried before Weights; the first match wins

	// Sticky is "header:NAME" or "cookie:NAME": events with the same value go to the same
	// revision until the weights change.
	Sticky string `json:"sticky,omitempty"`
}

// Function describes a deployed function in lists and inspections.
type Function struct {
	Name         string // qualified
	Image        store.Digest
	ImageRef     string // "name:version"
	Config       image.Config
	Deployed     time.Time
	Instances    int    // live sandboxes
	Busy         int    // events being handled
	Queued       int    // events waiting for an instance
	Fork         string // "on", "waiting", "off: …" with the reason; "" if the runtime cannot fork
	Invocations  uint64
	Failures     uint64
	Revision     int               // gets most events; Image, Config and Deployed belong to this revision
	Latest       int               // newest deployed revision
	Traffic      Traffic           // immutable
	Defences     []string          // active around its sandboxes (sandbox.Host.Defences)
	Interpreters *InterpreterStats // parked interpreters for its instances; nil: none

	counters counters
}

// counters are the values of a deployed function that change.
type counters struct {
	instances, busy, queued int
	fork                    string
	invocations, failures   uint64
	interpreters            InterpreterStats
}

// InterpreterStats counts the parked interpreters for a function's instances.
type InterpreterStats struct {
	Ready int   // parked now
	Want  int   // the target by recent demand
	Bytes int64 // of one, with a share of shared pages (PSS); 0 before the first
}

// RevisionState is a row in a list of revisions.
type RevisionState struct {
	Revision
	Percent   int      // of the events without a named revision
	Aliases   []string // sorted
	Instances int      // live sandboxes
	Resting   bool     // has lost its events; keeps instances for a while
	ImageGone bool
}

// Revisions lists the kept revisions of a function, newest first.
type Revisions struct {
	Function  string
	Traffic   Traffic
	Revisions []RevisionState
}

// Target names a revision: by number, by alias, or as "latest".
type Target struct {
	Revision string
	Percent  int // of a weight

	Header, Value string // of a header route
}

// Split is the argument of SetTraffic. Without Weights the current weights stay; Headers always
// replaces all header routes.
type Split struct {
	Weights []Target
	Headers []Target
	Sticky  string // as in Traffic
}
