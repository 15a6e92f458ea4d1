package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
)

// need is what a route takes of whoever is not root.
type need struct {
	scope access.Scope // "": any token
	all   bool         // it must be one of all tenants
	// of is the thing in question; nil: the handler looks at the identity itself, or there
	// is no such thing.
	of *noun
}

// needs are by route. What is not in here takes the scope admin of all tenants: so does
// a new route, until somebody decides otherwise.
var needs = map[string]need{
	"GET /v1/version":         {},
	"GET /v1/whoami":          {},
	"GET /v1/template/schema": {},
	"POST /v1/template/check": {},

	"GET /v1/status":    {scope: access.Read, all: true},
	"GET /v1/doctor":    {scope: access.Read, all: true},
	"GET /v1/system/df": {scope: access.Read, all: true},

	"POST /v1/build":               {scope: access.Deploy},
	"GET /v1/images":               {scope: access.Read},
	"GET /v1/images/{ref}":         {scope: access.Read, of: ofImage},
	"GET /v1/images/{ref}/history": {scope: access.Read, of: ofImage},
	"GET /v1/images/{ref}/sbom":    {scope: access.Read, of: ofImage},
	"DELETE /v1/images/{ref}":      {scope: access.Deploy, of: ofImage},

	"GET /v1/functions":                {scope: access.Read},
	"POST /v1/functions":               {scope: access.Deploy},
	"GET /v1/functions/{name}":         {scope: access.Read, of: ofFunction},
	"DELETE /v1/functions/{name}":      {scope: access.Deploy, of: ofFunction},
	"POST /v1/functions/{name}/invoke": {scope: access.Invoke, of: ofFunction},
	"GET /v1/functions/{name}/logs":    {scope: access.Read, of: ofFunction},

	"GET /v1/functions/{name}/revisions":               {scope: access.Read, of: ofFunction},
	"DELETE /v1/functions/{name}/revisions/{revision}": {scope: access.Deploy, of: ofFunction},
	"POST /v1/functions/{name}/split":                  {scope: access.Deploy, of: ofFunction},
	"POST /v1/functions/{name}/rollback":               {scope: access.Deploy, of: ofFunction},
	"POST /v1/functions/{name}/aliases":                {scope: access.Deploy, of: ofFunction},

	"GET /v1/sandboxes":                {scope: access.Read},
	"GET /v1/sandboxes/{id}/processes": {scope: access.Read, of: ofSandbox},
	"POST /v1/sandboxes/{id}/wait":     {scope: access.Read, of: ofSandbox},
	"POST /v1/sandboxes/{id}/stop":     {scope: access.Deploy, of: ofSandbox},
	"POST /v1/sandboxes/{id}/kill":     {scope: access.Deploy, of: ofSandbox},

	"GET /v1/agents":                 {scope: access.Read},
	"POST /v1/agents":                {scope: access.Deploy},
	"GET /v1/agents/{id}":            {scope: access.Read, of: ofAgent},
	"DELETE /v1/agents/{id}":         {scope: access.Deploy, of: ofAgent},
	"POST /v1/agents/{id}/exec":      {scope: access.Invoke, of: ofAgent},
	"GET /v1/agents/{id}/files":      {scope: access.Invoke, of: ofAgent},
	"PUT /v1/agents/{id}/files":      {scope: access.Invoke, of: ofAgent},
	"DELETE /v1/agents/{id}/files":   {scope: access.Invoke, of: ofAgent},
	"GET /v1/agents/{id}/list":       {scope: access.Invoke, of: ofAgent},
	"POST /v1/agents/{id}/mkdir":     {scope: access.Invoke, of: ofAgent},
	"POST /v1/agents/{id}/snapshots": {scope: access.Deploy, of: ofAgent},
	"GET /v1/snapshots":              {scope: access.Read},
	"DELETE /v1/snapshots/{ref}":     {scope: access.Deploy, of: ofSnapshot},
	"GET /v1/nodes":                  {scope: access.Read, all: true},
	"POST /v1/nodes/{name}/drain":    {scope: access.Admin, all: true},
	"POST /v1/nodes/{name}/undrain":  {scope: access.Admin, all: true},

	"GET /v1/events":                    {scope: access.Read},
	"GET /v1/events/queue":              {scope: access.Read},
	"GET /v1/events/queue/{id}":         {scope: access.Read, of: ofEvent},
	"DELETE /v1/events/queue/{id}":      {scope: access.Deploy, of: ofEvent},
	"POST /v1/events/queue/{id}/replay": {scope: access.Deploy, of: ofEvent},
	"GET /v1/events/tail":               {scope: access.Read},
	"GET /v1/triggers":                  {scope: access.Read},

	"GET /v1/tenants":                              {scope: access.Read},
	"GET /v1/tenants/{tenant}":                     {scope: access.Read, of: ofTenant},
	"GET /v1/tenants/{tenant}/secrets":             {scope: access.Read, of: ofTenant},
	"POST /v1/tenants/{tenant}/secrets/{secret}":   {scope: access.Deploy, of: ofTenant},
	"DELETE /v1/tenants/{tenant}/secrets/{secret}": {scope: access.Deploy, of: ofTenant},

	"GET /v1/tokens":              {scope: access.Admin},
	"POST /v1/tokens":             {scope: access.Admin},
	"POST /v1/tokens/{id}/rotate": {scope: access.Admin, of: ofToken},
	"DELETE /v1/tokens/{id}":      {scope: access.Admin, of: ofToken},

	"GET /v1/audit": {scope: access.Admin},
}

