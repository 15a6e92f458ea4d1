// Package trigger makes events of what happens: requests to /async-function and to hooks,
// times of day. Triggers are what functions' templates declare; a [Set] reads them from the
// engine as functions are deployed and removed.
package trigger

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
)

// Publisher is what triggers need of *events.Service.
type Publisher interface {
	Publish(ctx context.Context, function string, r *engine.Request, o events.Options) (events.Receipt, error)
}

// Config wires a Set. Engine, Events and Log are required.
type Config struct {
	Engine  Engine
	Events  Publisher
	Log     *slog.Logger
	Admit   func(tenant string) error // counts an event of the tenant's; its error refuses it; nil: none is refused
	Secrets Secrets                   // nil: there are none, and what needs one is refused
	Changed func() uint64             // another number each time that functions have changed; nil: each time
	Now     func() time.Time          // default time.Now
}

// Secrets are the tenants' secrets; fs.ErrNotExist where there is none of that name.
type Secrets interface {
	Secret(tenant, name string) ([]byte, error)
}

// Engine is what triggers need of *engine.Engine.
type Engine interface {
	Functions() []*engine.Function
	Function(name string) (*engine.Function, error)
}

// Set is the triggers of all functions. It is safe for concurrent use.
type Set struct{ cfg Config }

// New returns a set.
func New(cfg Config) *Set {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Set{cfg: cfg}
}

// Publish takes on an event that came by HTTP. Its key is what the client calls it by:
// X-Fre-Event-Id, Idempotency-Key, or a CloudEvent's source and id.
func (s *Set) Publish(ctx context.Context, function string, r *engine.Request) (id string, err error) {
	var o events.Options
	o.Key = keyOf(r.Header)
	o.Priority = events.Priority(field(r.Header, "X-Fre-Priority"))
	o.Callback = field(r.Header, "X-Callback-Url")
	receipt, err := s.cfg.Events.Publish(ctx, function, r, o)
	return receipt.ID, err
}

// keyOf is what a client calls an event by, "" for nothing.
func keyOf(header [][2]string) string {
	for _, name := range []string{"X-Fre-Event-Id", "Idempotency-Key"} {
		if v := field(header, name); v != "" {
			return name + "\x00" + v
		}
	}
	if id, source := field(header, "Ce-Id"), field(header, "Ce-Source"); id != "" && source != "" {
		return cloudEventKey(source, id)
	}
	return ""
}

// cloudEventKey: source and id together are unique to an event.
func cloudEventKey(source, id string) string { return "ce\x00" + source + "\x00" + id }

// field is the first of a name.
func field(header [][2]string, name string) string {
	for _, f := range header {
		if strings.EqualFold(f[0], name) {
			return f[1]
		}
	}
	return ""
}

// Down stands for a Set where no events are kept: all are refused, because of Err.
type Down struct{ Err error }

func (d Down) refusal() error {
	return &events.RefusedError{Err: d.Err, Status: 503, Code: "events_unavailable"}
}

// Publish refuses.
func (d Down) Publish(context.Context, string, *engine.Request) (string, error) {
	return "", d.refusal()
}

// Handshake refuses.
func (d Down) Handshake(string, string, [][2]string) ([][2]string, error) { return nil, d.refusal() }

// Hook refuses.
func (d Down) Hook(context.Context, string, string, *engine.Request) ([]string, string, error) {
	return nil, "", d.refusal()
}
