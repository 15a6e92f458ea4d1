package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fn "github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/channel/wire"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/internal/fretest"
)

// pair returns both ends of a socketpair.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	return fretest.SocketPair(t, unix.SOCK_STREAM)
}

// reader reads the frames that arrive at conn.
func reader(t testing.TB, conn *net.UnixConn) *wire.Reader {
	t.Helper()
	r, err := wire.NewReader(conn)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// serve connects a Conn to handler and checks that Serve ends well.
func serve(t testing.TB, cfg Config, handler fn.Handler) *Conn {
	t.Helper()
	a, b := pair(t)
	served := make(chan error, 1)
	go func() {
		served <- fn.Serve(context.Background(), b, Ready{Runtime: "go", Concurrency: 8}, handler)
	}()
	if cfg.Memory == nil {
		cfg.Memory = memory(t)
	}
	c := NewConn(a, cfg)
	t.Cleanup(func() {
		_ = c.Close()
		if err := <-served; err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, err := c.Ready(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Ready{Protocol: 1, Runtime: "go", Concurrency: 8}, r); diff != "" {
		t.Fatal(diff)
	}
	return c
}

// memory hands out buffers that must be returned before the end of the test.
func memory(t testing.TB) func(size int) (Buffer, error) {
	t.Helper()
	pool := fretest.Buffers(t, 64<<20)
	return func(size int) (Buffer, error) { return buffer.Memory{Pool: pool}.Acquire(size, 0) }
}

func echo(_ context.Context, e *fn.Event) (*fn.Answer, error) {
	return &fn.Answer{Status: 201, Headers: e.Headers, Body: e.Body}, nil
}

// pattern returns n bytes whose period differs from the size of every buffer.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

func TestEcho(t *testing.T) {
	c := serve(t, Config{}, echo)
	for _, size := range []int{0, 1, 100, inlineBody - 1, inlineBody, inlineBody + 1, wire.Chunk, Window + inlineBody, 8 << 20} {
		for _, kind := range []string{"sized", "unsized", "bytewise"} {
			if kind == "bytewise" && size > 100<<10 {
				continue
			}
			t.Run(fmt.Sprintf("%s %d", kind, size), func(t *testing.T) {
				want := pattern(size)
				var body io.Reader = bytes.NewReader(want)
				switch kind {
				case "unsized":
					body = io.MultiReader(body)
				case "bytewise":
					body = oneByte{body}
				}
				finished := make(chan struct{})
				r, err := c.Invoke(t.Context(), &Invocation{
					Request: Request{Headers: [][2]string{{"X-A", "ü\t"}}, Body: body}, Finished: func() { close(finished) },
				})
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Body.Close(); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%d bytes came back, not the %d sent", len(got), len(want))
				}
				if r.Status != 201 {
					t.Errorf("status %d", r.Status)
				}
				if diff := cmp.Diff([][2]string{{"X-A", "ü\t"}}, r.Headers); diff != "" {
					t.Error(diff)
				}
				<-finished
			})
		}
	}
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

func TestMetadata(t *testing.T) {
	events := make(chan Invocation, 1)
	c := serve(t, Config{}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		events <- e.Invocation
		return nil, nil
	})
	want := Invocation{
		Function: "f", ID: "abc", Tenant: "t", DeadlineMS: time.Now().Add(time.Hour).UnixMilli(),
		Request: Request{Method: "POST", Path: "/a b", Query: "x=1&y=%20", Headers: [][2]string{{"a", "b"}, {"a", "c"}}},
	}
	r, err := c.Invoke(t.Context(), &want)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != 204 || r.Length != 0 {
		t.Errorf("status %d, length %d, want 204 and 0", r.Status, r.Length)
	}
	got := <-events
	got.Body = nil // the function's end makes one
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestManyAtOnce(t *testing.T) {
	c := serve(t, Config{}, echo)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			want := pattern(i * 7001)
			r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Body: bytes.NewReader(want)}})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(r.Body)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
}

