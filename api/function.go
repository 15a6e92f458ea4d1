package api

import (
	"encoding/json"
	"time"
)

// Function is a deployed function.
type Function struct {
	Name        string    `json:"name"`               // qualified: NAME in the tenant "default", NAME.TENANT in any other
	Image       string    `json:"image"`              // digest
	ImageRef    string    `json:"image_ref"`          // "name:version"
	Base        string    `json:"base"`               // empty for a pipeline
	Pipeline    []string  `json:"pipeline,omitempty"` // for a pipeline: the functions called in order; a pipeline has no sandboxes
	Tenant      string    `json:"tenant"`
	Deployed    time.Time `json:"deployed"`
	Revision    int       `json:"revision"`       // the revision with most of the traffic; Image, Tenant and Deployed describe this revision
	Latest      int       `json:"latest"`         // the newest revision
	Instances   int       `json:"instances"`      // live sandboxes
	Busy        int       `json:"busy"`           // events being handled
	Queued      int       `json:"queued"`         // events waiting for an instance
	Fork        string    `json:"fork,omitempty"` // state of forking: "on", "waiting", "off: the module …"; empty if the runtime cannot fork
	Invocations uint64    `json:"invocations"`
	Failures    uint64    `json:"failures"`
}

// FunctionDetails is a function with the configuration of its image.
type FunctionDetails struct {
	Function
	Config             json.RawMessage     `json:"config,omitempty"`
	Defences           []string            `json:"defences"`                      // active around the function's sandboxes, besides namespaces and limits
	ParkedInterpreters *ParkedInterpreters `json:"parked_interpreters,omitempty"` // nil if the engine parks no interpreters for the function
}

// ParkedInterpreters counts the parked interpreters available to a function's instances. Functions
// on the same base environment share them.
type ParkedInterpreters struct {
	Ready       int   `json:"ready"`        // parked now
	Want        int   `json:"want"`         // number that recent demand calls for
	MemoryBytes int64 `json:"memory_bytes"` // memory of one parked interpreter
}

// DeployRequest is the JSON body that deploys an existing image.
type DeployRequest struct {
	Image   string `json:"image"`             // name, name:version, digest or digest prefix
	Name    string `json:"name,omitempty"`    // default: the image's name; NAME.TENANT deploys into another tenant than the image's
	Replace bool   `json:"replace,omitempty"` // take the name from another template's function

	NoTraffic bool `json:"no_traffic,omitempty"` // keep the current traffic; only events that name the new revision reach it

	Locked  bool `json:"locked,omitempty"`  // for a template: fail if the lock lacks an answer
	Offline bool `json:"offline,omitempty"` // for a template: use no network

	// Temporary removes the function when the client closes the connection. The name must be
	// free. The function has an empty /work of its own, and the engine keeps nothing afterwards.
	Temporary bool `json:"temporary,omitempty"`

	Trace bool `json:"trace,omitempty"` // for a temporary function: record the files opened, for SlimRequest
}

// Progress is one line of the progress of a build, or of an image's transfer. Step and Name together
// identify a part; several parts can be in progress at once. See docs/progress.md.
type Progress struct {
	Step    string `json:"step"`              // "base", "packages", "bootstrap", "code", "link"; "read", "layer", "push"; "warning"
	Name    string `json:"name,omitempty"`    // name of the part
	Message string `json:"message,omitempty"` // for people: the current activity
	Done    int64  `json:"done,omitempty"`    // amount done, out of Total; with End: the size of the part, if known
	Total   int64  `json:"total,omitempty"`   // 0: unknown
	Unit    string `json:"unit,omitempty"`    // unit of Done and Total: UnitBytes or UnitItems
	End     bool   `json:"end,omitempty"`     // last event of the part
}

// Units of a Progress.
const (
	UnitBytes = "bytes"
	UnitItems = "items"
)

// BuildLine is one line of a build's or a deployment's answer: progress, the result, or an
// error. The last line holds the result or the error. A result has the image, the lock to write
// beside the template, if any, and the function of a deployment.
type BuildLine struct {
	Progress *Progress       `json:"event,omitempty"`
	Image    *Image          `json:"image,omitempty"`
	Lock     json.RawMessage `json:"lock,omitempty"` // content of fret.lock
	Function *Function       `json:"function,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}
