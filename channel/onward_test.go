package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// callerFunc makes a function a Caller.
type callerFunc func(ctx context.Context, c *Called) (*Answer, error)

// Call implements Caller.
func (f callerFunc) Call(ctx context.Context, c *Called) (*Answer, error) { return f(ctx, c) }

// forwards answers an event with another function's answer.
func forwards(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
	r, err := e.Call(ctx, &Called{Function: "other", Request: Request{Method: e.Method, Path: e.Path, Query: e.Query, Headers: e.Headers, Body: e.Body}})
	if err != nil {
		return nil, err
	}
	return &fn.Answer{Status: r.Status, Headers: r.Headers, Body: r.Body}, nil
}

// echoes answers a call with the body of the call.
var echoes = callerFunc(func(_ context.Context, c *Called) (*Answer, error) {
	return &Answer{Status: 203, Headers: c.Headers, Body: c.Body, Length: -1}, nil
})

// TestCall: a function calls another function with bodies of any length, and gets the answer.
func TestCall(t *testing.T) {
	t.Setenv("FRE_CALLS", "32")
	var told Called
	c := serve(t, Config{}, forwards)
	for _, size := range []int{0, 1, inlineBody + 1, wire.Chunk, Window + wire.Chunk + 1, 8 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			want := pattern(size)
			headers := [][2]string{{"x-a", "ü"}}
			caller := callerFunc(func(ctx context.Context, called *Called) (*Answer, error) {
				told = *called
				return echoes(ctx, called)
			})
			r, err := c.Invoke(t.Context(), &Invocation{Caller: caller, Request: Request{Method: "PUT", Path: "/p", Query: "q=1", Headers: headers, Body: bytes.NewReader(want)}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r.Body)
			if err != nil || !bytes.Equal(got, want) || r.Status != 203 {
				t.Errorf("%d bytes, status %d, %v; want the %d sent, 203", len(got), r.Status, err, size)
			}
			_ = r.Body.Close()
			told.Body, told.Length = nil, 0
			if diff := cmp.Diff(Called{Function: "other", Request: Request{Method: "PUT", Path: "/p", Query: "q=1", Headers: headers}}, told); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A long body of known length arrives in a file.
func TestCallFile(t *testing.T) {
	t.Setenv("FRE_CALLS", "32")
	t.Setenv("FRE_FILES", "/tmp")
	want := pattern(2 << 20)
	c := serve(t, Config{}, func(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
		r, err := e.Call(ctx, &Called{Function: "f", Request: Request{Method: "POST", Path: "/", Body: bytes.NewReader(want)}})
		if err != nil {
			return nil, err
		}
		return &fn.Answer{Body: r.Body}, nil
	})
	length := make(chan int64, 1)
	r, err := c.Invoke(t.Context(), &Invocation{Caller: callerFunc(func(ctx context.Context, called *Called) (*Answer, error) {
		length <- called.Length
		return echoes(ctx, called)
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n := <-length; n != int64(len(want)) {
		t.Errorf("length %d: it did not come in a file", n)
	}
}

// A refused call gets an error code, and the calling event continues.
func TestCallRefused(t *testing.T) {
	t.Setenv("FRE_CALLS", "32")
	refusal := &Failure{Type: "not_found", Message: "no function other"}
	for name, at := range map[string]struct {
		caller Caller
		called Called
		want   string
	}{
		"by the engine": {callerFunc(func(context.Context, *Called) (*Answer, error) { return nil, refusal }), Called{Request: Request{Method: "GET", Path: "/"}}, "not_found"},
		"otherwise":     {callerFunc(func(context.Context, *Called) (*Answer, error) { return nil, io.ErrNoProgress }), Called{Request: Request{Method: "GET", Path: "/"}}, "internal"},
		"no caller":     {nil, Called{Request: Request{Method: "GET", Path: "/"}}, "not_possible"},
		"method":        {echoes, Called{Request: Request{Method: "G T", Path: "/"}}, "bad_call"},
		"path":          {echoes, Called{Request: Request{Method: "GET", Path: "x"}}, "bad_call"},
		"path's space":  {echoes, Called{Request: Request{Method: "GET", Path: "/a HTTP/1.0"}}, "bad_call"},
		"query's tab":   {echoes, Called{Request: Request{Method: "GET", Path: "/", Query: "a\tb"}}, "bad_call"},
		"header":        {echoes, Called{Request: Request{Method: "GET", Path: "/", Headers: [][2]string{{"a", "b\nc"}}}}, "bad_call"},
		"much metadata": {echoes, Called{Request: Request{Method: "GET", Path: "/" + strings.Repeat("a", MaxMeta)}}, "bad_call"},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, Config{}, func(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
				_, err := e.Call(ctx, &at.called)
				var f *Failure
				if !errors.As(err, &f) {
					return nil, err
				}
				return &fn.Answer{Body: strings.NewReader(f.Type)}, nil
			})
			r, err := c.Invoke(t.Context(), &Invocation{Caller: at.caller})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if got, _ := io.ReadAll(r.Body); string(got) != at.want {
				t.Errorf("told %q, want %q", got, at.want)
			}
		})
	}
}

// The function sends no CALL to an engine without calls: for an older engine CALL is malformed.
func TestCallWithoutEngine(t *testing.T) {
	c := serve(t, Config{}, forwards)
	_, err := c.Invoke(t.Context(), &Invocation{Caller: callerFunc(func(context.Context, *Called) (*Answer, error) {
		t.Error("called")
		return nil, nil
	}), Request: Request{Method: "GET", Path: "/"}})
	var f *Failure
	if !errors.As(err, &f) || f.Type != "not_possible" {
		t.Errorf("%v, want not_possible", err)
	}
}

// A call ends with its event, at any end of the event.
func TestCallEndsWithEvent(t *testing.T) {
	t.Setenv("FRE_CALLS", "32")
	fretest.CheckLeaks(t)
	for _, how := range []string{"answered", "cancelled", "the instance ends"} {
		t.Run(how, func(t *testing.T) {
			called, ended := make(chan struct{}), make(chan error, 1)
			caller := callerFunc(func(ctx context.Context, _ *Called) (*Answer, error) {
				close(called)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil, context.Cause(ctx)
			})
			c := serve(t, Config{}, func(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
				go func() {
					_, _ = e.Call(context.Background(), &Called{Function: "f", Request: Request{Method: "GET", Path: "/"}})
				}()
				<-called
				if how != "answered" {
					<-ctx.Done()
				}
				return nil, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-called
				switch how {
				case "cancelled":
					cancel()
				case "the instance ends":
					_ = c.Close()
				}
			}()
			r, err := c.Invoke(ctx, &Invocation{Caller: caller})
			if err == nil {
				_ = r.Body.Close()
			}
			if err := <-ended; err == nil {
				t.Error("the call ended without a reason")
			}
		})
	}
}

// An event has at most MostCalls calls at the same time. A call that ends makes room.
func TestCallsAtOnce(t *testing.T) {
	t.Setenv("FRE_CALLS", "32")
	var mu sync.Mutex
	under, most := 0, 0
	gate, begun := make(chan struct{}), make(chan struct{}, MostCalls+1)
	caller := callerFunc(func(ctx context.Context, _ *Called) (*Answer, error) {
		mu.Lock()
		under++
		most = max(most, under)
		mu.Unlock()
		begun <- struct{}{}
		<-gate
		mu.Lock()
		under--
		mu.Unlock()
		return &Answer{Status: 200}, nil
	})
	c := serve(t, Config{}, func(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
		outcomes := make(chan string, MostCalls+1)
		for range MostCalls + 1 {
			go func() {
				_, err := e.Call(ctx, &Called{Function: "f", Request: Request{Method: "GET", Path: "/"}})
				var f *Failure
				switch {
				case errors.As(err, &f):
					outcomes <- f.Type
				case err == nil:
					outcomes <- "ok"
				default:
					outcomes <- err.Error()
				}
			}()
		}
		all := []string{<-outcomes} // refused while the other calls wait
		for range MostCalls {
			<-begun
		}
		close(gate)
		for range MostCalls {
			all = append(all, <-outcomes)
		}
		if r, err := e.Call(ctx, &Called{Function: "f", Request: Request{Method: "GET", Path: "/"}}); err != nil || r.Status != 200 {
			return nil, fmt.Errorf("afterwards: %w", err)
		}
		return &fn.Answer{Body: strings.NewReader(strings.Join(all, " "))}, nil
	})
	r, err := c.Invoke(t.Context(), &Invocation{Caller: caller})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	got, _ := io.ReadAll(r.Body)
	if want := "too_many_calls" + strings.Repeat(" ok", MostCalls); string(got) != want || most != MostCalls {
		t.Errorf("%s, %d at once; want %s, %d", got, most, want, MostCalls)
	}
}

// byHand plays a function by hand: READY is sent, and event 1 is under way.
func byHand(t *testing.T, caller Caller) (c *Conn, conn *net.UnixConn) {
	t.Helper()
	a, b := pair(t)
	c = NewConn(a, Config{Memory: memory(t)})
	t.Cleanup(func() { _ = c.Close() })
	p, _ := json.Marshal(Ready{Protocol: 1})
	say(t, b, wire.KindReady, 0, 0, p)
	go func() { _, _ = c.Invoke(t.Context(), &Invocation{Caller: caller}) }()
	if h, _, err := reader(t, b).Next(); err != nil || h.Kind != wire.KindInvoke {
		t.Fatal(h, err)
	}
	return c, b
}

func say(t *testing.T, b net.Conn, k wire.Kind, flags uint8, id uint64, p []byte) {
	t.Helper()
	if _, err := b.Write(append(wire.Header{Len: len(p), Kind: k, Flags: flags, ID: id}.Append(nil), p...)); err != nil {
		t.Logf("write: %v", err) // the engine has hung up
	}
}

func callPayload(of uint64, c Called) []byte {
	meta := (&wire.CallMeta{Of: of, Called: c}).Append(nil)
	return append([]byte{byte(len(meta)), byte(len(meta) >> 8), byte(len(meta) >> 16), 0}, meta...)
}

// TestCallMalformed: a malformed frame about calls ends the channel.
func TestCallMalformed(t *testing.T) {
	good := callPayload(1, Called{Function: "f", Request: Request{Method: "GET", Path: "/"}})
	type frame struct {
		kind  wire.Kind
		flags uint8
		id    uint64
		p     []byte
	}
	first := frame{wire.KindCall, wire.FlagMore, FirstCall, good}
	for name, frames := range map[string][]frame{
		"number of an event":    {{wire.KindCall, 0, 1, good}},
		"number twice":          {first, {wire.KindCall, 0, FirstCall, good}},
		"number goes back":      {{wire.KindCall, 0, FirstCall + 9, good}, {wire.KindCall, 0, FirstCall + 8, good}},
		"of no event":           {{wire.KindCall, 0, FirstCall, callPayload(7, Called{Request: Request{Method: "GET", Path: "/"}})}},
		"no JSON":               {{wire.KindCall, 0, FirstCall, []byte{1, 0, 0, 0, '{'}}},
		"method":                {{wire.KindCall, 0, FirstCall, callPayload(1, Called{Request: Request{Method: "", Path: "/"}})}},
		"path":                  {{wire.KindCall, 0, FirstCall, callPayload(1, Called{Request: Request{Method: "GET", Path: "/a\r\nb"}})}},
		"path's space":          {{wire.KindCall, 0, FirstCall, callPayload(1, Called{Request: Request{Method: "GET", Path: "/a b"}})}},
		"headers":               {{wire.KindCall, 0, FirstCall, callPayload(1, Called{Request: Request{Method: "GET", Path: "/", Headers: slices.Repeat([][2]string{{"a", "b"}}, MaxHeaders+1)}})}},
		"no file":               {{wire.KindCallFile, 0, FirstCall, good}},
		"data beyond window":    {first, {wire.KindData, wire.FlagMore, FirstCall, make([]byte, Window+1)}},
		"data after the end":    {first, {wire.KindData, 0, FirstCall, nil}, {wire.KindData, 0, FirstCall, nil}},
		"data of no call":       {{wire.KindData, 0, FirstCall + 1, nil}},
		"answer of a call":      {first, {wire.KindResponse, 0, FirstCall, good}},
		"window of three bytes": {first, {wire.KindWindow, 0, FirstCall, []byte{1, 2, 3}}},
		"cancel of an event":    {{wire.KindCancel, 0, 1, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			c, b := byHand(t, callerFunc(func(ctx context.Context, _ *Called) (*Answer, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}))
			for _, f := range frames {
				say(t, b, f.kind, f.flags, f.id, f.p)
			}
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v, want %v", err, ErrProtocol)
			}
		})
	}
}

// If the file of a call's body becomes shorter, the call breaks off and the file is closed.
func TestCallFileShrinks(t *testing.T) {
	fretest.CheckLeaks(t)
	file := memfd(t, pattern(1000), 0)
	read := make(chan error, 1)
	_, b := byHand(t, callerFunc(func(_ context.Context, c *Called) (*Answer, error) {
		if err := file.Truncate(500); err != nil {
			return nil, err
		}
		_, err := io.ReadAll(c.Body)
		read <- err
		return nil, err
	}))
	p := append(callPayload(1, Called{Function: "f", Request: Request{Method: "GET", Path: "/"}}), (&wire.FileMeta{Length: 1000}).JSON()...)
	h := wire.Header{Len: len(p), Kind: wire.KindCallFile, FDs: 1, ID: FirstCall}
	if _, _, err := b.WriteMsgUnix(append(h.Append(nil), p...), unix.UnixRights(int(file.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read: %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if h, _, err := reader(t, b).Next(); err != nil || h.Kind != wire.KindError || h.ID != FirstCall {
		t.Errorf("told %+v, %v; want ERROR", h, err)
	}
}

// A call of an ended event is refused together with the rest of its body. The channel continues.
func TestCallAfterEvent(t *testing.T) {
	c, b := byHand(t, callerFunc(func(context.Context, *Called) (*Answer, error) {
		t.Error("called")
		return &Answer{Status: 200}, nil
	}))
	answer := append([]byte{byte(len(`{"status":200,"headers":[]}`)), 0, 0, 0}, `{"status":200,"headers":[]}`...)
	say(t, b, wire.KindResponse, 0, 1, answer)
	say(t, b, wire.KindCall, wire.FlagMore, FirstCall, callPayload(1, Called{Function: "f", Request: Request{Method: "GET", Path: "/"}}))
	say(t, b, wire.KindData, 0, FirstCall, pattern(10))
	h, p, err := reader(t, b).Next()
	if err != nil || h.Kind != wire.KindError || h.ID != FirstCall || !bytes.Contains(p, []byte("cancelled")) {
		t.Errorf("told %+v %s, %v; want ERROR", h, p, err)
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

// The engine ends the channel of a function that sends a flood of calls and reads no answers.
func TestCallFlood(t *testing.T) {
	c, b := byHand(t, callerFunc(func(ctx context.Context, _ *Called) (*Answer, error) {
		return &Answer{Status: 200, Body: strings.NewReader(strings.Repeat("x", wire.Chunk)), Length: wire.Chunk}, nil
	}))
	p := callPayload(1, Called{Function: "f", Request: Request{Method: "GET", Path: "/"}})
	for id := uint64(FirstCall); ; id++ {
		if _, err := b.Write(append(wire.Header{Len: len(p), Kind: wire.KindCall, ID: id}.Append(nil), p...)); err != nil {
			break
		}
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v, want %v", err, ErrProtocol)
	}
}

// FuzzCall: any frames about calls from a function cause no panic and leave no goroutine in the
// engine.
func FuzzCall(f *testing.F) {
	good := callPayload(1, Called{Function: "f", Request: Request{Method: "GET", Path: "/", Headers: [][2]string{{"a", "b"}}}})
	f.Add(wire.Header{Len: len(good), Kind: wire.KindCall, ID: FirstCall}.Append(nil), good)
	f.Add(append(append(wire.Header{Len: len(good), Kind: wire.KindCall, Flags: wire.FlagMore, ID: FirstCall}.Append(nil), good...), wire.Header{Kind: wire.KindData, ID: FirstCall}.Append(nil)...), []byte{})
	f.Add(append(append(wire.Header{Len: len(good), Kind: wire.KindCall, ID: FirstCall}.Append(nil), good...), wire.Header{Kind: wire.KindCancel, ID: FirstCall}.Append(nil)...), []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		ours, theirs := pair(t)
		c := NewConn(ours, Config{})
		p, _ := json.Marshal(Ready{Protocol: 1})
		_, _ = theirs.Write(append(wire.Header{Len: len(p), Kind: wire.KindReady}.Append(nil), p...))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if r, err := c.Invoke(t.Context(), &Invocation{Caller: echoes}); err == nil {
				_ = r.Body.Close()
			}
		}()
		if _, _, err := reader(t, theirs).Next(); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		_, _ = theirs.Write(a)
		_, _ = theirs.Write(b)
		_ = theirs.CloseWrite()
		<-done
		_ = c.Close()
		_ = theirs.Close()
	})
}

// FuzzCallMeta: both ways to read the metadata of CALL give the same result.
func FuzzCallMeta(f *testing.F) {
	f.Add([]byte(`{"of":1,"function":"f","method":"GET","path":"/","query":"","headers":[["a","b"]]}`))
	f.Add([]byte(`{"of":-1}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		var m wire.CallMeta
		if m.Parse(p) != nil || m.Check() != nil {
			return
		}
		var again wire.CallMeta
		if err := again.Parse(m.Append(nil)); err != nil {
			t.Fatalf("%q, written again: %v", p, err)
		}
		if len(m.Headers) == 0 {
			m.Headers, again.Headers = nil, nil
		}
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(wire.CallMeta{})); diff != "" {
			t.Error(diff)
		}
	})
}
