package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
)

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

// functionTenant is the only place that decides the owner of a function.
func functionTenant(f *engine.Function) string { return f.Config.Tenant }

func sandboxTenant(b *live.Sandbox) string { return b.Tenant }

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

func notOfTenant(why string) error {
	return fmt.Errorf("%w: %s: use a token for all tenants", access.ErrForbidden, why)
}

// scopeError wraps an authorization error and names the required scope.
type scopeError struct {
	error
	scope access.Scope
}

func (e *scopeError) Unwrap() error { return e.error }

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

// Challenge sets the headers that belong to a refusal, such as WWW-Authenticate and Retry-After.
func Challenge(w http.ResponseWriter, err error) { challenge(w, err) }
