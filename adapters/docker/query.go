package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
)

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

// known refuses fields of a JSON text that v lacks, so no field is silently ignored. Zero values
// are allowed in unknown fields.
func known(text []byte, v any) error {
	var said any
	if err := json.Unmarshal(text, &said); err != nil {
		return badRequest("invalid JSON: %v", err)
	}
	if path, value := beyond(said, reflect.TypeOf(v), ""); path != "" {
		return leftOut(fmt.Sprintf("field %s (%.100s)", path[1:], value), "leave it out")
	}
	return nil
}

// beyond returns the path and value of the first field of said that type t lacks; path is "" if
// t has all fields.
func beyond(said any, t reflect.Type, at string) (path string, value []byte) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return "", nil
	}
	switch said := said.(type) {
	case []any:
		for i, v := range said {
			if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
				break
			}
			if path, value = beyond(v, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); path != "" {
				return path, value
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(said)) {
			var within reflect.Type
			switch t.Kind() {
			case reflect.Map:
				within = t.Elem()
			case reflect.Struct:
				f, ok := t.FieldByNameFunc(func(name string) bool { return strings.EqualFold(wireName(t, name), key) })
				if !ok {
					if text, err := json.Marshal(said[key]); err != nil || !zero(text) {
						return at + "." + key, text
					}
					continue
				}
				within = f.Type
			default:
				return "", nil
			}
			if path, value = beyond(said[key], within, at+"."+key); path != "" {
				return path, value
			}
		}
	}
	return "", nil
}

// wireName returns the JSON name of a struct's field.
func wireName(t reflect.Type, field string) string {
	f, _ := t.FieldByName(field)
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		return name
	}
	return field
}