func TestFailure(t *testing.T) {
	boom := &Failure{Type: "Boom", Message: "no", Stack: "at x"}
	half := &Failure{Type: "Half", Message: "way"}
	c := serve(t, Config{}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		if e.Path == "/half" {
			return &fn.Answer{Body: io.MultiReader(bytes.NewReader(pattern(300<<10)), failing{half})}, nil
		}
		return nil, boom
	})
	_, err := c.Invoke(t.Context(), &Invocation{})
	var f *Failure
	if !errors.As(err, &f) {
		t.Fatalf("got %v, want a Failure", err)
	}
	if diff := cmp.Diff(boom, f); diff != "" {
		t.Error(diff)
	}
	r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: "/half"}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Length != -1 {
		t.Errorf("length %d of a body that is coming", r.Length)
	}
	got, err := io.ReadAll(r.Body)
	if !errors.As(err, &f) || f.Type != "Half" || len(got) != 300<<10 {
		t.Errorf("got %d bytes and %v, want all and Half", len(got), err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestCancel(t *testing.T) {
	started := make(chan struct{}, 1)
	ended := make(chan error, 1)
	c := serve(t, Config{}, func(ctx context.Context, e *fn.Event) (*fn.Answer, error) {
		if e.Path == "/echo" {
			return echo(ctx, e)
		}
		if e.Path == "/stream" {
			return &fn.Answer{Body: endless{ctx, ended}}, nil
		}
		started <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	cause := errors.New("client gone")

	t.Run("before the answer", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-started
			cancel(cause)
		}()
		finished := make(chan struct{})
		_, err := c.Invoke(ctx, &Invocation{Finished: func() { close(finished) }})
		if !errors.Is(err, cause) {
			t.Errorf("got %v, want the cause", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("handler's context: %v", err)
		}
		<-finished
	})
	t.Run("in the body", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		finished := make(chan struct{})
		r, err := c.Invoke(ctx, &Invocation{Request: Request{Path: "/stream"}, Finished: func() { close(finished) }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, r.Body, 1<<20); err != nil {
			t.Fatal(err)
		}
		cancel(cause)
		if _, err := io.Copy(io.Discard, r.Body); !errors.Is(err, cause) {
			t.Errorf("got %v, want the cause", err)
		}
		<-finished
	})
	t.Run("close in the body", func(t *testing.T) {
		finished := make(chan struct{})
		r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: "/stream"}, Finished: func() { close(finished) }})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Body.Close(); err != nil {
			t.Fatal(err)
		}
		<-finished
		if _, err := r.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("read after Close: %v", err)
		}
	})
	t.Run("request body fails", func(t *testing.T) {
		body := io.MultiReader(bytes.NewReader(pattern(100<<10)), failing{cause})
		r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: "/echo", Body: body}})
		if err == nil { // the echo began before the body failed
			_, err = io.Copy(io.Discard, r.Body)
		}
		if !errors.Is(err, cause) {
			t.Errorf("got %v, want the body's error", err)
		}
	})
	t.Run("ended before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		finished := false
		_, err := c.Invoke(ctx, &Invocation{Finished: func() { finished = true }})
		if !errors.Is(err, cause) || !finished {
			t.Errorf("got %v, finished %v, want the cause and true", err, finished)
		}
	})
	t.Run("the channel lives", func(t *testing.T) {
		r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: "/echo", Body: strings.NewReader("x")}})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r.Body); string(b) != "x" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

type endless struct {
	ctx   context.Context
	ended chan error
}

func (e endless) Read(p []byte) (int, error) { return len(p), nil }

func TestStop(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{})
	c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) {
		close(started)
		<-release
		return &fn.Answer{Body: bytes.NewReader(pattern(1 << 20))}, nil
	})
	go func() {
		<-started
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		close(release)
	}()
	r, err := c.Invoke(t.Context(), &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r.Body); n != 1<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	<-c.Done()
	if !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("Err: %v", c.Err())
	}
	if _, err := c.Invoke(t.Context(), &Invocation{}); !errors.Is(err, ErrClosed) {
		t.Errorf("invoke after the end: %v", err)
	}
}

