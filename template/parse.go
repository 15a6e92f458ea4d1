package template

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/fre-engine/fre/internal/bom"
)

// Parse reads a fret.yaml strictly and applies the defaults. name is the file name in
// errors. A bad template gives [Errors] with every fault found. src is not kept.
//
// Parse does not compare base and runtime with those that exist: package image does.
func (dialect *Dialect) Parse(name string, src []byte) (*Template, error) {
	s := &source{file: name, at: map[string]position{}}
	root, err := s.parseYAML(src)
	if err != nil {
		return nil, err
	}
	t := &Template{source: s}
	t.setDefaults()
	d := decoder{source: s, dialect: dialect}
	d.top = d.fields(t)
	d.mapping(root, "", d.top)
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

const (
	// MaxBytes is the largest template, and the largest file beside it with requests for packages.
	MaxBytes = 1 << 20
	maxDepth = 16   // of nested lists and mappings: a template needs 4
	maxLine  = 8192 // characters: the YAML scanner's time is quadratic in the length of a line
)

// parseYAML returns the document's only mapping.
func (s *source) parseYAML(src []byte) (ast.MapNode, error) {
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
