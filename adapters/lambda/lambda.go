// Package lambda serves AWS Lambda's API (docs.aws.amazon.com/lambda/latest/api) on top of
// the engine: Invoke, and the management of functions. boto3 and other SDKs work unmodified with
// another endpoint_url (docs/lambda.md). Like package server, the package only translates
// between the API and the engine.
//
// An account is a tenant. A published version is a revision, kept by an alias of the engine (see
// version.go). AWS settings without an equivalent in FRE are a label of the image (see
// function.go). Requests are signed with a token's access key (see sigv4.go).
package lambda

import (
	"context"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/store"
)

// Events queues asynchronous events.
type Events interface {
	Publish(ctx context.Context, function string, r *engine.Request) (id string, err error)
}

// Config configures the API. All fields but Unsigned and Now are required.
type Config struct {
	Engine  *engine.Engine
	Invoker gateway.Invoker // receives events, and counts events against tenants' quotas
	Guard   *gateway.Guard  // tokens, event quotas of tenants, request rates of addresses
	Events  Events
	Rootfs  func(store.Digest) string      // returns the root directory of an image
	Scratch func() (dir string, err error) // creates a directory; the API removes the directory
	Log     *slog.Logger

	Region string // AWS region that requests must be signed for

	// Unsigned is the tenant of unsigned requests. If "", unsigned requests are refused.
	Unsigned string

	Now func() time.Time // default time.Now
}

// Limits of request bodies, in bytes
// (docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html).
const (
	maxInvoke  = 6 << 20
	maxAsync   = 1 << 20
	maxRequest = 1 << 20    // requests without code
	maxCode    = 70_167_211 // requests with code, in base64
)

type server struct {
	Config
	locks     locks                      // serializes the changes of a function
	receiving intake.Slots[netip.Prefix] // uploads of bodies that may hold code
	codes     chan struct{}              // held by the only request with code in memory
}

// lock takes the lock of the request's function.
func (s *server) lock(c *call) (unlock func(), err error) { return s.locks.take(c.r.Context(), c.on) }

// AWS's limits of code.
const (
	maxZip      = 50 << 20
	maxUnzipped = 250 << 20
	maxFiles    = 100_000
)

// codeDir is the directory of a function's code in the template.
const codeDir = "code"

var architecture = map[string]string{"amd64": "x86_64", "arm64": "arm64"}[runtime.GOARCH]
