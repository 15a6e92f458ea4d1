package testdaemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/client/functest"
)

// Case is the first test of a template, for callers that send the event themselves. `fre test` runs
// all tests of a template.
type Case struct {
	Event  Event
	expect functest.Expect
}

// Event is a request to the function.
type Event struct {
	Method  string
	Path    string // below /function/NAME, with the query: "", "/a?b=c"
	Headers map[string]string
	Body    string
}

// Answer is the function's response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// LoadCase reads the first test of the template in dir. function is the name under which the
// function is deployed.
func LoadCase(dir, function string) (*Case, error) {
	cases, err := functest.Load(dir, function)
	if err != nil {
		return nil, err
	}
	e := cases[0].Event.Client()
	c := &Case{expect: cases[0].Expect, Event: Event{Method: e.Method, Path: e.Path, Headers: map[string]string{}}}
	if e.Query != "" {
		c.Event.Path += "?" + e.Query
	}
	for name := range e.Header {
		c.Event.Headers[name] = strings.Join(e.Header.Values(name), ", ")
	}
	if e.Body != nil {
		body, err := io.ReadAll(e.Body)
		if err != nil {
			return nil, err
		}
		c.Event.Body = string(body)
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

// Check returns the differences between the answer and the expected answer, nil if they match.
func (c *Case) Check(a *Answer) error {
	if wrong := c.expect.Check(&functest.Answer{Status: a.Status, Header: a.Header, Body: a.Body}); wrong != nil {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}
