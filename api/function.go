package api

import (
	"encoding/json"
	"time"
)

// Function is a deployed name.
type Function struct {
	Name        string    `json:"name"`               // qualified: NAME in the tenant "default", NAME.TENANT in any other
	Image       string    `json:"image"`              // digest
	ImageRef    string    `json:"image_ref"`          // "name:version"
	Base        string    `json:"base"`               // empty for a pipeline
	Pipeline    []string  `json:"pipeline,omitempty"` // the functions that it is, one behind the other; it has no sandboxes of its own
	Tenant      string    `json:"tenant"`
	Deployed    time.Time `json:"deployed"`
	Revision    int       `json:"revision"`       // that most events go to: image, tenant and deployed are its
	Latest      int       `json:"latest"`         // the newest revision
	Instances   int       `json:"instances"`      // live sandboxes
	Busy        int       `json:"busy"`           // events being handled
	Queued      int       `json:"queued"`         // events waiting for an instance
	Fork        string    `json:"fork,omitempty"` // whether its instances are forked, or why not: "on", "waiting", "off: the module …"; empty where its runtime cannot
	Invocations uint64    `json:"invocations"`
	Failures    uint64    `json:"failures"`
}

// FunctionDetails is a function with its image's configuration.
type FunctionDetails struct {
	Function
	Config   json.RawMessage `json:"config,omitempty"`
	Defences []string        `json:"defences"`         // in force around its sandboxes, besides namespaces and limits
	Shells   *Shells         `json:"shells,omitempty"` // none if its interpreter is not started ahead
}

// Shells are the interpreters started ahead that a function's instances can
// begin with; functions on the same base share them.
type Shells struct {
	Ready       int   `json:"ready"`        // parked now
	Want        int   `json:"want"`         // as many as recent demand asks for
	MemoryBytes int64 `json:"memory_bytes"` // of one
}

// DeployRequest is the JSON body of a deployment of an image that is already
// there.
type DeployRequest struct {
	Image   string `json:"image"`             // name, name:version, digest or a prefix of it
	Name    string `json:"name,omitempty"`    // the image's name if empty; NAME.TENANT deploys it in another tenant than the image's
	Replace bool   `json:"replace,omitempty"` // take the name over from another template's function

	NoTraffic bool `json:"no_traffic,omitempty"` // events go on to go where they do, unless they ask for the new revision

	Locked  bool `json:"locked,omitempty"`  // of a template: resolve nothing that its lock does not answer
	Offline bool `json:"offline,omitempty"` // of a template: use no network

	// Temporary: the function lasts as long as the request, which the client ends by
	// hanging up once it is done. Its name is nobody's yet; it has an empty /work of
	// its own, and nothing of it stays.
	Temporary bool `json:"temporary,omitempty"`

	Trace bool `json:"trace,omitempty"` // of a temporary function: note what it opens, for SlimRequest
}

// Event is one line of progress. Step and Name together name the part it is
// about; several can be under way at once. docs/progress.md says more.
type Event struct {
	Step    string `json:"step"`              // "base", "packages", "bootstrap", "code", "link"; "read", "layer", "push"; "warning"
	Name    string `json:"name,omitempty"`    // the part in question
	Message string `json:"message,omitempty"` // for people: what is done to it
	Done    int64  `json:"done,omitempty"`    // of Total; with End its size, where known
	Total   int64  `json:"total,omitempty"`   // 0: not known
	Unit    string `json:"unit,omitempty"`    // of Done and Total: UnitBytes or UnitItems
	End     bool   `json:"end,omitempty"`     // the part is whole: nothing more comes of it
}

// Units of an Event.
const (
	UnitBytes = "bytes"
	UnitItems = "items"
)

// BuildLine is one line of a build's or a deployment's answer: an event, or,
// as the last line, what came of it: the image (with the lock to write beside
// the template where there is one, and the function of a deployment), or the
// error.
type BuildLine struct {
	Event    *Event          `json:"event,omitempty"`
	Image    *Image          `json:"image,omitempty"`
	Lock     json.RawMessage `json:"lock,omitempty"` // content of fret.lock
	Function *Function       `json:"function,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}
