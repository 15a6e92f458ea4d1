package runtimes_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/channel"
)

// otherFunctions answer the calls of a function: "waits" never, "fails" with an error, "refused" if
// the call should not have come, and the rest with the request's body.
type otherFunctions struct {
	t      testing.TB
	waited chan struct{}
}

// Call is part of channel.Caller.
func (o otherFunctions) Call(ctx context.Context, c *channel.Called) (*channel.Answer, error) {
	switch c.Function {
	case "waits":
		if o.waited != nil {
			close(o.waited)
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "fails":
		return nil, &channel.Failure{Type: "function_error", Message: "fails: went wrong"}
	case "f":
		return &channel.Answer{Status: 200, Body: c.Body}, nil
	}
	if c.Method != "PUT" || c.Path != "/p" || c.Query != "q=1" || !slices.Contains(c.Headers, [2]string{"x-a", "1"}) ||
		!slices.Contains(c.Headers, [2]string{"content-type", "application/octet-stream"}) {
		o.t.Errorf("called by %+v", c)
	}
	return &channel.Answer{Status: 207, Headers: [][2]string{{"X-B", "2"}}, Body: io.MultiReader(c.Body)}, nil
}

// calling calls test for each runtime whose handlers can call other functions.
func calling(t *testing.T, test func(t *testing.T, l language, concurrency string)) {
	t.Helper()
	for _, l := range languages(t) {
		if !l.is("python node go") {
			continue
		}
		for _, concurrency := range []string{"1", "4"} {
			t.Run(l.String()+" "+concurrency, func(t *testing.T) { test(t, l, concurrency) })
		}
	}
}

func callFrom(t *testing.T, i *instance, caller channel.Caller, path, body string) (answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	path, query, _ := strings.Cut(path, "?")
	r, err := i.Invoke(ctx, &channel.Invocation{ID: "1", Request: channel.Request{Method: "POST", Path: path, Query: query, Body: strings.NewReader(body)}, Caller: caller})
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return answer{r.Status, r.Headers, string(b)}, err
}

// TestCallsFromHandlers: A handler in Python, Node or Go calls another function with a body of any
// length, and gets its answer or an error with a code.
func TestCallsFromHandlers(t *testing.T) {
	big := string(bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16))
	calling(t, func(t *testing.T, l language, concurrency string) {
		t.Helper()
		for _, files := range []string{"FRE_FILES=", "FRE_FILES=/tmp"} {
			i := l.start(t, "all.calls", "FRE_CONCURRENCY="+concurrency, "FRE_CALLS=32", "FRE_MEMORY_BYTES=1000000000", files)
			for _, size := range []int{1, 1000, 70_000, 256<<10 + 1, 600_000, 8 << 20} {
				got, err := callFrom(t, i, otherFunctions{t: t}, "/other", big[:size])
				if err != nil || got.Status != 207 || got.Body != big[:size] || !slices.Contains(got.Headers, [2]string{"x-b", "2"}) {
					t.Errorf("%d bytes, %s: %d %q, %d came back, %v", size, files, got.Status, got.Headers, len(got.Body), err)
				}
			}
			got, err := callFrom(t, i, otherFunctions{t: t}, "/fails", "x")
			if err != nil || got.Body != "CallError function_error" {
				t.Errorf("of the failed call: %q, %v", got.Body, err)
			}
			got, err = callFrom(t, i, otherFunctions{t: t}, "/f?/a b", "x") // a path that is invalid in a request
			if err != nil || !strings.Contains(got.Body, "cannot stand in a request") && got.Body != "CallError bad_call" {
				t.Errorf("to a path with a space: %q, %v", got.Body, err)
			}
		}
	})
}

// If the engine takes no calls, a call fails in the handler.
func TestCallsWithoutEngine(t *testing.T) {
	calling(t, func(t *testing.T, l language, concurrency string) {
		t.Helper()
		i := l.start(t, "all.calls", "FRE_CONCURRENCY="+concurrency)
		if got, err := callFrom(t, i, nil, "/other", "x"); err != nil || got.Body != "CallError not_possible" {
			t.Errorf("%q, %v", got.Body, err)
		}
	})
}

// TestCallsAtOnceFromHandlers: A handler calls several functions at once.
func TestCallsAtOnceFromHandlers(t *testing.T) {
	calling(t, func(t *testing.T, l language, concurrency string) {
		t.Helper()
		i := l.start(t, "all.acalls", "FRE_CONCURRENCY="+concurrency, "FRE_CALLS=32")
		for range 20 {
			if got, err := callFrom(t, i, otherFunctions{t: t}, "/", "x"); err != nil || got.Body != "x0 x1 x2" {
				t.Errorf("%q, %v", got.Body, err)
			}
		}
	})
}

// After the client's cancellation a pending call does not hold the handler, and an answered event
// leaves no call behind. The channel is ready for the next event.
func TestCallsGivenUp(t *testing.T) {
	calling(t, func(t *testing.T, l language, concurrency string) {
		t.Helper()
		i := l.start(t, "all.calls", "FRE_CONCURRENCY="+concurrency, "FRE_CALLS=32")
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			waited, finished := make(chan struct{}), make(chan struct{})
			go func() {
				<-waited
				cancel()
			}()
			r, err := i.Invoke(ctx, &channel.Invocation{Request: channel.Request{Path: "/waits"}, Caller: otherFunctions{t, waited}, Finished: func() { close(finished) }})
			if err == nil { // the handler saw the end of its call first
				_ = r.Body.Close()
			}
			<-finished
		}
		if got, err := callFrom(t, i, otherFunctions{t: t}, "/other", "again"); err != nil || got.Body != "again" {
			t.Errorf("afterwards: %q, %v", got.Body, err)
		}
		i = l.start(t, "all.calls_left", "FRE_CONCURRENCY="+concurrency, "FRE_CALLS=32")
		for range 20 {
			if got, err := callFrom(t, i, otherFunctions{t: t}, "/", ""); err != nil || got.Body != "left" {
				t.Errorf("%q, %v", got.Body, err)
			}
		}
	})
}

// A stream and calls of the handler's threads share the channel.
func TestCallsBesideStream(t *testing.T) {
	want := strings.Repeat("z", 64*65536)
	calling(t, func(t *testing.T, l language, concurrency string) {
		t.Helper()
		if l.name != "python" { // in other languages a waiting handler does not read
			return
		}
		i := l.start(t, "all.calls_stream", "FRE_CONCURRENCY="+concurrency, "FRE_CALLS=32")
		for range 3 {
			if got, err := callFrom(t, i, otherFunctions{t: t}, "/", ""); err != nil || got.Body != want {
				t.Errorf("%d bytes of %d, %v", len(got.Body), len(want), err)
			}
		}
	})
}