func TestLog(t *testing.T) {
	var mu sync.Mutex
	var got []string
	c := serve(t, Config{Log: func(id, level, message string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, id+" "+level+" "+message)
	}}, func(_ context.Context, e *fn.Event) (*fn.Answer, error) {
		return nil, errors.Join(e.Log("info", "a"), e.Log("error", "b"))
	})
	if _, err := c.Invoke(t.Context(), &Invocation{ID: "i1"}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"i1 info a", "i1 error b"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestLogPace: a dropped LOG frame is not decoded. The reader waits before the next frame as long
// as LogPace says, but not after the end of the channel.
func TestLogPace(t *testing.T) {
	fretest.CheckLeaks(t)
	a, b := pair(t)
	var got []string
	var sizes []int
	paced := make(chan struct{})
	c := NewConn(a, Config{
		Log: func(_, _, message string) { got = append(got, message) },
		LogPace: func(bytes int) (drop bool, wait time.Duration) {
			switch sizes = append(sizes, bytes); len(sizes) {
			case 2:
				return true, 0
			case 4:
				defer close(paced)
				return true, time.Hour
			}
			return false, 0
		},
	})
	long := strings.Repeat("no JSON", 1000)
	if _, err := io.WriteString(b, frame(9, 0, 0, `{"message":"a"}`)+frame(9, 0, 0, long)+frame(9, 0, 0, `{"message":"b"}`)+frame(9, 0, 0, "")); err != nil {
		t.Fatal(err)
	}
	<-paced
	if err := c.Close(); err != nil { // does not wait for an hour
		t.Fatal(err)
	}
	if err := c.Err(); !errors.Is(err, ErrClosed) || errors.Is(err, ErrProtocol) {
		t.Errorf("ended by %v", err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{15, len(long), 15, 0}, sizes); diff != "" {
		t.Errorf("asked of frames of so many bytes (-want +got):\n%s", diff)
	}
	_ = b.Close()
}

// frame encodes one frame by hand, in the layout of the protocol's page.
func frame(k, flags byte, id uint64, payload string) string {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = append(b, k, flags, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, id)
	return string(b) + payload
}

func withMeta(meta, body string) string {
	return string(binary.LittleEndian.AppendUint32(nil, uint32(len(meta)))) + meta + body
}

const readyJSON = `{"protocol":1,"runtime":"x","concurrency":1}`

var malformed = map[string]string{
	"too long":               "\xff\xff\xff\xff\x04\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
	"one byte too long":      "\x01\x00\x10\x00\x04\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
	"fds":                    "\x00\x00\x00\x00\x05\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00",
	"kind 0":                 frame(0, 0, 1, ""),
	"kind FD":                frame(0x20, 0, 1, ""),
	"unknown flag":           frame(5, 2, 1, "x"),
	"MORE on ERROR":          frame(6, 1, 1, "{}"),
	"INVOKE":                 frame(3, 0, 1, withMeta("{}", "")),
	"CANCEL":                 frame(7, 0, 1, ""),
	"STOP with bytes":        frame(10, 0, 0, "x"),
	"PARKED":                 frame(11, 0, 0, ""),
	"LOAD":                   frame(12, 0, 0, "{}"),
	"READY again":            frame(1, 0, 0, readyJSON),
	"FAILED after READY":     frame(2, 0, 0, "{}"),
	"READY with id":          frame(1, 0, 1, readyJSON),
	"DATA first":             frame(5, 0, 1, "x"),
	"unknown id":             frame(4, 0, 2, withMeta(`{"status":200}`, "")),
	"id 0":                   frame(4, 0, 0, withMeta(`{"status":200}`, "")),
	"RESPONSE twice":         strings.Repeat(frame(4, 1, 1, withMeta(`{"status":200}`, "")), 2),
	"RESPONSE without meta":  frame(4, 0, 1, "\x00\x00"),
	"meta past the payload":  frame(4, 0, 1, "\x05\x00\x00\x00{}"),
	"meta huge":              frame(4, 0, 1, "\xff\xff\xff\xff{}"),
	"meta no JSON":           frame(4, 0, 1, withMeta("{", "")),
	"meta too long":          frame(4, 0, 1, withMeta(`{"status":200,"x":"`+strings.Repeat("y", MaxMeta)+`"}`, "")),
	"status missing":         frame(4, 0, 1, withMeta(`{}`, "")),
	"status 100":             frame(4, 0, 1, withMeta(`{"status":100}`, "")),
	"status 600":             frame(4, 0, 1, withMeta(`{"status":600}`, "")),
	"status text":            frame(4, 0, 1, withMeta(`{"status":"200"}`, "")),
	"header of one":          frame(4, 0, 1, withMeta(`{"status":200,"headers":[["a"]]}`, "")),
	"header of three":        frame(4, 0, 1, withMeta(`{"status":200,"headers":[["a","b","c"]]}`, "")),
	"header name empty":      frame(4, 0, 1, withMeta(`{"status":200,"headers":[["","b"]]}`, "")),
	"header name with colon": frame(4, 0, 1, withMeta(`{"status":200,"headers":[["a:","b"]]}`, "")),
	"header value with CRLF": frame(4, 0, 1, withMeta(`{"status":200,"headers":[["a","b\r\nc: d"]]}`, "")),
	"too many headers":       frame(4, 0, 1, withMeta(`{"status":200,"headers":[["a","b"]`+strings.Repeat(`,["a","b"]`, MaxHeaders)+`]}`, "")),
	"DATA beyond the window": frame(4, 1, 1, withMeta(`{"status":200}`, "")) + frame(5, 1, 1, strings.Repeat("x", Window+1)),
	"WINDOW of three bytes":  frame(8, 0, 1, "xxx"),
	"WINDOW of no event":     frame(8, 0, 0, "xxxx"),
	"WINDOW of the future":   frame(8, 0, 2, "xxxx"),
	"WINDOW overflow":        frame(8, 0, 1, "\xff\xff\xff\xff") + frame(8, 0, 1, "\xff\xff\xff\xff"),
	"ERROR no JSON":          frame(6, 0, 1, "x"),
	"LOG no JSON":            frame(9, 0, 1, "x"),
	"LOG of the future":      frame(9, 0, 2, `{"level":"info","message":"x"}`),
	"after the end":          frame(4, 0, 1, withMeta(`{"status":200}`, "")) + frame(5, 0, 1, "x"),
}

// TestWindowCrossesEnd: a function may grant more of a request's body after the last frame of the
// answer. Later events continue.
func TestWindowCrossesEnd(t *testing.T) {
	c, function := raw(t)
	for id := range uint64(3) {
		reply := answerBegins(t, c, function, id+1)
		write(t, function, frame(byte(wire.KindData), 0, id+1, "end")+frame(byte(wire.KindWindow), 0, 1, "\x00\x00\x01\x00"))
		if got, err := io.ReadAll(reply.Body); err != nil || string(got) != "end" {
			t.Errorf("event %d: %q, %v", id+1, got, err)
		}
		if err := reply.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

func TestMalformed(t *testing.T) {
	for name, raw := range malformed {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			c := NewConn(a, Config{})
			defer func() { _ = c.Close() }()
			got := make(chan error, 1)
			var finished atomic.Int32
			go func() {
				r, err := c.Invoke(context.Background(), &Invocation{Finished: func() { finished.Add(1) }})
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
				}
				got <- err
			}()
			if _, _, err := reader(t, b).Next(); err != nil { // INVOKE has arrived
				t.Fatal(err)
			}
			// The engine may hang up during the write.
			_, _ = io.WriteString(b, frame(1, 0, 0, readyJSON)+raw)
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
			if err := <-got; name != "after the end" && !errors.Is(err, ErrProtocol) {
				t.Errorf("Invoke: %v, want ErrProtocol", err)
			}
			if _, err := io.Copy(io.Discard, b); err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Error(err)
			}
			_ = b.Close()
			_ = c.Close()
			if n := finished.Load(); n != 1 {
				t.Errorf("Finished was called %d times", n)
			}
		})
	}
}

