package template

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/fre-engine/fre/internal/bom"
)

// FileName is the name of a function's template.
const FileName = "fret.yaml"

const (
	// MaxBytes is the largest template, and the largest file beside it with requests for packages.
	MaxBytes = 1 << 20
	maxDepth = 16   // of nested lists and mappings: a template needs 4
	maxLine  = 8192 // characters: the YAML scanner's time is quadratic in the length of a line
)

// Parse reads a fret.yaml strictly and applies the defaults. name is the file name in
// errors. A bad template gives [Errors] with every fault found. src is not kept.
//
// Parse does not compare base and runtime with those that exist: package image does.
func (dialect *Dialect) Parse(name string, src []byte) (*Template, error) {
	s := &source{file: name, at: map[string]position{}}
	root, err := s.read(src)
	if err != nil {
		return nil, err
	}
	t := &Template{source: s}
	t.setDefaults()
	d := decoder{source: s, dialect: dialect}
	d.mapping(root, "", d.fields(t))
	_, pipeline := d.at["pipeline"]
	if _, ok := d.at["base"]; !ok && !pipeline && d.at["runtime"] == (position{}) {
		d.errs = append(d.errs, d.errorAt(d.place(""), `missing key "base" in template: name a base environment`+dialect.baseExample()+`, or a runtime`))
	}
	t.Packages = t.Packages.trimmed()
	if t.Code.Build != nil {
		t.Code.Build.Packages = t.Code.Build.Packages.trimmed()
	}
	if len(d.errs) == 0 {
		t.setDependentDefaults(dialect)
		d.relations(t)
	}
	if err := s.sorted(d.errs); err != nil {
		return nil, err
	}
	return t, nil
}

type position struct{ line, column int }

// source is a template's text, for errors with a position in it.
type source struct {
	file  string
	lines []string
	at    map[string]position // by field path: "packages.SITE[1]"
}

func (s *source) errorAt(p position, message string) *Error {
	e := &Error{File: s.file, Line: p.line, Column: p.column, Message: message}
	if p.line >= 1 && p.line <= len(s.lines) {
		e.Source = s.lines[p.line-1]
		e.Column = min(p.column, utf8.RuneCountInString(e.Source)+1)
	}
	return e
}

// place returns the position of a field, or of the nearest field above if the template leaves the
// field at its default.
func (s *source) place(path string) position {
	for {
		if p, ok := s.at[path]; ok {
			return p
		}
		if path == "" {
			return position{}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

func (s *source) sorted(errs Errors) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return errs
}

func (s *source) fail(p position, format string, args ...any) error {
	return Errors{s.errorAt(p, fmt.Sprintf(format, args...))}
}

// read returns the document's only mapping.
func (s *source) read(src []byte) (ast.MapNode, error) {
	if len(src) > MaxBytes {
		return nil, s.fail(position{}, "the template has %d bytes: the limit is %s", len(src), FormatBytes(MaxBytes))
	}
	text := strings.ReplaceAll(string(bom.Decode(src)), "\r\n", "\n")
	s.lines = strings.Split(text, "\n")
	for i, line := range s.lines {
		if at := firstInvalid(line); at >= 0 {
			return nil, s.fail(position{i + 1, utf8.RuneCountInString(line[:at]) + 1}, "a byte or control character that is not YAML text: save the file as UTF-8")
		}
		if utf8.RuneCountInString(line) > maxLine {
			return nil, s.fail(position{i + 1, 1}, "the line is longer than %d characters", maxLine)
		}
	}
	tokens := lexer.Tokenize(text)
	if tk := tooDeep(tokens); tk != nil {
		return nil, s.fail(positionOf(tk), "nested more than %d deep", maxDepth)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, s.syntaxError(err)
	}
	if len(file.Docs) > 1 {
		p := position{1, 1}
		if start := file.Docs[1].Start; start != nil {
			p = positionOf(start)
		}
		return nil, s.fail(p, "a second document: a template is a single YAML document")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil, s.fail(position{}, "the template is empty: write at least id and base")
	}
	body := file.Docs[0].Body
	if err := s.plain(body); err != nil {
		return nil, err
	}
	switch n := body.(type) {
	case ast.MapNode:
		return n, nil
	case *ast.NullNode, *ast.CommentGroupNode:
		return nil, s.fail(position{}, "the template is empty: write at least id and base")
	}
	return nil, s.fail(nodePosition(body), "a template is a mapping of keys to values, not %s", describe(body))
}

// firstInvalid returns the offset of the first byte that a text line must not have, or -1.
func firstInvalid(line string) int {
	for i, r := range line {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(line[i:]); size == 1 {
				return i
			}
		}
		if r < ' ' && r != '\t' || r == 0x7f {
			return i
		}
	}
	return -1
}

// tooDeep returns the token at which nesting exceeds the limit. It runs before the recursive
// parser.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, compact, line := 0, 0, 0
	var columns []int // of the open block collections
	for _, tk := range tokens {
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		}
		if flow > maxDepth {
			return tk
		}
		if flow > 0 || tk.Position == nil {
			continue
		}
		if tk.Position.Line != line {
			line, compact = tk.Position.Line, 0
			for len(columns) > 0 && columns[len(columns)-1] >= tk.Position.Column {
				columns = columns[:len(columns)-1]
			}
			columns = append(columns, tk.Position.Column)
		}
		switch tk.Type {
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType, token.AnchorType, token.TagType:
			compact++
		}
		if len(columns) > maxDepth || compact > maxDepth {
			return tk
		}
	}
	return nil
}

func (s *source) syntaxError(err error) error {
	var yerr yaml.Error
	if !errors.As(err, &yerr) || yerr.GetToken() == nil {
		return s.fail(position{}, "%s", err)
	}
	p, message := positionOf(yerr.GetToken()), yerr.GetMessage()
	if p.line >= 1 && p.line <= len(s.lines) {
		line := s.lines[p.line-1]
		indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if at := strings.IndexByte(indent, '\t'); at >= 0 {
			p.column, message = at+1, "a tab in the indentation: YAML wants spaces"
		}
	}
	return s.fail(p, "%s", message)
}

// plain refuses anchors, aliases, merge keys and tags. Templates do not need them, and they could
// make a small file large.
func (s *source) plain(body ast.Node) error {
	v := plainVisitor{}
	ast.Walk(&v, body)
	if v.bad == nil {
		return nil
	}
	return s.fail(nodePosition(v.bad), "%s not allowed in a template: write the value out, or put it in quotes", describe(v.bad))
}

type plainVisitor struct{ bad ast.Node }

func (v *plainVisitor) Visit(n ast.Node) ast.Visitor {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode, *ast.DirectiveNode:
		if v.bad == nil {
			v.bad = n
		}
	}
	if v.bad != nil {
		return nil
	}
	return v
}

func positionOf(tk *token.Token) position {
	if tk == nil || tk.Position == nil {
		return position{1, 1}
	}
	return position{tk.Position.Line, tk.Position.Column}
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

// suggestion names the known key nearest to key, or the path where key belongs.
func (d *decoder) suggestion(key string, fields []field) string {
	best, distance := "", min(len(key)/3+1, 3)+1
	for _, f := range fields {
		if n := editDistance(strings.ToLower(key), f.key); n < distance {
			best, distance = f.key, n
		}
	}
	if best == "" {
		best = elsewhere(key, "", d.fields(&Template{}))
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
