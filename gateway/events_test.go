package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
)

// takesEvents accepts events of function f.
type takesEvents struct{ got chan engine.Request }

type fullError struct{}

func (fullError) Error() string { return "the queue is full" }

func (fullError) Code() failure.Code { return failure.QueueFull }

func (fullError) RetryAfter() time.Duration { return 1500 * time.Millisecond }

func (e *takesEvents) Publish(_ context.Context, function string, r *engine.Request) (string, error) {
	switch function {
	case "full":
		return "", fullError{}
	case "f":
	default:
		return "", &engine.UnknownError{Function: function}
	}
	if r.Body != nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return "", err
		}
	}
	e.got <- *r
	return "0123", nil
}

func (e *takesEvents) Hook(_ context.Context, function, trigger string, _ *engine.Request) ([]string, string, error) {
	switch trigger {
	case "one":
		return []string{"1"}, "", nil
	case "two":
		return []string{"1", "2"}, "", nil
	case "other":
		return nil, "not for me", nil
	case "much":
		return nil, "", &access.SlowDownError{What: "events", Quota: true, After: 1500 * time.Millisecond}
	}
	return nil, "", errors.New("no trigger " + trigger + " of " + function)
}

func (e *takesEvents) Handshake(_, trigger string, header [][2]string) ([][2]string, error) {
	if trigger != "one" {
		return nil, &engine.UnknownError{Function: trigger}
	}
	for _, f := range header {
		if f[0] == "Webhook-Request-Origin" {
			return [][2]string{{"WebHook-Allowed-Origin", f[1]}}, nil
		}
	}
	return nil, errors.New("no origin")
}

// TestAsync: an asynchronous event is answered 202 with an id, or refused with a status and a code.
func TestAsync(t *testing.T) {
	events := &takesEvents{got: make(chan engine.Request, 8)}
	g := serveFake(t, fake(nil), func(c *Config) { c.Events, c.MaxBodyBytes = events, 100 }).url
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		method, path, body string
		status             int
		answer, header     string // header: NAME: value
	}{
		{"POST", "/async-function/f/a%20b?q", "x", 202, `{"id":"0123"}`, "X-Call-Id: 0123"},
		{"POST", "/async-function/f", "", 202, `{"id":"0123"}`, ""},
		{"GET", "/async-function/f", "", 405, "method_not_allowed", "Allow: POST"},
		{"POST", "/async-function/full", "", 429, "queue_full", "Retry-After: 2"},
		{"POST", "/async-function/g", "", 404, "not_found", ""},
		{"POST", "/async-function/f", strings.Repeat("x", 101), 413, "body_too_large", ""},
		{"POST", "/hooks/f/one/a", "x", 202, `{"id":"1"}`, "X-Call-Id: 1"},
		{"POST", "/hooks/f/two", "x", 202, `{"ids":["1","2"]}`, ""},
		{"POST", "/hooks/f/other", "x", 202, `{"ignored":"not for me"}`, ""},
		{"POST", "/hooks/f/none", "x", 500, "internal", ""},
		{"OPTIONS", "/hooks/f/one", "", 200, "", "WebHook-Allowed-Origin: sender.example"},
		{"OPTIONS", "/hooks/f/none", "", 404, "not_found", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, g+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.method == http.MethodOptions {
			req.Header.Set("WebHook-Request-Origin", "sender.example")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		name, value, _ := strings.Cut(c.header, ": ")
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(answer), c.answer) || name != "" && resp.Header.Get(name) != value {
			t.Errorf("%s %s: %d %s %v, %v; want %d, %s, %s", c.method, c.path, resp.StatusCode, answer, resp.Header, err, c.status, c.answer, c.header)
		}
	}
	if got := <-events.got; got.Path != "/a%20b" || got.Query != "q" || got.Method != "POST" {
		t.Errorf("the first event is %+v", got)
	}
}
