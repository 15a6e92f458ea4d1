package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
)

// need describes the rights that a route requires from a caller other than root.
type need struct {
	scope access.Scope // "": any valid token
	all   bool         // requires a token of all tenants
	// of is the kind of object in the path. If nil, the path names no object of a tenant, or the
	// handler checks the identity itself.
	of *noun
}

// needs maps routes to the required rights. A route missing here requires the scope admin of all
// tenants, so new routes are closed by default.
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

// unaudited lists routes that change nothing or carry events. Events are counted instead of
// logged one by one.
var unaudited = map[string]bool{
	"POST /v1/functions/{name}/invoke": true, "POST /v1/template/check": true, "POST /v1/sandboxes/{id}/wait": true,
	"POST /v1/images/resolve": true,
}

// functionTenant is the only place that decides the owner of a function.
func functionTenant(f *engine.Function) string { return f.Config.Tenant }

func sandboxTenant(b *engine.Sandbox) string { return b.Tenant }

// only returns the elements visible to an identity.
func only[T any](all []T, id access.Identity, tenant func(T) string) []T {
	var out []T
	for _, v := range all {
		if id.Of(tenant(v)) {
			out = append(out, v)
		}
	}
	return out
}

// asked is the state of a request shared by guard and handler: the caller's identity, and the
// handler's report for the audit log.
type asked struct {
	id      access.Identity
	on      string
	failure *api.Error
}

type askedKey struct{}

func askedOf(r *http.Request) *asked {
	a, ok := r.Context().Value(askedKey{}).(*asked)
	if !ok { // handlers in tests run without guarded
		return &asked{id: access.Root("root")}
	}
	return a
}

func identityOf(r *http.Request) access.Identity { return askedOf(r).id }

// noteOn sets the object of an action in the audit log, if the path does not name the object.
func noteOn(r *http.Request, on string) { askedOf(r).on = on }

// noteFailure records a failure that occurred after the status was sent, for the audit log.
func noteFailure(r *http.Request, e *api.Error) { askedOf(r).failure = e }

// identify authenticates the caller.
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

// guarded wraps a route's handler with authentication, authorization and the audit log.
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
			return err // Access has recorded the failure
		}
		// Hide the token from a function if the request becomes an event.
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
		err = errBrokenOff // result of an aborted answer, because the abort is a panic of the handler
		defer func() { s.audit(name, a, r, watched.status, err) }()
		err = rt.handle(watched, r)
		return err
	}
}

// errBrokenOff is the audit result of an action whose answer was aborted.
var errBrokenOff = &api.Error{Code: failure.Cancelled, Message: "the answer was broken off"}

// permit returns an error unless the identity has the rights in n.
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
		return &scopeError{notOfTenant("the request concerns the whole engine"), n.scope}
	}
	if n.of == nil {
		return nil
	}
	tenant, err := n.of.find(s, r)
	return n.of.shown(id, askedOf(r).on, tenant, err)
}

func notOfTenant(why string) error {
	return fmt.Errorf("%w: %s: use a token for all tenants", access.ErrForbidden, why)
}

// scopeError wraps an authorization error and names the required scope.
type scopeError struct {
	error
	scope access.Scope
}

func (e *scopeError) Unwrap() error { return e.error }

// audit records a permitted action.
func (s *server) audit(name string, a *asked, r *http.Request, status int, err error) {
	entry := access.Entry{Who: a.id.Who, Tenant: a.id.Tenant, Client: access.ClientOf(r), Action: name, On: a.on, Result: access.Done, Status: status}
	if err == nil && a.failure != nil {
		err = a.failure
	}
	if err != nil {
		failed := errorOf(err)
		entry.Result, entry.Status, entry.Reason = access.Failed, failed.Status, failed.Message
		if failed.Status == http.StatusForbidden {
			entry.Result = access.Refused
		}
	} else if status == 0 {
		entry.Status = http.StatusOK
	}
	s.cfg.Access.Record(entry)
}

// statusWriter records the status of an answer. [http.ResponseController] reaches the wrapped
// writer through Unwrap.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 || w.status < 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap serves http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// challenge sets the headers that belong to a refusal (RFC 6750 section 3, RFC 9110 section
// 10.2.3).
func challenge(w http.ResponseWriter, err error) {
	var scope *scopeError
	switch {
	case errors.Is(err, access.ErrNoToken):
		w.Header().Set("WWW-Authenticate", `Bearer realm="fre"`)
	case errors.Is(err, access.ErrToken):
		w.Header().Set("WWW-Authenticate", `Bearer realm="fre", error="invalid_token"`)
	case errors.As(err, &scope):
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="fre", error="insufficient_scope", scope="%s"`, scope.scope))
	}
	if wait := api.RetryAfter(err); wait > 0 && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", strconv.Itoa(wait))
	}
}

// mayBuild refuses a template of another tenant, and a template whose image would take the name
// of another tenant's image.
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
			Code: api.CodeForbidden, Message: fmt.Sprintf("the template is of tenant %s, the token of %s", t.Tenant, id.Tenant),
			Next: fmt.Sprintf("write into fret.yaml: tenant: %s", id.Tenant),
		}
	}
	name := t.ID + ":" + t.Version
	if img, err := s.engine.Image(name); err == nil && !id.Of(engine.ImageTenant(img)) { // tenants share the names of images: docs/tenants.md
		return &engine.ImageNameError{Name: name}
	}
	return nil
}

type peerKey struct{}

// ConnContext is for [http.Server.ConnContext]. ConnContext stores the name of the peer on the
// control socket, as known to the kernel, for the audit log.
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
