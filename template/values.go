package template

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// text reads a string that fully matches pattern; want describes the pattern.
func (d *decoder) text(dst *string, pattern *lazyregexp.Regexp, want string) value {
	return value{patternSchema(pattern), func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		if !pattern.MatchString(s) {
			d.errorf(n, "bad %s %q: %s", path, s, want)
			return
		}
		*dst = s
	}}
}

func (d *decoder) str(n ast.Node, path string) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
		d.errorf(n, "%s must be a string, not %s: put it in quotes, %q", path, describe(n), n.GetToken().Value)
	default:
		d.errorf(n, "%s must be a string, not %s", path, describe(n))
	}
	return "", false
}

// item is an element of a list of strings.
type item struct {
	schema object
	check  func(string) error
}

// requirement is an item that matches pattern and has at most 512 bytes.
func requirement(pattern *lazyregexp.Regexp, want string) item {
	return item{object{{"type", "string"}, {"maxLength", maxItem}, {"pattern", pattern.String()}}, func(s string) error {
		if len(s) > maxItem || !pattern.MatchString(s) {
			return fmt.Errorf("bad requirement %q: %s", s, want)
		}
		return nil
	}}
}

const maxItem = 512

// strings reads a list of strings.
func (d *decoder) strings(dst *[]string, of item) value {
	return value{object{{"type", "array"}, {"items", of.schema}}, func(n ast.Node, path string) {
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			d.errorf(n, "%s must be a list, not %s", path, describe(n))
			return
		}
		for i, v := range list.Values {
			at := fmt.Sprintf("%s[%d]", path, i)
			d.at[at] = nodePosition(v)
			s, ok := d.str(v, at)
			if !ok {
				continue
			}
			if err := of.check(s); err != nil {
				d.errorf(v, "%s: %s", at, err)
				continue
			}
			*dst = append(*dst, s)
		}
	}}
}

// integer reads a whole number in [low, high].
func integer[T int | int64](d *decoder, dst *T, low, high T) value {
	return value{object{{"type", "integer"}, {"minimum", low}, {"maximum", high}}, func(n ast.Node, path string) {
		num, ok := n.(*ast.IntegerNode)
		if !ok {
			d.errorf(n, "%s must be a whole number, not %s", path, describe(n))
			return
		}
		var v int64
		switch raw := num.Value.(type) {
		case int64:
			v = raw
		case uint64:
			v = int64(min(raw, 1<<62))
		}
		if v < int64(low) || v > int64(high) {
			d.errorf(n, "%s must be between %d and %d, not %s", path, low, high, num.GetToken().Value)
			return
		}
		*dst = T(v)
	}}
}

// unit is how to read and write a number with a unit.
type unit[T ~int64] struct {
	schema object
	parse  func(string) (T, error)
	format func(T) string
}

// measure reads a scalar with a unit, and checks the range.
func measure[T ~int64](d *decoder, dst *T, u unit[T], low, high T) value {
	return value{u.schema, func(n ast.Node, path string) {
		var s string
		switch n := n.(type) {
		case *ast.IntegerNode:
			s = fmt.Sprint(n.Value)
		case *ast.FloatNode:
			s = strconv.FormatFloat(n.Value, 'f', -1, 64)
		default:
			var ok bool
			if s, ok = d.str(n, path); !ok {
				return
			}
		}
		v, err := u.parse(s)
		if err != nil {
			d.errorf(n, "%s: %s", path, err)
			return
		}
		if v < low || v > high {
			d.errorf(n, "%s must be between %s and %s, not %s", path, u.format(low), u.format(high), s)
			return
		}
		*dst = v
	}}
}

// The units of measures.
var (
	sizes     = unit[int64]{sizeSchema, ParseBytes, FormatBytes}
	durations = unit[time.Duration]{durationSchema, parseDuration, time.Duration.String}
	cores     = unit[int64]{object{{"anyOf", []object{
		{{"type", "number"}, {"minimum", 0.01}, {"maximum", 1024}, {"multipleOf", 0.001}},
		{{"type", "string"}, {"pattern", "^([0-9]{1,9}(\\.[0-9]{1,3})?|[0-9]{1,9}m)$"}},
	}}}, parseCPU, formatCPU}
)

func formatCPU(millis int64) string { return fmt.Sprintf("%dm", millis) }

func (d *decoder) boolean(dst *bool) value {
	return value{object{{"type", "boolean"}}, func(n ast.Node, path string) {
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.errorf(n, "%s must be true or false, not %s", path, describe(n))
			return
		}
		*dst = b.Value
	}}
}

// oneOf reads a string that must be one of words.
func oneOf[T ~string](d *decoder, dst *T, words ...T) value {
	return value{object{{"enum", words}}, func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		if !slices.Contains(words, T(s)) {
			d.errorf(n, "%s must be %s, not %q", path, oneOfWords(words), s)
			return
		}
		*dst = T(s)
	}}
}

func oneOfWords[T ~string](words []T) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

func (d *decoder) env(dst *map[string]string) value {
	return value{object{
		{"type", "object"},
		{"propertyNames", object{{"pattern", envPattern.String()}, {"not", object{{"pattern", "^FRE_"}}}}},
		{"additionalProperties", object{{"type", []string{"string", "number", "boolean"}}}},
	}, func(n ast.Node, path string) {
		m, ok := n.(ast.MapNode)
		if !ok {
			d.errorf(n, "%s must be a mapping of names to values, not %s", path, describe(n))
			return
		}
		*dst = map[string]string{}
		for it := m.MapRange(); it.Next(); {
			key, v := keyText(it.Key()), it.Value()
			d.at[join(path, key)] = nodePosition(v)
			switch _, dup := (*dst)[key]; {
			case dup:
				d.errorf(it.Key(), "duplicate key %q in env", key)
				continue
			case !envPattern.MatchString(key):
				d.errorf(it.Key(), "bad name %q in env: letters, digits and _, not beginning with a digit", key)
				continue
			case strings.HasPrefix(key, "FRE_"):
				d.errorf(it.Key(), "name %q in env is reserved: names beginning with FRE_ are the engine's", key)
				continue
			}
			switch v := v.(type) {
			case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
				(*dst)[key] = v.GetToken().Value
			default:
				s, ok := d.str(v, join(path, key))
				if ok && strings.ContainsRune(s, 0) {
					d.errorf(v, "%s holds a NUL character", join(path, key))
					ok = false
				}
				if ok {
					(*dst)[key] = s
				}
			}
		}
	}}
}

