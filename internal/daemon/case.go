package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Case is a template's own test: the files test/event.json and
// test/expect.json beside its fret.yaml.
type Case struct {
	Event  Event
	Expect Expect
}

// Event is a request to the function.
type Event struct {
	Method  string            `json:"method"` // default POST
	Path    string            `json:"path"`   // below /function/NAME, with its query: "", "/a?b=c"
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// Expect says which answer is right. Of the body's fields those that are set
// must all hold.
type Expect struct {
	Status       int               `json:"status"` // default 200
	Headers      map[string]string `json:"headers"`
	Body         *string           `json:"body"`          // the whole body
	BodyContains []string          `json:"body_contains"` // parts of it
	BodyMatches  string            `json:"body_matches"`  // a regular expression
	BodyJSON     json.RawMessage   `json:"body_json"`     // an equal JSON value
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// LoadCase reads the test of the template in dir, strictly.
func LoadCase(dir string) (*Case, error) {
	c := &Case{}
	for _, f := range []struct {
		name string
		into any
	}{{"event.json", &c.Event}, {"expect.json", &c.Expect}} {
		path := filepath.Join(dir, "test", f.name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(f.into); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if c.Event.Method == "" {
		c.Event.Method = http.MethodPost
	}
	if c.Expect.Status == 0 {
		c.Expect.Status = http.StatusOK
	}
	if e := c.Expect; e.Body == nil && e.BodyContains == nil && e.BodyMatches == "" && e.BodyJSON == nil {
		return nil, fmt.Errorf("%s: test/expect.json says nothing about the body", dir)
	}
	return c, nil
}

// Call sends the event to the function called name at the gateway addr and
// reads the whole answer.
func (e Event) Call(ctx context.Context, client *http.Client, addr, name string) (*Answer, error) {
	url := "http://" + addr + "/function/" + name + e.Path
	req, err := http.NewRequestWithContext(ctx, e.Method, url, strings.NewReader(e.Body))
	if err != nil {
		return nil, err
	}
	for k, v := range e.Headers {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &Answer{Status: resp.StatusCode, Header: resp.Header}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		return a, fmt.Errorf("read the answer of %s: %w", name, err)
	}
	return a, nil
}

// Check returns what of the answer is not as expected, nil if nothing.
func (e Expect) Check(a *Answer) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if a.Status != e.Status {
		wrong("status: got %d, want %d", a.Status, e.Status)
	}
	for k, want := range e.Headers {
		if got := a.Header.Values(k); !slices.Contains(got, want) {
			wrong("header %s: got %q, want %q", k, got, want)
		}
	}
	body := string(a.Body)
	if e.Body != nil && body != *e.Body {
		wrong("body: want %q", *e.Body)
	}
	for _, part := range e.BodyContains {
		if !strings.Contains(body, part) {
			wrong("body: want %q in it", part)
		}
	}
	if e.BodyMatches != "" {
		if ok, err := regexp.MatchString(e.BodyMatches, body); err != nil || !ok {
			wrong("body: want a match of %q (%v)", e.BodyMatches, err)
		}
	}
	if e.BodyJSON != nil && !sameJSON(a.Body, e.BodyJSON) {
		wrong("body: want JSON equal to %s", e.BodyJSON)
	}
	if errs != nil {
		errs = append(errs, fmt.Errorf("body: got %q", body))
	}
	return errors.Join(errs...)
}

// sameJSON compares by canonical text: json.Marshal sorts members.
func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, perr := json.Marshal(x)
	q, qerr := json.Marshal(y)
	return perr == nil && qerr == nil && bytes.Equal(p, q)
}
