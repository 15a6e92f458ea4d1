// Package api holds the wire types of FRE's native control API: the JSON between a client and
// the engine, over the Unix socket or TLS. openapi.yaml in this directory describes the routes.
// A test in package server keeps openapi.yaml, these types and the server's routes in agreement.
//
// The types are plain values. Times are RFC 3339 in UTC, durations are nanoseconds in fields
// named …_ns, sizes are bytes.
package api

// LockFile is the name of the file beside fret.yaml that pins the versions resolved by a build.
// The engine generates the content and the client writes the file.
const LockFile = "fret.lock"

// TemplateFile is the name of the template in its directory.
const TemplateFile = "fret.yaml"

// TemplateInfo summarizes a valid template.
type TemplateInfo struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Base    string `json:"base"`
	Code    string `json:"code"` // path of the function's own files, relative to the template

	Reads []string `json:"reads,omitempty"` // paths of further files that the build reads, sent even if .freignore names them
}
