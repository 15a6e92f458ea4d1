package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// object is a JSON object with its members in order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(m.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := enc.Encode(m.value); err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// with returns o with a member set.
func (o object) with(key string, value any) object {
	out := slices.Clone(o)
	if i := slices.IndexFunc(out, func(m member) bool { return m.key == key }); i >= 0 {
		out[i].value = value
		return out
	}
	return append(out, member{key, value})
}

func patternSchema(p *lazyregexp.Regexp) object {
	return object{{"type", "string"}, {"pattern", p.String()}}
}

func refer(def string) object { return object{{"$ref", "#/$defs/" + def}} }

// Values that several keys share.
var (
	fileSchema     = refer("file")
	sizeSchema     = refer("size")
	durationSchema = refer("duration")
	belowTop       = object{{"pattern", `^([^/]+/)*\.\.(/|$)`}} // of paths: refused
)

// required returns, for each key, the condition that the key is there.
func required(keys ...string) []object {
	out := make([]object, len(keys))
	for i, key := range keys {
		out[i] = object{{"required", []string{key}}}
	}
	return out
}

// Conditions of the rules.
func oneIs(key string, values ...string) object {
	var of any = object{{"enum", values}}
	if len(values) == 1 {
		of = object{{"const", values[0]}}
	}
	return object{{"required", []string{key}}, {"properties", object{{key, of}}}}
}

func properties(of object) object { return object{{"properties", of}} }

func anyOf(of ...object) object {
	if len(of) == 1 {
		return of[0]
	}
	return object{{"anyOf", of}}
}

func rule(condition, then object) object { return object{{"if", condition}, {"then", then}} }