func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		raw  string
		want error
	}{
		"at once":         {"", ErrClosed},
		"inside a header": {"\x00\x00", ErrClosed},
		"inside a frame":  {frame(1, 0, 0, readyJSON)[:20], ErrClosed},
		"before READY":    {frame(9, 0, 0, `{"level":"info","message":"x"}`), ErrClosed},
		"version 2":       {frame(1, 0, 0, `{"protocol":2}`), ErrProtocol},
		"early RESPONSE":  {frame(4, 0, 1, withMeta(`{"status":200}`, "")), ErrProtocol},
		"FAILED":          {frame(2, 0, 0, `{"type":"SyntaxError","message":"bad","stack":"x"}`), &Failure{Type: "SyntaxError", Message: "bad", Stack: "x", Load: true}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			c := NewConn(a, Config{})
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(b, tt.raw)
			_ = b.Close()
			_, err := c.Ready(t.Context())
			var f *Failure
			if errors.As(tt.want, &f) {
				if diff := cmp.Diff(tt.want, err); diff != "" {
					t.Error(diff)
				}
			} else if !errors.Is(err, tt.want) {
				t.Errorf("Ready: %v, want %v", err, tt.want)
			}
			if _, err := c.Invoke(t.Context(), &Invocation{}); !errors.Is(err, c.Err()) {
				t.Errorf("Invoke: %v, want %v", err, c.Err())
			}
		})
	}
}

