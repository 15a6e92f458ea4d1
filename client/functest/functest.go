// Package functest loads the tests of a function, which stand beside the function's template,
// and compares answers with the expectations. docs/testing.md describes the format.
//
//	test/event.json          test/expect.json
//	test/NAME.event.json     test/NAME.expect.json
//
// [Case] is an event with an expectation, [Answer] is an answer, and [Suite] is the result of all
// cases.
package functest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/client"
)

// Dir is the directory of tests in a template.
const Dir = "test"

const (
	eventSuffix  = "event.json"
	expectSuffix = "expect.json"
	maxFile      = 64 << 20 // of an event, an expectation or a body, in bytes
)

// Placeholder stands for the function's name in the strings of an expectation.
const Placeholder = "{{function}}"

// told returns the name that the engine tells the function: the name without the tenant.
func told(function string) string {
	name, _, _ := strings.Cut(function, ".")
	return name
}

// Case is one test.
type Case struct {
	Name   string // NAME of the files, or "event" for test/event.json
	Event  Event
	Expect Expect
}

// Event is the event for the function. At most one of the bodies is set.
type Event struct {
	Method     string            `json:"method"`      // default POST
	Path       string            `json:"path"`        // default "/", may include a query
	Query      map[string]Values `json:"query"`       // added to the query of Path
	Headers    map[string]Values `json:"headers"`     //
	Body       string            `json:"body"`        // verbatim
	BodyJSON   json.RawMessage   `json:"body_json"`   // sets Content-Type application/json unless Headers has a Content-Type
	BodyBase64 []byte            `json:"body_base64"` //
	BodyFile   string            `json:"body_file"`   // a file beside the event
}

// Expect describes the expected answer. The answer must match every field that is set.
type Expect struct {
	Status      int               `json:"status"`  // default 200, or any status if Error is set
	Headers     map[string]Values `json:"headers"` // each named header has exactly these values
	Error       string            `json:"error"`   // name of the exception ("ValueError"), or the engine's code ("timeout", "function_crashed", …)
	MaxDuration string            `json:"max_duration"`

	Body         *string         `json:"body"`          // the whole body
	BodyBase64   *[]byte         `json:"body_base64"`   // the whole body
	BodyFile     string          `json:"body_file"`     // the whole body, as a file beside the expectation
	BodyContains []string        `json:"body_contains"` // the body contains each of these strings
	BodyMatches  string          `json:"body_matches"`  // a regular expression (RE2) matches the body
	BodyJSON     json.RawMessage `json:"body_json"`     // the body is an equal JSON value
	BodySubset   json.RawMessage `json:"body_subset"`   // the body is a JSON value with at least these members; arrays have equal lengths
	AnyBody      bool            `json:"any_body"`      // accept any body

	file    []byte // content of BodyFile
	matches *regexp.Regexp
	within  time.Duration
}

// Values is a list of strings. In JSON, a string stands for a list of one.
type Values []string

// UnmarshalJSON accepts a string or an array of strings.
func (v *Values) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*v = Values{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(b, &many); err != nil {
		return errors.New("neither a string nor an array of strings")
	}
	*v = many
	return nil
}

// Load returns the test cases of the template in dir, sorted by name, for a function deployed as
// function. An error names the file, and is fs.ErrNotExist if the template has no tests.
func Load(dir, function string) ([]Case, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var cases []Case
	var errs []error
	known := map[string]bool{}
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), eventSuffix)
		if !ok || stem != "" && !strings.HasSuffix(stem, ".") {
			continue
		}
		known[stem+expectSuffix] = true
		c, err := load(root, stem, function)
		errs = append(errs, err)
		cases = append(cases, c)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, expectSuffix) && !known[name] {
			errs = append(errs, fmt.Errorf("%s: %s is missing", path.Join(dir, Dir, name), strings.TrimSuffix(name, expectSuffix)+eventSuffix))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("%s holds no tests: %w: write %s and %s", dir, fs.ErrNotExist, path.Join(Dir, eventSuffix), path.Join(Dir, expectSuffix))
	}
	slices.SortFunc(cases, func(a, b Case) int { return strings.Compare(a.Name, b.Name) })
	return cases, nil
}

