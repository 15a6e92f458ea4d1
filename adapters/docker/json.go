package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/server/listing"
)

// reply sends v as JSON.
func reply(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	listing.Send(w, status, body)
	return nil
}

// maxJSONBytes bounds a request's JSON body; a container's configuration has a few kilobytes.
const maxJSONBytes = 4 << 20

// decodeJSON parses a request's body and ignores unknown fields; known finds unknown fields.
func decodeJSON(body []byte, v any) error {
	if len(strings.TrimSpace(string(body))) == 0 {
		return badRequest("invalid JSON: got EOF while reading request body")
	}
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return badRequest("invalid JSON: %v at byte %d", err, syntax.Offset)
	}
	return badRequest("invalid JSON: %s", wording.JSON(err))
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
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			break
		}
		for i, v := range said {
			if path, value = beyond(v, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); path != "" {
				return path, value
			}
		}
	case map[string]any:
		return beyondObject(said, t, at)
	}
	return "", nil
}

// beyondObject is beyond for a JSON object. A type that is no struct and no map lacks no field.
func beyondObject(said map[string]any, t reflect.Type, at string) (path string, value []byte) {
	if t.Kind() != reflect.Map && t.Kind() != reflect.Struct {
		return "", nil
	}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		member, ok := memberType(t, key)
		if !ok {
			if text, err := json.Marshal(said[key]); err != nil || !zero(text) {
				return at + "." + key, text
			}
			continue
		}
		if path, value = beyond(said[key], member, at+"."+key); path != "" {
			return path, value
		}
	}
	return "", nil
}

// memberType returns the type of the member key of a map or a struct; ok is false if a struct has
// no such field.
func memberType(t reflect.Type, key string) (member reflect.Type, ok bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	f, ok := t.FieldByNameFunc(func(name string) bool { return strings.EqualFold(wireName(t, name), key) })
	return f.Type, ok
}

// wireName returns the JSON name of a struct's field.
func wireName(t reflect.Type, field string) string {
	f, _ := t.FieldByName(field)
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		return name
	}
	return field
}

// zero reports whether a JSON text is a zero value.
func zero(text json.RawMessage) bool {
	var v any
	return json.Unmarshal(text, &v) == nil && zeroValue(v)
}

// zeroValue reports whether a decoded JSON value is zero. An object is zero if all members are.
func zeroValue(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, member := range v {
			if !zeroValue(member) {
				return false
			}
		}
		return true
	}
	return false
}