// unaudited are routes that change nothing, or carry events, whose number says more than
// a line for each.
var unaudited = map[string]bool{
	"POST /v1/functions/{name}/invoke": true, "POST /v1/template/check": true, "POST /v1/sandboxes/{id}/wait": true,
	"POST /v1/images/resolve": true,
}

// functionTenant is the one place that says whose a function is.
func functionTenant(f *engine.Function) string { return f.Config.Tenant }

func sandboxTenant(b *engine.Sandbox) string { return b.Tenant }

// only keeps what is there for an identity.
func only[T any](all []T, id access.Identity, tenant func(T) string) []T {
	var out []T
	for _, v := range all {
		if id.Of(tenant(v)) {
			out = append(out, v)
		}
	}
	return out
}

// asked is what a request's handler knows of who asks, and tells of what it does.
type asked struct {
	id      access.Identity
	on      string
	failure *api.Error
}

type askedKey struct{}

func askedOf(r *http.Request) *asked {
	a, ok := r.Context().Value(askedKey{}).(*asked)
	if !ok { // a handler without its guard, as tests have it
		return &asked{id: access.Root("root")}
	}
	return a
}

func identityOf(r *http.Request) access.Identity { return askedOf(r).id }

// noteOn says what an action is done to, where its path does not.
func noteOn(r *http.Request, on string) { askedOf(r).on = on }

// noteFailure says how an action ended whose status was out before.
func noteFailure(r *http.Request, e *api.Error) { askedOf(r).failure = e }

// identify says who asks.
func (s *server) identify(r *http.Request) (access.Identity, error) {
	if !s.cfg.Remote {
		who, _ := r.Context().Value(peerKey{}).(string)
		if who == "" {
			who = "root"
		}
		return access.Root(who), nil
	}
	return s.cfg.Access.Authenticate(r.Context(), r.Header.Get("Authorization"), access.ClientOf(r))
}

// guarded is a route's handler for whoever may use it, written down in the audit log.
func (s *server) guarded(rt route) func(http.ResponseWriter, *http.Request) error {
	name := rt.method + " " + rt.path
	n, known := needs[name]
	if !known {
		n = need{scope: access.Admin, all: true}
	}
	audited := s.cfg.Access != nil && rt.method != http.MethodGet && !unaudited[name]
	return func(w http.ResponseWriter, r *http.Request) error {
		id, err := s.identify(r)
		if err != nil {
			return err // Access has written it down
		}
		// The token is for the engine, not for a function that the request is an event of.
		if s.cfg.Remote {
			r.Header.Del("Authorization")
		}
		a := &asked{id: id}
		for _, key := range []string{"name", "ref", "id", "secret", "tenant"} {
			if v := r.PathValue(key); v != "" {
				a.on = v
				break
			}
		}
		ctx := context.WithValue(r.Context(), askedKey{}, a)
		if !id.All() {
			ctx = s.engine.ForTenant(ctx)
		}
		r = r.WithContext(ctx)
		if err := s.permit(n, id, r); err != nil {
			if s.cfg.Access != nil {
				s.cfg.Access.Record(access.Entry{
					Who: id.Who, Tenant: id.Tenant, Client: access.ClientOf(r), Action: name, On: a.on, Result: access.Refused, Reason: err.Error(),
				})
			}
			return err
		}
		if !audited {
			return rt.handle(w, r)
		}
		watched := &statusWriter{ResponseWriter: w}
		err = errBrokenOff // unless the handler returns: an answer that breaks off ends it by a panic
		defer func() { s.audit(name, a, r, watched.status, err) }()
		err = rt.handle(watched, r)
		return err
	}
}

