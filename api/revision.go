package api

import "time"

// Revision is one stored deployment of a function.
type Revision struct {
	Number    int       `json:"number"`
	Image     string    `json:"image"`            // digest
	ImageRef  string    `json:"image_ref"`        // "name:version"
	Config    string    `json:"config,omitempty"` // digest of the image's run configuration: the effective part of the template
	Deployed  time.Time `json:"deployed"`
	By        string    `json:"by,omitempty"` // name of the deployer
	Percent   int       `json:"percent"`      // share of the events that name no revision
	Aliases   []string  `json:"aliases"`
	Instances int       `json:"instances"`            // live sandboxes
	Resting   bool      `json:"resting,omitempty"`    // the revision no longer receives events and keeps its instances for a while
	ImageGone bool      `json:"image_gone,omitempty"` // the image is gone, so the revision cannot run
}

// Revisions lists a function's stored revisions, newest first.
type Revisions struct {
	Function  string        `json:"function"`
	Revisions []Revision    `json:"revisions"`
	Headers   []HeaderRoute `json:"headers"`          // routes by header, which take precedence over Percent
	Sticky    string        `json:"sticky,omitempty"` // "header:NAME" or "cookie:NAME": events with equal values go to the same revision
}

// HeaderRoute sends events with this header to a revision.
type HeaderRoute struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Revision string `json:"revision"` // number, alias or "latest"
}

// Weight is the percentage of events for a revision.
type Weight struct {
	Revision string `json:"revision"` // number, alias or "latest"
	Percent  int    `json:"percent"`
}

// SplitRequest splits a function's events among its revisions. Empty Weights keep the current
// weights. Headers replace all current header routes.
type SplitRequest struct {
	Weights []Weight      `json:"weights,omitempty"` // percentages add up to 100
	Headers []HeaderRoute `json:"headers,omitempty"` // checked before weights; the first match wins
	Sticky  string        `json:"sticky,omitempty"`  // "header:NAME" or "cookie:NAME"
}

// RollbackRequest sends all events to an earlier revision.
type RollbackRequest struct {
	Revision string `json:"revision,omitempty"` // number or alias; default: the previous revision
}

// AliasRequest adds and removes names of revisions.
type AliasRequest struct {
	Set    map[string]string `json:"set,omitempty"` // alias → number, alias or "latest"
	Remove []string          `json:"remove,omitempty"`
}