func (d *decoder) codePath(dst *string) value {
	return value{fileSchema, func(n ast.Node, at string) {
		var s string
		d.text(&s, pathPattern, "a relative path below the template's directory").read(n, at)
		if s == "" {
			return
		}
		if s = path.Clean(s); s == ".." || strings.HasPrefix(s, "../") {
			d.errorf(n, "%s %q leaves the template's directory", at, s)
			return
		}
		*dst = s
	}}
}

// pipeline reads the steps.
func (d *decoder) pipeline(dst *[]string) value {
	steps := d.strings(dst, item{patternSchema(stepPattern), func(s string) error {
		if !stepPattern.MatchString(s) {
			return fmt.Errorf("bad step %q: write a function of the same tenant, NAME or NAME@REVISION", s)
		}
		return nil
	}})
	return value{steps.schema.with("minItems", 1).with("maxItems", MaxSteps), func(n ast.Node, path string) {
		if list, ok := n.(*ast.SequenceNode); ok && (len(list.Values) == 0 || len(list.Values) > MaxSteps) {
			d.errorf(n, "%s has %d steps: name 1 to %d functions", path, len(list.Values), MaxSteps)
			return
		}
		steps.read(n, path)
	}}
}

func (d *decoder) contract(dst *Contract) value {
	return value{object{{"enum", Contracts()}}, func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		if !slices.Contains(Contracts(), Contract(s)) {
			names := make([]string, len(Contracts()))
			for i, c := range Contracts() {
				names[i] = string(c)
			}
			d.errorf(n, "contract %q is not known: the contracts are %s", s, strings.Join(names, ", "))
			return
		}
		*dst = Contract(s)
	}}
}

// destinations reads an allow-list.
func (d *decoder) destinations(dst *[]string) value {
	read := d.strings(dst, item{patternSchema(destinationPattern), func(s string) error {
		if _, err := ParseDestination(s); err != nil {
			return fmt.Errorf("bad destination %q: %w", s, err)
		}
		return nil
	}})
	return value{read.schema.with("minItems", 1).with("maxItems", maxAllow), func(n ast.Node, path string) {
		if list, ok := n.(*ast.SequenceNode); ok {
			switch {
			case len(list.Values) == 0:
				d.errorf(n, "%s is empty: list allowed destinations, or remove the key to allow the public internet", path)
			case len(list.Values) > maxAllow:
				d.errorf(n, "%s has %d entries: the limit is %d", path, len(list.Values), maxAllow)
			}
		}
		read.read(n, path)
	}}
}

// index reads a mapping of packages to names of indexes.
func (d *decoder) index(dst *map[string]string, key *Names, site string) value {
	schema := object{
		{"type", "object"},
		{"propertyNames", object{{"pattern", key.Name.Pattern.String()}}},
		{"additionalProperties", patternSchema(namePattern)},
	}
	return value{schema, func(n ast.Node, path string) {
		m, ok := n.(ast.MapNode)
		if !ok {
			d.errorf(n, "%s must be a mapping of packages to the names of indexes, not %s", path, describe(n))
			return
		}
		*dst = map[string]string{}
		for it := m.MapRange(); it.Next(); {
			of := keyText(it.Key())
			if !key.Name.Pattern.MatchString(of) {
				d.errorf(it.Key(), "bad package %q in %s: %s", of, path, key.Name.Want)
				continue
			}
			name := of
			if key.Normal != nil {
				name = key.Normal(of)
			}
			if _, dup := (*dst)[name]; dup {
				d.errorf(it.Key(), "%s names the package %s twice", path, name)
				continue
			}
			d.at[join(path, name)] = nodePosition(it.Value())
			var index string
			d.text(&index, namePattern, "the name of an index in the engine's configuration (packages."+site+".indexes)").read(it.Value(), join(path, of))
			(*dst)[name] = index
		}
	}}
}

// globs is a list of patterns without spaces.
func globs() item {
	return unbounded(requirement(globPattern, "write a pattern without spaces, for example com.example.*"))
}

// unbounded leaves the length out of the schema, because the pattern has it.
func unbounded(of item) item {
	of.schema = slices.DeleteFunc(of.schema, func(m member) bool { return m.key == "maxLength" })
	return of
}

// requests reads a list of strings, or a string with a file's name.
func (d *decoder) requests(dst *Requests, site *Site) value {
	list := d.strings(&dst.List, requirement(site.Request.Pattern, site.Request.Want))
	return value{object{{"anyOf", []object{list.schema, fileSchema}}}, func(n ast.Node, path string) {
		switch n.(type) {
		case *ast.StringNode, *ast.LiteralNode:
			d.codePath(&dst.File).read(n, path)
			if site.Extras != nil && dst.File != "" {
				dst.File, dst.Extras = site.Extras(dst.File)
			}
		case *ast.SequenceNode:
			list.read(n, path)
		default:
			d.errorf(n, "%s must be a list, or the name of a file, not %s", path, describe(n))
		}
	}}
}