// errBrokenOff is how an action ended whose answer the client did not get to its end.
var errBrokenOff = &api.Error{Code: api.CodeCanceled, Status: statusClientGone, Message: "the answer was broken off"}

// permit says whether an identity may do what a route does.
func (s *server) permit(n need, id access.Identity, r *http.Request) error {
	if n.scope != "" {
		if err := id.Need(n.scope); err != nil {
			return &scopeError{err, n.scope}
		}
	}
	if id.All() {
		return nil
	}
	if n.all {
		return &scopeError{notOfTenant("it concerns the whole engine"), n.scope}
	}
	if n.of == nil {
		return nil
	}
	tenant, err := n.of.find(s, r)
	return n.of.shown(id, askedOf(r).on, tenant, err)
}

func notOfTenant(why string) error {
	return fmt.Errorf("%w: %s: it takes a token of all tenants", access.ErrForbidden, why)
}

// scopeError says which scope was missing.
type scopeError struct {
	error
	scope access.Scope
}

func (e *scopeError) Unwrap() error { return e.error }

// audit writes down an action that was permitted.
func (s *server) audit(name string, a *asked, r *http.Request, status int, err error) {
	entry := access.Entry{Who: a.id.Who, Tenant: a.id.Tenant, Client: access.ClientOf(r), Action: name, On: a.on, Result: access.Done, Status: status}
	failure := a.failure
	if err != nil {
		failure = errorOf(err)
	}
	if failure != nil {
		entry.Result, entry.Status, entry.Reason = access.Failed, failure.Status, failure.Message
		if failure.Status == http.StatusForbidden {
			entry.Result = access.Refused
		}
	} else if status == 0 {
		entry.Status = http.StatusOK
	}
	s.cfg.Access.Record(entry)
}

// statusWriter remembers the status of an answer; [http.ResponseController] finds what is
// below.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader is part of http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 || w.status < 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// challenge adds what a refusal's header has to say (RFC 6750 section 3, RFC 9110 section
// 10.2.3).
func challenge(w http.ResponseWriter, err error) {
	var scope *scopeError
	var slow *access.SlowDownError
	var quota *engine.QuotaError
	switch {
	case errors.Is(err, access.ErrNoToken):
		w.Header().Set("WWW-Authenticate", `Bearer realm="fre"`)
	case errors.Is(err, access.ErrToken):
		w.Header().Set("WWW-Authenticate", `Bearer realm="fre", error="invalid_token"`)
	case errors.As(err, &scope):
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="fre", error="insufficient_scope", scope="%s"`, scope.scope))
	case errors.As(err, &slow):
		w.Header().Set("Retry-After", retryAfter(slow.After))
	case errors.As(err, &quota) && quota.What == engine.QuotaOfBuilds:
		w.Header().Set("Retry-After", "10")
	case errors.As(err, &quota), errors.Is(err, access.ErrUnavailable):
		w.Header().Set("Retry-After", "1")
	}
}

// retryAfter is a wait in whole seconds, at least one.
func retryAfter(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

// mayBuild refuses a template of another tenant, and one whose image would take over the
// name of another's.
func (s *server) mayBuild(r *http.Request, dir *os.Root) error {
	id := identityOf(r)
	if id.All() && s.cfg.Access == nil {
		return nil
	}
	t, err := image.TemplateIn(dir)
	if err != nil {
		return nil //nolint:nilerr // Build says it, with what it has to say besides
	}
	noteOn(r, t.ID)
	if id.All() {
		return nil
	}
	if t.Tenant != id.Tenant {
		return &api.Error{
			Code: api.CodeForbidden, Status: http.StatusForbidden, Message: fmt.Sprintf("the template is of tenant %s, the token of %s", t.Tenant, id.Tenant),
			Next: fmt.Sprintf("write into fret.yaml: tenant: %s", id.Tenant),
		}
	}
	name := t.ID + ":" + t.Version
	if img, err := s.engine.Image(name); err == nil && !id.Of(engine.ImageTenant(img)) { // names are shared: docs/tenants.md
		return &engine.ImageNameError{Name: name}
	}
	return nil
}

type peerKey struct{}

// ConnContext is an [http.Server]'s: the audit log tells who is at the other end of the
// control socket, by what the kernel knows.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil {
		return ctx
	}
	who := "root"
	if cred.Uid != 0 {
		who = fmt.Sprintf("user %d", cred.Uid)
	}
	return context.WithValue(ctx, peerKey{}, who)
}
