// Package function is for functions written in Go. It implements their end of the function
// channel (docs/protocol.md). A program whose main is
//
//	func main() { function.Handle(greet) }
//
//	func greet(ctx context.Context, e function.Event) (any, error) {
//		name, err := e.Bytes()
//		return map[string]string{"hello": string(name)}, err
//	}
//
// answers events, several at once if the template's instances.concurrency allows it. [Handler]
// lists the values that a handler may return. Package function/web serves an http.Handler. It is
// a separate package because net/http makes a program half again as large and slower to start.
//
// The package imports only the standard library and package channel.
package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/function/channel"
	"github.com/fre-engine/fre/function/internal/failure"
)

// Handler answers one event. Several goroutines call it if the function's concurrency is more
// than 1. ctx ends when the client has gone, at the event's deadline, and with the engine.
//
// It returns
//
//	nil                                     no content (status 204)
//	string                                  text/plain; charset=utf-8
//	[]byte                                  application/octet-stream
//	*Sealed                                 application/octet-stream, without a copy
//	*os.File                                application/octet-stream: a regular file from its offset to its end, else as an io.Reader
//	io.Reader                               application/octet-stream, piece by piece; closed if it is an io.Closer
//	iter.Seq2[[]byte, error]                application/octet-stream, piece by piece
//	iter.Seq2[string, error]                text/plain, piece by piece
//	Response                                status and headers around a value listed here
//	anything else                           application/json
//
// An error or a panic becomes the event's failure: the engine gets the type, the message and, for
// a panic, the stack. A stream that fails before its first piece is a failure too. A stream that
// fails later breaks the answer off.
type Handler func(ctx context.Context, e Event) (any, error)

// Event is one invocation of the function.
type Event struct {
	Function string    // name of the function
	ID       string    // public name of the event, as in the answer's X-Fre-Id
	Tenant   string    // owner of the sandbox
	Deadline time.Time // end of the event's time; zero if none

	Method   string
	Path     string // path after the function's name, escaped as by the client; begins with a slash
	RawQuery string
	Header   Header

	Body   io.Reader // valid until the answer has been sent
	Length int64     // bytes of Body, -1 while Body is still arriving
}

// Bytes reads the body to its end.
func (e Event) Bytes() ([]byte, error) {
	if e.Length >= 0 {
		b := make([]byte, e.Length)
		_, err := io.ReadFull(e.Body, b)
		return b, err
	}
	return io.ReadAll(e.Body)
}

// JSON decodes the body, one JSON value, into v.
func (e Event) JSON(v any) error {
	b, err := e.Bytes()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("the event's body: %w", err)
	}
	return nil
}

// Query parses the query string. Unlike url.ParseQuery it keeps every pair: a malformed escape
// stands for itself.
func (e Event) Query() url.Values {
	out := url.Values{}
	for pair := range strings.SplitSeq(e.RawQuery, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name = unescape(name)
		out[name] = append(out[name], unescape(value))
	}
	return out
}

func unescape(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '+':
			b = append(b, ' ')
		case '%':
			if i+2 < len(s) {
				if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
					b = append(b, byte(v))
					i += 2
					continue
				}
			}
			b = append(b, c)
		default:
			b = append(b, c)
		}
	}
	return strings.ToValidUTF8(string(b), "\ufffd")
}

// Header is a list of header fields, name and value, in order.
type Header [][2]string

// Get returns the value of name in any case, repeated fields joined by ", "; "" if absent.
func (h Header) Get(name string) string { return strings.Join(h.Values(name), ", ") }

// Values returns the values of all fields named name, in any case.
func (h Header) Values(name string) []string {
	var out []string
	for _, f := range h {
		if strings.EqualFold(f[0], name) {
			out = append(out, f[1])
		}
	}
	return out
}

// Exit statuses of a function's process, the same in every language.
const (
	exitFailed    = 1  // the function could not be loaded
	exitUsage     = 64 // EX_USAGE: not started by FRE
	exitMalformed = 70 // EX_SOFTWARE: the engine broke the protocol
)

