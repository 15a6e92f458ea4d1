package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/engine"
)

// admitted reports whether the request may become an event of the function. If not, it answers
// the request. For an open function it only looks up the function and its tenant's quota, without
// allocation.
func (e *exchange) admitted(name string) bool {
	g := e.g.Guard
	if g == nil {
		return true
	}
	if !e.paced() {
		return false
	}
	front, known := g.Front(name)
	if cors := cmp.Or(front.CORS, g.CORS); cors != nil && !e.crossOrigin(cors) {
		return false
	}
	if g.needsToken(front) {
		id, ok := e.shown(access.Invoke)
		if !ok {
			return false
		}
		known = known && id.Of(front.Tenant)
	}
	if !known { // the engine would refuse too, but nothing unchecked may pass here
		e.failWith(&engine.UnknownError{Function: name})
		return false
	}
	if err := g.Access.Event(front.Tenant); err != nil {
		e.failWith(err)
		return false
	}
	return true
}

// needsToken reports whether events of a function with the policy f need a token.
func (g *Guard) needsToken(f engine.Front) bool {
	switch f.Access {
	case engine.AccessToken:
		return true
	case engine.AccessOpen:
		return g.Token && !g.AllowOpen
	}
	return g.Token
}

// paced reports whether the client's address is within its rate limit. If not, it answers the
// request.
func (e *exchange) paced() bool {
	if e.g.Guard == nil {
		return true
	}
	wait := e.g.Guard.Clients.Take(e.address())
	if wait > 0 {
		e.failWith(&access.SlowDownError{What: "requests from the client's address", After: wait})
	}
	return wait <= 0
}

// address returns the client's address, invalid for a Unix socket, which has no rate limit.
func (e *exchange) address() netip.Addr {
	addr, _ := netip.ParseAddr(e.client.text)
	return addr
}

// shown authenticates the request's token. If the token is missing, invalid or lacks the scope,
// shown answers the request and returns false.
func (e *exchange) shown(scope access.Scope) (access.Identity, bool) {
	addr := e.address()
	e.secret = true
	a := e.g.Guard.Access
	id, err := a.Authenticate(e.Context(), string(e.Get("authorization")), addr)
	if err != nil {
		switch {
		case errors.Is(err, access.ErrNoToken):
			e.Set("WWW-Authenticate", `Bearer realm="fre"`)
		case errors.Is(err, access.ErrToken):
			e.Set("WWW-Authenticate", `Bearer realm="fre", error="invalid_token"`)
		}
		e.failWith(err)
		return id, false
	}
	if err := id.Need(scope); err != nil {
		a.Record(access.Entry{Who: id.Who, Tenant: id.Tenant, Client: addr, Action: string(scope), On: e.function, Result: access.Refused, Reason: err.Error()})
		e.Set("WWW-Authenticate", `Bearer realm="fre", error="insufficient_scope", scope="`+string(scope)+`"`)
		e.failWith(err)
		return id, false
	}
	return id, true
}

// crossOrigin sets the CORS fields of the answer. It answers a preflight request itself and
// returns false (https://fetch.spec.whatwg.org/#http-cors-protocol).
func (e *exchange) crossOrigin(c *engine.CORS) bool {
	e.cors = true
	origin := string(e.Get("origin"))
	allowed := allowedOrigin(c, origin)
	if allowed != "*" {
		e.Set("Vary", "Origin")
	}
	if origin == "" {
		return true
	}
	preflight := string(e.Method) == http.MethodOptions && len(e.Get("access-control-request-method")) > 0
	if allowed != "" {
		e.Set("Access-Control-Allow-Origin", allowed)
		if c.Credentials {
			e.Set("Access-Control-Allow-Credentials", "true")
		}
		if preflight {
			e.allow(c)
		} else {
			e.Set("Access-Control-Expose-Headers", "X-Request-Id, X-Fre-Id")
		}
	}
	if preflight {
		_ = e.Send(http.StatusNoContent, nil) // fails only with the connection
	}
	return !preflight
}

// allowedOrigin returns the origin to allow: "*" for all, "" for none.
func allowedOrigin(c *engine.CORS, origin string) string {
	switch {
	case len(c.Origins) == 1 && c.Origins[0] == "*":
		return "*"
	case slices.Contains(c.Origins, strings.ToLower(origin)):
		return origin
	}
	return ""
}

// allow sets the fields that answer a preflight request of an allowed origin.
func (e *exchange) allow(c *engine.CORS) {
	methods := c.Methods
	if len(methods) == 0 {
		methods = []string{"GET", "HEAD", "POST"}
	}
	e.Set("Access-Control-Allow-Methods", strings.Join(methods, ", "))
	if len(c.Headers) > 0 {
		e.Set("Access-Control-Allow-Headers", strings.Join(c.Headers, ", "))
	}
	e.Set("Access-Control-Max-Age", strconv.Itoa(int(cmp.Or(c.MaxAge, 5*time.Minute).Seconds())))
}
