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

// query says which parameters a route takes: all others are refused, so that none is
// passed over in silence. A nil value is a parameter that the handler reads, or that asks
// for what is so anyway; else it says why a value cannot be.
type query map[string]func(value string) error

func takes(names ...string) query {
	q := make(query, len(names))
	for _, name := range names {
		q[name] = nil
	}
	return q
}

// without adds a parameter of Docker's that FRE leaves out: off is what it may say.
func (q query) without(name, what, instead string) query {
	q[name] = func(value string) error {
		if !truth(value) {
			return nil
		}
		return leftOut(what, instead)
	}
	return q
}

// check judges what a client asks for. exists says whether the object of the path is
// there, which comes before what cannot be done with it.
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

// drain reads the body of a route that has none of its own, also before its connection
// becomes a stream. Some clients repeat their parameters there (docker-modem), and what
// is no parameter is refused like one.
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
		return badRequest("%s %s takes no body: send its options as query parameters", rt.method, rt.path)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if _, known := rt.query[name]; !known && !zero(fields[name]) {
			return rt.unknown("field", name)
		}
	}
	return nil
}

// known refuses what a JSON text says beyond the fields of v, which it was decoded into:
// none is passed over in silence. Values that ask for nothing may stand anywhere.
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

// beyond finds what of a decoded JSON value has no place in a type; path is "" for nothing.
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

// wireName is what a struct's field is called in JSON.
func wireName(t reflect.Type, field string) string {
	f, _ := t.FieldByName(field)
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		return name
	}
	return field
}
