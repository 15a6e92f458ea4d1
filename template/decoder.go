package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// field is a key of a mapping: with the value, with the keys below, or with a value that reads the
// keys below.
type field struct {
	key      string
	about    string // the schema's description
	required bool
	value    value
	below    []field
	def      any // the schema's default
	examples []any
	more     object // members of the schema beside those of value and below
}

// value reads the value of a key, and describes the value in the schema.
type value struct {
	schema object
	read   func(n ast.Node, path string)
}

// decoder walks the syntax tree along the table of fields and collects errors.
type decoder struct {
	*source
	dialect *Dialect
	top     []field // of the template, for suggestions
	errs    Errors
}

func (d *decoder) errorf(n ast.Node, format string, args ...any) {
	d.errs = append(d.errs, d.errorAt(nodePosition(n), fmt.Sprintf(format, args...)))
}

func (d *decoder) mapping(m ast.MapNode, path string, fields []field) {
	if n, ok := m.(ast.Node); ok {
		d.at[path] = nodePosition(n)
	}
	where := path
	if path == "" {
		where = "template"
	}
	seen := map[string]int{}
	for it := m.MapRange(); it.Next(); {
		keyNode := it.Key()
		key, line := keyText(keyNode), nodePosition(keyNode).line
		if first, ok := seen[key]; ok {
			d.errorf(keyNode, "duplicate key %q in %s (first on line %d)", key, where, first)
			continue
		}
		seen[key] = line
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			d.errorf(keyNode, "unknown key %q in %s%s", key, where, d.suggestion(key, fields))
			continue
		}
		d.field(it.Value(), join(path, key), fields[i])
	}
	for _, f := range fields {
		if _, ok := seen[f.key]; f.required && !ok {
			d.errs = append(d.errs, d.errorAt(d.place(path), fmt.Sprintf("missing key %q in %s", f.key, where)))
		}
	}
}

func (d *decoder) field(n ast.Node, path string, f field) {
	d.at[path] = nodePosition(n)
	if f.value.read != nil {
		f.value.read(n, path)
		return
	}
	m, ok := n.(ast.MapNode)
	if !ok {
		keys := make([]string, len(f.below))
		for i, b := range f.below {
			keys[i] = b.key
		}
		d.errorf(n, "%s must be a mapping with keys such as %s, not %s", path, strings.Join(keys[:min(3, len(keys))], ", "), describe(n))
		return
	}
	d.mapping(m, path, f.below)
}

// set is a mapping that calls there before reading the keys below.
func (d *decoder) set(key string, there func(), f field) field {
	below := f.below
	f.key, f.value.read = key, func(n ast.Node, path string) {
		there()
		d.field(n, path, field{below: below})
	}
	return f
}

func keyText(n ast.MapKeyNode) string {
	if s, ok := n.(*ast.StringNode); ok {
		return s.Value
	}
	return n.GetToken().Value
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// suggestion names the known key nearest to key, or the path where key belongs.
func (d *decoder) suggestion(key string, fields []field) string {
	best, distance := "", min(len(key)/3+1, 3)+1
	for _, f := range fields {
		if n := editDistance(strings.ToLower(key), f.key); n < distance {
			best, distance = f.key, n
		}
	}
	if best == "" {
		best = elsewhere(key, "", d.top)
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

func elsewhere(key, path string, fields []field) string {
	for _, f := range fields {
		at := join(path, f.key)
		if f.key == key {
			return at
		}
		if found := elsewhere(key, at, f.below); found != "" {
			return found
		}
	}
	return ""
}

// editDistance counts insertions, deletions, replacements and swaps of neighbours between a and b
// (optimal string alignment).
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// nodePosition returns where a reader sees n begin. A block mapping's own token is the first colon.
func nodePosition(n ast.Node) position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return positionOf(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return positionOf(n.Key.GetToken())
	}
	return positionOf(n.GetToken())
}

func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "empty"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.AnchorNode:
		return "an anchor is"
	case *ast.AliasNode:
		return "an alias is"
	case *ast.MergeKeyNode:
		return "a merge key is"
	case *ast.TagNode:
		return "a tag is"
	case *ast.DirectiveNode:
		return "a directive is"
	}
	return "an unknown node"
}

func positionOf(tk *token.Token) position {
	if tk == nil || tk.Position == nil {
		return position{1, 1}
	}
	return position{tk.Position.Line, tk.Position.Column}
}
