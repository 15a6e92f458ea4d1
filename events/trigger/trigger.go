// Package trigger makes events of requests to /async-function and to hooks, times of day, messages
// of NATS, and files. Functions' templates declare triggers; a [Set] reads them from the engine as
// functions are deployed and removed.
package trigger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
)

// Publisher is the part of *events.Service that triggers need.
type Publisher interface {
	Publish(ctx context.Context, function string, r *engine.Request, o events.Options) (events.Receipt, error)
}

// Config wires a Set. Engine, Events and Log are required.
type Config struct {
	Engine  Engine
	Events  Publisher
	Log     *slog.Logger
	Admit   func(tenant string) error // counts an event against the tenant's quota, or refuses; nil: no quotas
	Secrets Secrets                   // nil: no secrets, so triggers that need one refuse requests
	Changed func() uint64             // a new number after each change of functions; nil: check each time
	Now     func() time.Time          // default time.Now
}

// Secrets returns tenants' secrets; fs.ErrNotExist for an unknown name.
type Secrets interface {
	Secret(tenant, name string) ([]byte, error)
}

// Engine is the part of *engine.Engine that triggers need.
type Engine interface {
	Functions() []*engine.Function
	Function(name string) (*engine.Function, error)
}

// Set runs the triggers of all functions. A Set is safe for concurrent use.
type Set struct{ cfg Config }

// New returns a set.
func New(cfg Config) *Set {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Set{cfg: cfg}
}

// Publish accepts an event that came by HTTP. The event's key is X-Fre-Event-Id, Idempotency-Key,
// or a CloudEvent's source and id.
func (s *Set) Publish(ctx context.Context, function string, r *engine.Request) (id string, err error) {
	var o events.Options
	o.Key = keyOf(r.Headers)
	o.Priority = events.Priority(field(r.Headers, "X-Fre-Priority"))
	o.Callback = field(r.Headers, "X-Callback-Url")
	receipt, err := s.cfg.Events.Publish(ctx, function, r, o)
	return receipt.ID, err
}

// keyOf returns the key that a client gave to an event, "" without one.
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

// cloudEventKey returns a key of source and id, which together identify an event (CloudEvents 1.0).
func cloudEventKey(source, id string) string { return "ce\x00" + source + "\x00" + id }

// field returns the first value of a field.
func field(header [][2]string, name string) string {
	for _, f := range header {
		if strings.EqualFold(f[0], name) {
			return f[1]
		}
	}
	return ""
}

// Down replaces a Set while events are unavailable: it refuses every event with Err.
type Down struct{ Err error }

func (d Down) refusal() error {
	return refused(failure.EventsUnavailable, d.Err)
}

// Publish returns an error.
func (d Down) Publish(context.Context, string, *engine.Request) (string, error) {
	return "", d.refusal()
}

// Handshake returns an error.
func (d Down) Handshake(string, string, [][2]string) ([][2]string, error) { return nil, d.refusal() }

// Hook returns an error.
func (d Down) Hook(context.Context, string, string, *engine.Request) ([]string, string, error) {
	return nil, "", d.refusal()
}

// changes returns a function that reports whether functions may have changed since its last call.
// The first call returns true.
func (s *Set) changes() func() bool {
	first, seen := true, uint64(0)
	return func() bool {
		if s.cfg.Changed == nil {
			return true
		}
		was := seen
		seen = s.cfg.Changed()
		changed := first || seen != was
		first = false
		return changed
	}
}

// takeOn publishes an event within the tenant's quota. Only requests with a valid signature or
// token count against the quota, because anybody can send invalid ones.
func (s *Set) takeOn(ctx context.Context, f *engine.Function, ev *engine.Request, o events.Options) (events.Receipt, error) {
	if s.cfg.Admit != nil {
		if err := s.cfg.Admit(f.Config.Tenant); err != nil {
			return events.Receipt{}, err
		}
	}
	return s.cfg.Events.Publish(ctx, f.Name, ev, o)
}

func (s *Set) secret(f *engine.Function, t *template.Trigger, name string) ([]byte, error) {
	err := errors.New("no secrets are configured")
	if s.cfg.Secrets != nil {
		var secret []byte
		secret, err = s.cfg.Secrets.Secret(f.Config.Tenant, name)
		if secret = bytes.TrimRight(secret, "\r\n"); err == nil && len(secret) > 0 { // a file's last line may end
			return secret, nil
		}
	}
	s.cfg.Log.Warn("secret of a trigger is missing", "function", f.Name, "trigger", t.Name, "secret", name, "error", err)
	return nil, refused(failure.NoSecret, fmt.Errorf("the secret of trigger %s does not exist", t.Name))
}

// refused refuses a request for good.
func refused(code failure.Code, err error) error {
	return &events.RefusedError{Err: failure.Wrap(code, err, "")}
}