// A function that never reads blocks no caller: Invoke returns when the context ends, even if the
// socket is full.
func TestFunctionDoesNotRead(t *testing.T) {
	a, b := pair(t)
	defer func() { _ = b.Close() }()
	c := NewConn(a, Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("time-out")
	var wg sync.WaitGroup
	var begun sync.WaitGroup
	for range 40 {
		begun.Add(1)
		wg.Go(func() {
			body := signalEOF{bytes.NewReader(pattern(inlineBody)), sync.OnceFunc(begun.Done)}
			if _, err := c.Invoke(ctx, &Invocation{Request: Request{Body: body}}); !errors.Is(err, cause) {
				t.Errorf("got %v, want the cause", err)
			}
		})
	}
	begun.Wait()
	cancel(cause)
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

type signalEOF struct {
	r   io.Reader
	eof func()
}

func (s signalEOF) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil {
		s.eof()
	}
	return n, err
}

// The engine holds a limited part of an unread body.
func TestSlowReader(t *testing.T) {
	var sent atomic.Int64
	c := serve(t, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) {
		return &fn.Answer{Body: io.LimitReader(counting{&sent}, 8<<20)}, nil
	})
	r, err := c.Invoke(t.Context(), &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	// Another invocation passes while the first body waits.
	r2, err := c.Invoke(t.Context(), &Invocation{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r2.Body); n != 8<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n := sent.Load() - 8<<20; n > Window+2*wire.Chunk {
		t.Errorf("the function sent %d bytes of an unread body, the window is %d", n, Window)
	}
	if n, err := io.Copy(io.Discard, r.Body); n != 8<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type counting struct{ n *atomic.Int64 }

func (c counting) Read(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// park connects a Conn to a function that will be parked.
func park(t *testing.T) (*Conn, *net.UnixConn) {
	t.Helper()
	a, b := pair(t)
	c := NewConn(a, Config{Parked: true})
	t.Cleanup(func() { _, _ = c.Close(), b.Close() })
	return c, b
}

func TestParked(t *testing.T) {
	c, b := park(t)
	if _, err := io.WriteString(b, frame(11, 0, 0, "")); err != nil {
		t.Fatal(err)
	}
	if err := c.Parked(t.Context()); err != nil {
		t.Fatal(err)
	}
	long := &Load{Handler: "h", Env: map[string]string{"A": strings.Repeat("x", MaxMeta)}}
	if err := c.Load(t.Context(), long); !errors.Is(err, ErrMetaTooLarge) {
		t.Errorf("got %v, want ErrMetaTooLarge", err)
	}
	want := Load{Handler: "m.h", Dir: "/function", Env: map[string]string{"A": "b=c", "D": ""}}
	if err := c.Load(t.Context(), &want); err != nil {
		t.Fatal(err)
	}
	h, p, err := reader(t, b).Next()
	if err != nil || h.Kind != wire.KindLoad {
		t.Fatalf("got frame %+v, %v", h, err)
	}
	var got Load
	if err := json.Unmarshal(p, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := io.WriteString(b, frame(1, 0, 0, readyJSON)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestParkedMalformed(t *testing.T) {
	for name, raw := range map[string]string{
		"READY before PARKED": frame(1, 0, 0, readyJSON),
		"READY before LOAD":   frame(11, 0, 0, "") + frame(1, 0, 0, readyJSON),
		"PARKED twice":        frame(11, 0, 0, "") + frame(11, 0, 0, ""),
		"PARKED with more":    frame(11, 0, 0, "x"),
		"PARKED for an event": frame(11, 0, 1, ""),
		"LOAD":                frame(12, 0, 0, "{}"),
		"RESPONSE":            frame(11, 0, 0, "") + frame(4, 0, 1, withMeta(`{"status":200,"headers":[]}`, "")),
	} {
		c, b := park(t)
		_, _ = io.WriteString(b, raw) // the engine may hang up during the write
		<-c.Done()
		if err := c.Err(); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: got %v, want ErrProtocol", name, err)
		}
	}
}

func FuzzConn(f *testing.F) {
	for _, raw := range malformed {
		f.Add([]byte(raw))
	}
	f.Add([]byte(frame(4, 1, 1, withMeta(`{"status":200,"headers":[["a","b"]]}`, "x")) + frame(5, 0, 1, "y")))
	f.Add([]byte(frame(11, 0, 0, "")))
	f.Add([]byte(frame(4, 0, 1, withMeta(`{"status":200}`, "")) + frame(8, 0, 1, "xxxx")))
	for i := range 6 {
		f.Add([]byte(frame(4, 1, 1, withMeta(`{"status":200}`, strings.Repeat("x", i))) + frame(0x23, 0, 1, "") + frame(5, 0, 1, "y") + frame(0x23, 0, 1, "12345678")))
	}
	for i := range 3 {
		f.Add([]byte(frame(4, 1, 1, withMeta(`{"status":200}`, "")) + frame(5, 1, 1, strings.Repeat("x", wire.Chunk)) + frame(5, 0, 1, strings.Repeat("x", wire.Chunk-i))))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b := pair(t)
		m := &counted{most: 128 << 10}
		c := NewConn(a, Config{Parked: len(raw)%2 == 0, Memory: m.acquire})
		got := make(chan struct{})
		go func() {
			defer close(got)
			if r, err := c.Invoke(context.Background(), &Invocation{Request: Request{Socket: len(raw)%3 == 0}}); err == nil {
				if _, err = io.Copy(io.Discard, r.Body); errors.Is(err, ErrSocketWanted) {
					_, _ = r.Lend(nil)
					_, _ = io.Copy(io.Discard, r.Body)
				}
				_ = r.Body.Close()
			}
		}()
		_, _ = b.Write(append([]byte(frame(1, 0, 0, readyJSON)), raw...))
		_ = b.CloseWrite()
		_, _ = io.Copy(io.Discard, b)
		<-c.Done()
		<-got
		if err := c.Err(); !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrClosed) {
			t.Errorf("unexpected end: %v", err)
		}
		_ = c.Close()
		_ = b.Close()
		if n := m.used.Load(); n != 0 {
			t.Errorf("%d bytes are still in use", n)
		}
	})
}

// BenchmarkEcho100: BenchmarkEcho100 measures one event of 100 bytes each way over a socketpair,
// with both ends in this process.
func BenchmarkEcho100(b *testing.B) {
	c := serve(b, Config{}, echo)
	body := pattern(100)
	b.ReportAllocs()
	buf := make([]byte, 200)
	for b.Loop() {
		r, err := c.Invoke(b.Context(), &Invocation{Function: "f", Request: Request{Method: "POST", Path: "/", Body: bytes.NewReader(body)}})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.ReadFull(r.Body, buf); n != 100 {
			b.Fatal(n, err)
		}
		_ = r.Body.Close()
	}
}

func BenchmarkEcho8MiB(b *testing.B) {
	c := serve(b, Config{}, echo)
	body := pattern(8 << 20)
	b.SetBytes(8 << 20)
	for b.Loop() {
		r, err := c.Invoke(b.Context(), &Invocation{Request: Request{Body: bytes.NewReader(body)}})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r.Body); n != 8<<20 {
			b.Fatal(n, err)
		}
		_ = r.Body.Close()
	}
}

// TestCoalescedEvents: each of many simultaneous events gets its own answer, even if some events
// are large or cancelled, or run when the channel ends.
func TestCoalescedEvents(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := serve(t, Config{}, echo)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for n := range 100 {
				size := (i*100 + n) * 7919 % 100_000
				if n%10 > 0 {
					size %= 8 << 10 // frames of up to 4 KiB are sent together
				}
				ctx, cancel := context.WithCancel(t.Context())
				if n%7 == 0 {
					go cancel()
				}
				body := pattern(size)
				r, err := c.Invoke(ctx, &Invocation{Request: Request{Path: "/", Body: bytes.NewReader(body)}})
				if err == nil {
					var got []byte
					if got, err = io.ReadAll(r.Body); err == nil && !bytes.Equal(got, body) {
						t.Errorf("%d bytes came back of %d, or others", len(got), len(body))
					}
					_ = r.Body.Close()
				}
				if err != nil && (n%7 > 0 || !errors.Is(err, context.Canceled)) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for range 32 {
		wg.Go(func() {
			for {
				r, err := c.Invoke(t.Context(), &Invocation{Request: Request{Path: "/"}})
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				_ = r.Body.Close()
			}
		})
	}
	time.Sleep(50 * time.Millisecond) //nolint:forbidigo // they are at it
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestSameMetadata: an answer's headers do not depend on the answer before. Status 101 is an answer
// only to an event that asked for another protocol.
func TestSameMetadata(t *testing.T) {
	var c Conn
	for _, tc := range []struct {
		meta    string
		upgrade bool
		status  int
		header  string
	}{
		{`{"status":200,"headers":[["a","b"]]}`, false, 200, "b"},
		{`{"status":200,"headers":[["a","b"]]}`, false, 200, "b"},
		{`{"status":101,"headers":[["a","c"]]}`, true, 101, "c"},
		{`{"status":101,"headers":[["a","c"]]}`, false, 0, ""},
		{`{"status":200,"headers":[["a","b"]]}`, true, 200, "b"},
		{`{"status":201,"headers":[["a","b"]]}`, false, 201, "b"},
		{`{"status":201,"headers":[["a","` + strings.Repeat("x", maxUsual) + `"]]}`, false, 201, strings.Repeat("x", maxUsual)},
		{`{"status":201,"headers":[["a","b"]]}`, false, 201, "b"},
		{``, false, 0, ""},
	} {
		m, err := c.responseMeta([]byte(tc.meta), tc.upgrade)
		if tc.status == 0 {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%.50s: error %v", tc.meta, err)
			}
			continue
		}
		if err != nil || m.Status != tc.status || len(m.Headers) != 1 || m.Headers[0] != [2]string{"a", tc.header} {
			t.Errorf("%.50s: %.50v, %v", tc.meta, m, err)
		}
	}
}
