// Package api holds the wire types of FRE's native control API: what travels
// as JSON between the client and the engine over its Unix socket. openapi.yaml
// beside it describes the routes; a test in package server keeps the two and
// the server's routes equal.
//
// The types are plain values. Times are RFC 3339 in UTC, durations nanoseconds
// in fields named …_ns, sizes bytes.
package api

// LockFile is the name of the file beside fret.yaml that pins what a build
// resolved. The engine makes its content, the client writes it.
const LockFile = "fret.lock"

// TemplateFile is the name of the template in its directory.
const TemplateFile = "fret.yaml"

// TemplateInfo is what a good template says about itself.
type TemplateInfo struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Base    string `json:"base"`
	Code    string `json:"code"` // path of the function's own files, beside the template

	Reads []string `json:"reads,omitempty"` // paths of what the build reads besides, .freignore or not
}
