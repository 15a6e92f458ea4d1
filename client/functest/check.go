package functest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/api"
)

// Answer is the answer to an event.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Took   time.Duration // time until the whole answer had arrived
}

// Check returns the differences between a and the expectation, each with the wanted and the
// actual value. Check returns nil if a is as expected.
func (e *Expect) Check(a *Answer) []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if e.Status != 0 && a.Status != e.Status {
		say("status: want %d, got %d", e.Status, a.Status)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		if got, want := a.Header.Values(name), e.Headers[name]; !slices.Equal(got, want) {
			say("header %s: want %q, got %q", name, []string(want), got)
		}
	}
	if e.Error != "" {
		if got := failureOf(a); got == nil {
			say("error: want %s, got none", e.Error)
		} else if name, _, _ := strings.Cut(got.Message, ":"); string(got.Code) != e.Error && name != e.Error {
			say("error: want %s, got %s: %s", e.Error, got.Code, got.Message)
		}
	}
	if e.within > 0 && a.Took > e.within {
		say("max_duration: want at most %s, got %s", e.within, a.Took.Round(time.Millisecond))
	}
	for _, whole := range e.wholes() {
		if !bytes.Equal(a.Body, whole) {
			say("body:\n%s", Diff(text(whole), text(a.Body)))
		}
	}
	for _, part := range e.BodyContains {
		if !bytes.Contains(a.Body, []byte(part)) {
			say("body_contains: want %q in the body, got\n%s", part, indent(text(a.Body)))
		}
	}
	if e.matches != nil && !e.matches.Match(a.Body) {
		say("body_matches: want a match of %q, got\n%s", e.BodyMatches, indent(text(a.Body)))
	}
	if e.BodyJSON != nil {
		wrong = append(wrong, checkJSON("body_json", e.BodyJSON, a.Body, func(_, got any) any { return got })...)
	}
	if e.BodySubset != nil {
		wrong = append(wrong, checkJSON("body_subset", e.BodySubset, a.Body, restrict)...)
	}
	return wrong
}

// wholes returns the bodies that the answer's body must equal.
func (e *Expect) wholes() (out [][]byte) {
	if e.Body != nil {
		out = append(out, []byte(*e.Body))
	}
	if e.BodyBase64 != nil {
		out = append(out, *e.BodyBase64)
	}
	if e.BodyFile != "" {
		out = append(out, e.file)
	}
	return out
}

// failureOf returns the engine's error in an answer, or nil.
func failureOf(a *Answer) *api.Error {
	var body api.ErrorBody
	if a.Status >= 400 && json.Unmarshal(a.Body, &body) == nil {
		return body.Error
	}
	return nil
}

// checkJSON compares want with the part of body selected by cut, as JSON values.
func checkJSON(what string, want, body []byte, cut func(want, got any) any) []string {
	w, err := value(want)
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", what, err)} // parsed successfully before
	}
	g, err := value(body)
	if err != nil {
		return []string{fmt.Sprintf("%s: the body is no JSON (%v):\n%s", what, err, indent(text(body)))}
	}
	if g = cut(w, g); reflect.DeepEqual(w, g) {
		return nil
	}
	return []string{what + ":\n" + Diff(pretty(w), pretty(g))}
}

// value decodes JSON and normalizes numbers: large numbers keep every digit, and 1 equals 1.0.
func value(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errAfter
	}
	return numbers(v), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = numbers(x)
		}
	case []any:
		for i, x := range v {
			v[i] = numbers(x)
		}
	case json.Number:
		if n, ok := new(big.Int).SetString(string(v), 10); ok {
			return json.Number(n.String())
		}
		f, err := v.Float64()
		if err != nil {
			return v
		}
		if n, exact := big.NewFloat(f).Int(nil); exact == big.Exact {
			return json.Number(n.String()) // 1.0, 1e20
		}
		return f
	}
	return v
}

// restrict returns got without the object members absent from want.
func restrict(want, got any) any {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return got
		}
		out := map[string]any{}
		for k, x := range w {
			if y, ok := g[k]; ok {
				out[k] = restrict(x, y)
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok {
			return got
		}
		out := slices.Clone(g)
		for i := range min(len(w), len(g)) {
			out[i] = restrict(w[i], g[i])
		}
		return out
	}
	return got
}

func pretty(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ")
}

// Diff compares two texts line by line. Common lines have no mark, lines only in want have "-",
// lines only in got have "+". Diff truncates long texts.
func Diff(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	const most = 400 // lines: the table has most² entries
	cut := len(a) > most || len(b) > most
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	common := make([][]int, len(a)+1) // length of the longest common subsequence of the suffixes
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []string
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "    "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, "  - "+a[i])
			i++
		default:
			out = append(out, "  + "+b[j])
			j++
		}
	}
	if cut {
		out = append(out, "    …")
	}
	return strings.Join(out, "\n")
}