// Handle serves h and does not return. The process exits when the engine stops it or has gone.
// Handle sets slog's default logger to the logger described at [Logger].
func Handle(h Handler) { Load(func() Handler { return h }) }

// Load is Handle with a handler still to be made. If load panics, the engine learns that the
// function could not be loaded, and why.
func Load(load func() Handler) {
	os.Exit(serve(load))
}

func serve(load func() Handler) int {
	conn, err := channel.Inherited()
	if err != nil {
		complain("this program is a function: it answers events of FRE's engine (fre deploy), which gives it a channel: %v", err)
		return exitUsage
	}
	_ = os.Unsetenv("FRE_CHANNEL") // keep the channel from child processes
	obeyMemoryLimit()
	slog.SetDefault(slog.New(&logHandler{}))

	begun := time.Now()
	var h Handler
	if f := failure.Catch(func() { h = load() }); f != nil {
		complain("%s", failure.Report(f))
		if err := channel.Fail(conn, f); err != nil {
			complain("%v", err)
		}
		return exitFailed
	}
	ready := channel.Ready{Runtime: runtimeName(), Concurrency: concurrency(), LoadMicros: time.Since(begun).Microseconds()}
	err = channel.Serve(context.Background(), conn, ready, func(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
		ctx = context.WithValue(ctx, eventKey{}, e)
		a, err := handle(ctx, h, e)
		if err != nil {
			f := failure.Of(err)
			if ctx.Err() == nil { // if ctx has ended, the client is gone
				complain("%s", failure.Report(f))
			}
			return nil, f
		}
		return a, nil
	})
	switch {
	case errors.Is(err, channel.ErrProtocol):
		complain("%v", err)
		return exitMalformed
	case err != nil:
		complain("%v", err)
		return exitFailed
	}
	return 0
}

// handle calls h. A panic returns as a failure.
func handle(ctx context.Context, h Handler, e *channel.Event) (*channel.Answer, error) {
	event := Event{
		Function: e.Function, ID: e.ID, Tenant: e.Tenant,
		Method: e.Method, Path: e.Path, RawQuery: e.Query, Header: e.Headers,
		Body: e.Body, Length: e.Length,
	}
	if e.DeadlineMS > 0 {
		event.Deadline = time.UnixMilli(e.DeadlineMS)
	}
	var value any
	var err error
	if f := failure.Catch(func() { value, err = h(ctx, event) }); f != nil {
		return nil, f
	}
	if err != nil {
		return nil, err
	}
	a, err := answerOf(value)
	if err != nil || a.Body == nil {
		return a, err
	}
	if _, short := a.Body.(interface{ Len() int }); !short {
		a.Body = &stream{ctx, a.Body}
	}
	return a, nil
}

// stream is a body whose errors become failures, as a handler's do.
type stream struct {
	ctx context.Context
	r   io.Reader
}

func (s *stream) Read(p []byte) (n int, err error) {
	if f := failure.Catch(func() { n, err = s.r.Read(p) }); f != nil {
		n, err = 0, f
	}
	if err == nil || err == io.EOF { //nolint:errorlint // a Reader's end is io.EOF itself
		return n, err
	}
	f := failure.Of(err)
	if s.ctx.Err() == nil {
		complain("%s", failure.Report(f))
	}
	return n, f
}

func (s *stream) Close() error {
	if c, ok := s.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func runtimeName() string { return "go " + strings.TrimPrefix(runtime.Version(), "go") }

// concurrency returns how many events the engine sends at once; each gets a goroutine.
func concurrency() int {
	n, err := strconv.Atoi(os.Getenv("FRE_CONCURRENCY"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// obeyMemoryLimit makes the garbage collector work harder before the sandbox's limit kills the
// process. A tenth is left for system calls' stacks, page tables and files in memory. A set
// GOMEMLIMIT stays in force. The engine sets GOMAXPROCS.
func obeyMemoryLimit() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if n, err := strconv.ParseInt(os.Getenv("FRE_MEMORY_BYTES"), 10, 64); err == nil && n > 0 {
		debug.SetMemoryLimit(n - n/10)
	}
}

func complain(format string, args ...any) { _, _ = fmt.Fprintf(os.Stderr, format+"\n", args...) }