func load(root *os.Root, stem, function string) (Case, error) {
	c := Case{Name: strings.TrimSuffix(stem, ".")}
	if stem == "" {
		c.Name = "event"
	}
	for _, f := range []struct {
		name  string
		parse func([]byte) error
	}{
		{stem + eventSuffix, func(text []byte) (err error) { c.Event, err = ParseEvent(text); return err }},
		{stem + expectSuffix, func(text []byte) (err error) { c.Expect, err = ParseExpect(text, function); return err }},
	} {
		text, err := readFile(root, f.name)
		if err == nil {
			err = f.parse(text)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", path.Join(root.Name(), Dir, f.name), err)
		}
	}
	for _, f := range []struct {
		name string
		into func([]byte)
	}{
		{c.Event.BodyFile, func(b []byte) { c.Event.Body = string(b) }},
		{c.Expect.BodyFile, func(b []byte) { c.Expect.file = b }},
	} {
		if f.name == "" {
			continue
		}
		b, err := readFile(root, f.name)
		if err != nil {
			return c, fmt.Errorf("%s: body_file: %w", path.Join(root.Name(), Dir, stem+"*.json"), err)
		}
		f.into(b)
	}
	return c, nil
}

// readFile reads a file below test/ and refuses paths outside.
func readFile(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(path.Join(Dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(b) > maxFile {
		err = fmt.Errorf("is larger than %d MiB", maxFile>>20)
	}
	return b, err
}

// ParseEvent parses the content of an event file and rejects unknown fields.
func ParseEvent(text []byte) (Event, error) {
	var e Event
	if err := decode(text, &e); err != nil {
		return e, err
	}
	if e.Method == "" {
		e.Method = http.MethodPost
	}
	if e.Path == "" || e.Path[0] == '?' {
		e.Path = "/" + e.Path
	}
	if e.Path[0] != '/' {
		return e, fmt.Errorf("path %q does not begin with /", e.Path)
	}
	if several(e.Body != "", e.BodyJSON != nil, e.BodyBase64 != nil, e.BodyFile != "") {
		return e, errors.New("has several of body, body_json, body_base64 and body_file")
	}
	return e, nil
}

// ParseExpect parses the content of an expectation for the named function and rejects unknown
// fields.
func ParseExpect(text []byte, function string) (Expect, error) {
	var e Expect
	err := decode(bytes.ReplaceAll(text, []byte(Placeholder), []byte(told(function))), &e)
	if err != nil {
		return e, err
	}
	if e.Status == 0 && e.Error == "" {
		e.Status = http.StatusOK
	}
	if e.BodyMatches != "" {
		if e.matches, err = regexp.Compile(e.BodyMatches); err != nil {
			return e, fmt.Errorf("body_matches: %w", err)
		}
	}
	if e.MaxDuration != "" {
		if e.within, err = time.ParseDuration(e.MaxDuration); err != nil || e.within <= 0 {
			return e, fmt.Errorf("max_duration: %q is not a duration, for example 500ms", e.MaxDuration)
		}
	}
	said := e.Body != nil || e.BodyBase64 != nil || e.BodyFile != "" || len(e.BodyContains) > 0 || e.BodyMatches != "" || e.BodyJSON != nil || e.BodySubset != nil
	if !said && !e.AnyBody && e.Error == "" {
		return e, errors.New(`says nothing about the body: to accept any body, write "any_body": true`)
	}
	return e, nil
}

func several(set ...bool) bool {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	return n > 1
}

var errAfter = errors.New("data after the JSON value")

func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("is empty")
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errAfter
	}
	return nil
}

// Client converts the event to the type of package client.
func (e *Event) Client() client.Event {
	out := client.Event{Method: e.Method, Header: http.Header{}}
	out.Path, out.Query, _ = strings.Cut(e.Path, "?")
	if len(e.Query) > 0 {
		q := url.Values{}
		for name, values := range e.Query {
			q[name] = values
		}
		out.Query = strings.TrimPrefix(out.Query+"&"+q.Encode(), "&")
	}
	for name, values := range e.Headers {
		for _, v := range values {
			out.Header.Add(name, v)
		}
	}
	body := []byte(e.Body)
	switch {
	case e.BodyJSON != nil:
		body = e.BodyJSON
		if out.Header.Get("Content-Type") == "" {
			out.Header.Set("Content-Type", "application/json")
		}
	case e.BodyBase64 != nil:
		body = e.BodyBase64
	}
	if len(body) > 0 {
		out.Body = bytes.NewReader(body)
	}
	return out
}

// text formats a body for people: as text, or in base64 if the body has control characters.
func text(body []byte) string {
	if strings.ContainsFunc(string(body), func(r rune) bool { return r == '\ufffd' || r < ' ' && r != '\n' && r != '\t' && r != '\r' }) {
		return "base64 " + base64.StdEncoding.EncodeToString(body)
	}
	return string(body)
}
