package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// route is one route of the API, without the version. A handler may return an error only if no
// part of the answer was sent.
type route struct {
	method, path string // a path may continue after {name...}, because names contain slashes
	query        query
	handle       func(w http.ResponseWriter, r *http.Request) error
	body         bool // the handler reads the body
}

// query maps the parameters of a route to checks. A parameter missing in the map is refused, so
// no parameter is silently ignored. A nil check accepts any value: the handler reads the
// parameter, or the parameter asks for FRE's behaviour. Other checks return an error for an
// unsupported value.
type query map[string]func(value string) error

func takes(names ...string) query {
	q := make(query, len(names))
	for _, name := range names {
		q[name] = nil
	}
	return q
}

// without adds a Docker parameter that FRE does not support: only a false value is accepted.
func (q query) without(name, what, instead string) query {
	q[name] = func(value string) error {
		if !truth(value) {
			return nil
		}
		return leftOut(what, instead)
	}
	return q
}

// check refuses unknown parameters and unsupported values. exists reports whether the object in
// the path exists; a missing object takes precedence over an unsupported value.
func (rt *route) check(r *http.Request, exists func() error) error {
	asked, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badRequest("malformed query string: %v: percent-encode parameters", err)
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		judge, known := rt.query[name]
		if !known {
			return rt.unknown("query parameter", name)
		}
		for _, value := range asked[name] {
			if judge == nil || judge(value) == nil {
				continue
			}
			if err := exists(); err != nil {
				return err
			}
			return judge(value)
		}
	}
	return nil
}

func (rt *route) unknown(what, name string) error {
	if len(rt.query) == 0 {
		return badRequest("unknown %s %q: %s %s takes none", what, name, rt.method, rt.path)
	}
	return badRequest("unknown %s %q: %s %s takes %s", what, name, rt.method, rt.path, strings.Join(slices.Sorted(maps.Keys(rt.query)), ", "))
}

// drain reads the body of a route that needs no body, also before the connection becomes a
// stream. Some clients repeat the query parameters in the body (docker-modem). Other fields are
// refused.
func (rt *route) drain(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return badRequest("%s %s takes no body: send options as query parameters", rt.method, rt.path)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if _, known := rt.query[name]; !known && !zero(fields[name]) {
			return rt.unknown("field", name)
		}
	}
	return nil
}

// prunedNothing returns a handler for the prune route of objects that FRE never has. The handler
// accepts the given filters.
func prunedNothing(answer any, filters ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := filtersOf(r, filters...); err != nil {
			return err
		}
		return reply(w, http.StatusOK, answer)
	}
}

func notHere(_ http.ResponseWriter, r *http.Request) error {
	return notFound("page not found: FRE does not implement %s %s of the Docker API (docs/docker.md)", r.Method, r.URL.Path)
}

// boolOf parses a query parameter like Docker: every value except the ones in truth is true.
func boolOf(r *http.Request, name string) bool { return truth(r.URL.Query().Get(name)) }

func truth(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "0", "no", "false", "none":
		return false
	}
	return true
}
