package server

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
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

// guard authenticates and authorizes the caller of each route, and keeps the audit log.
type guard struct {
	engine Engine
	log    *slog.Logger
	access *access.Access // nil: no tenants and no audit log
	remote bool           // every request needs a token; otherwise every caller is root
	find   map[*noun]finder
}

// identify authenticates the caller.
func (g *guard) identify(r *http.Request) (access.Identity, error) {
	if !g.remote {
		who, _ := r.Context().Value(peerKey{}).(string)
		if who == "" {
			who = "root"
		}
		return access.Root(who), nil
	}
	return g.access.Authenticate(r.Context(), r.Header.Get("Authorization"), access.ClientOf(r))
}

// guarded wraps a route's handler with authentication, authorization and the audit log.
func (g *guard) guarded(rt route) func(http.ResponseWriter, *http.Request) error {
	name := rt.method + " " + rt.path
	n, known := needs[name]
	if !known {
		n = need{scope: access.Admin, all: true}
	}
	audited := g.access != nil && rt.method != http.MethodGet && !unaudited[name]
	return func(w http.ResponseWriter, r *http.Request) error {
		id, err := g.identify(r)
		if err != nil {
			return err // Access has recorded the failure
		}
		// Hide the token from a function if the request becomes an event.
		if g.remote {
			r.Header.Del("Authorization")
		}
		a := &asked{id: id, on: cmp.Or(r.PathValue("name"), r.PathValue("ref"), r.PathValue("id"), r.PathValue("secret"), r.PathValue("tenant"))}
		ctx := context.WithValue(r.Context(), askedKey{}, a)
		if !id.All() {
			ctx = g.engine.ForTenant(ctx)
		}
		r = r.WithContext(ctx)
		if err := g.permit(n, id, r); err != nil {
			if g.access != nil {
				g.access.Record(access.Entry{
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
		defer func() { g.audit(name, a, r, watched.status, err) }()
		err = rt.handle(watched, r)
		return err
	}
}

// errBrokenOff is the audit result of an action whose answer was aborted.
var errBrokenOff = &api.Error{Code: failure.Cancelled, Message: "the answer was broken off"}

// permit returns an error unless the identity has the rights in n.
func (g *guard) permit(n need, id access.Identity, r *http.Request) error {
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
	tenant, err := g.find[n.of](r)
	return n.of.shown(id, askedOf(r).on, tenant, err)
}

// audit records a permitted action.
func (g *guard) audit(name string, a *asked, r *http.Request, status int, err error) {
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
	g.access.Record(entry)
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

// fail sends err in the API's error format.
func (g *guard) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := errorOf(err)
	if e.Code == api.CodeInternal {
		g.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	challenge(w, err)
	_ = reply(w, e.Status, api.ErrorBody{Error: e})
}
