package api

import "time"

// Revision is one deployment of a function that is kept.
type Revision struct {
	Number    int       `json:"number"`
	Image     string    `json:"image"`            // digest
	ImageRef  string    `json:"image_ref"`        // "name:version"
	Config    string    `json:"config,omitempty"` // digest of what its image says about running it: all of the template that is in force
	Deployed  time.Time `json:"deployed"`
	By        string    `json:"by,omitempty"` // who deployed it
	Percent   int       `json:"percent"`      // of the events that ask for no revision
	Aliases   []string  `json:"aliases"`
	Instances int       `json:"instances"`            // live sandboxes
	Resting   bool      `json:"resting,omitempty"`    // it has lost its events and keeps its instances for a while
	ImageGone bool      `json:"image_gone,omitempty"` // it cannot be run any more
}

// Revisions are those of a function that are kept, the newest first.
type Revisions struct {
	Function  string        `json:"function"`
	Revisions []Revision    `json:"revisions"`
	Headers   []HeaderRoute `json:"headers"`          // which events go elsewhere than by percent
	Sticky    string        `json:"sticky,omitempty"` // "header:NAME" or "cookie:NAME": events of one value go to one revision
}

// HeaderRoute sends events with this header to a revision.
type HeaderRoute struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Revision string `json:"revision"` // number, alias or "latest"
}

// Weight is how many of a hundred events go to a revision.
type Weight struct {
	Revision string `json:"revision"` // number, alias or "latest"
	Percent  int    `json:"percent"`
}

// SplitRequest splits a function's events among its revisions. Without weights those in
// force stay; headers are all that there are to be.
type SplitRequest struct {
	Weights []Weight      `json:"weights,omitempty"` // 100 together
	Headers []HeaderRoute `json:"headers,omitempty"` // before weights; the first that fits
	Sticky  string        `json:"sticky,omitempty"`  // "header:NAME" or "cookie:NAME"
}

// RollbackRequest gives all events to an earlier revision.
type RollbackRequest struct {
	Revision string `json:"revision,omitempty"` // number or alias; the one before if empty
}

// AliasRequest gives revisions names, and takes names away.
type AliasRequest struct {
	Set    map[string]string `json:"set,omitempty"` // alias → number, alias or "latest"
	Remove []string          `json:"remove,omitempty"`
}
