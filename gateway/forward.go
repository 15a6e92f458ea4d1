package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine"
)

// Invoker is what Forward needs of *engine.Engine.
type Invoker interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
}

// Event says what Forward makes of an HTTP request. All fields are required
// but Query.
type Event struct {
	Engine              Invoker
	Log                 *slog.Logger
	Function            string
	Method, Path, Query string
	MaxBodyBytes        int64
}

// BodyError says that the request's body could not be read: the client broke
// it off, or it is malformed.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "read request body: " + e.Err.Error() }
func (e *BodyError) Unwrap() error { return e.Err }

const (
	// lingering is how long a client may go on to send what nobody wants, so
	// that it reads the answer before it learns that the connection is closed.
	lingering = 500 * time.Millisecond
	// drained is how much of a body is read for the connection's sake.
	drained = 256 << 10
	// stalled is how long a client may take no byte of its answer.
	stalled = time.Minute
)

// Forward hands r's headers and body to a function and its answer to w. It
// returns an error, those of [engine.Engine.Invoke], *[http.MaxBytesError] and
// *[BodyError], only while nothing is sent. An answer that breaks off breaks
// the connection.
func Forward(w http.ResponseWriter, r *http.Request, ev Event) error {
	control := http.NewResponseController(w)
	req := &engine.Request{Method: ev.Method, Path: ev.Path, Query: ev.Query, Header: eventHeader(r), Size: r.ContentLength}
	body := &requestBody{ReadCloser: r.Body, control: control}
	switch {
	case r.ContentLength == 0:
		body.eof = true
	case r.ContentLength > ev.MaxBodyBytes:
		w.Header().Set("Connection", "close")
		return &http.MaxBytesError{Limit: ev.MaxBodyBytes}
	default:
		// The answer may begin before the body's end, and the engine alone reads
		// the body: net/http would discard what is left of it.
		if err := control.EnableFullDuplex(); err != nil {
			return err
		}
		req.Body = http.MaxBytesReader(w, body, ev.MaxBodyBytes)
		defer body.leave()
	}

	resp, err := ev.Engine.Invoke(r.Context(), ev.Function, req)
	if err != nil {
		if !body.drain() {
			w.Header().Set("Connection", "close")
		}
		return err
	}
	defer resp.Body.Close()
	h := w.Header()
	answerHeader(h, r.Method, resp)
	if !body.ended() { // its rest may come after the answer, or never
		h.Set("Connection", "close")
	}
	w.WriteHeader(resp.Status)
	bodyless := r.Method == http.MethodHead || resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified
	if err := copyBody(w, control, resp, bodyless); err != nil {
		ev.Log.DebugContext(r.Context(), "answer broken off", "function", ev.Function, "invocation", resp.ID, "error", err)
		// The status is out: breaking the connection is the only way left to
		// say that the body is not whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// hopByHop fields belong to one connection (RFC 9110 section 7.6.1), not to the
// message that travels over it.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// eventHeader lists a request's end-to-end headers, sorted by name.
func eventHeader(r *http.Request) [][2]string {
	drop := map[string]bool{}
	for _, v := range r.Header["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			drop[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	out := make([][2]string, 1, len(r.Header)+1)
	out[0] = [2]string{"Host", r.Host}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if hopByHop[name] || drop[name] {
			continue
		}
		for _, v := range r.Header[name] {
			out = append(out, [2]string{name, v})
		}
	}
	return out
}

// answerHeader sets what a function may say, and what the engine says itself:
// the length and X-Fre-*.
func answerHeader(h http.Header, method string, resp *engine.Response) {
	for _, f := range resp.Header {
		k := textproto.CanonicalMIMEHeaderKey(f[0])
		if !hopByHop[k] && k != "Content-Length" && !strings.HasPrefix(k, "X-Fre-") {
			h.Add(k, f[1])
		}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // the function's silence is not a reason to guess
	}
	h.Set("X-Fre-Id", resp.ID)
	h.Set("X-Fre-Instance", resp.Instance)
	h.Set("X-Fre-Cold", map[bool]string{true: "1", false: "0"}[resp.Cold])
	h.Set("X-Fre-Start", string(resp.StartKind))
	h.Set("X-Fre-Start-Us", strconv.FormatInt(resp.Start.Microseconds(), 10))
	// The length of what HEAD and 304 leave out is not known (RFC 9110 section
	// 8.6); 204 has none.
	if resp.Size >= 0 && resp.Status != http.StatusNoContent && resp.Status != http.StatusNotModified && (method != http.MethodHead || resp.Size > 0) {
		h.Set("Content-Length", strconv.FormatInt(resp.Size, 10))
	}
}

// requestBody ends a blocked Read when the event is over before the client has
// sent everything.
type requestBody struct {
	io.ReadCloser
	control *http.ResponseController

	mu      sync.Mutex
	reading bool // a Read is under way
	closed  bool // the event is over
	eof     bool // all of it has been read
	torn    bool // broken off, by us or by the client
	left    bool // the connection is net/http's again
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	switch {
	case errors.Is(err, io.EOF):
		b.eof = true
	case err != nil:
		b.torn = true
		err = &BodyError{err}
	}
	return n, err
}

// Close leaves the body itself to net/http, which closes it after the handler.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if !b.reading || b.left {
		return nil
	}
	b.torn = true
	return b.control.SetReadDeadline(time.Unix(1, 0))
}

// leave ends the effect of Close: the next request is waited for with the same
// deadline. What is left of a torn body is read for a moment.
func (b *requestBody) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	if !b.eof {
		_ = b.control.SetReadDeadline(time.Now().Add(lingering)) // fails on a dead connection alone
	}
}

func (b *requestBody) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.eof
}

// drain reads a small body that nobody has begun to read, so that the connection
// can be used again; false says that it cannot. Afterwards would be too late:
// net/http then takes the next request's first byte for the end of this one.
func (b *requestBody) drain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.eof || b.torn {
		return b.eof
	}
	if b.control.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, err := io.CopyN(io.Discard, b.ReadCloser, drained)
		b.eof = errors.Is(err, io.EOF)
	}
	return b.eof
}

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// copyBody sends each piece of a streamed answer as it comes.
func copyBody(w http.ResponseWriter, control *http.ResponseController, resp *engine.Response, bodyless bool) (err error) {
	buf := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	deadline := func(t time.Time) {
		if err == nil {
			err = control.SetWriteDeadline(t)
		}
	}
	if resp.Size < 0 { // a client may wait for the status before it sends on
		deadline(time.Now().Add(stalled))
		if err == nil {
			err = control.Flush()
		}
	}
	for err == nil {
		var n int
		n, err = resp.Body.Read(buf[:])
		if n == 0 || bodyless {
			continue
		}
		rerr := err
		err = nil
		deadline(time.Now().Add(stalled))
		if err == nil {
			_, err = w.Write(buf[:n])
		}
		if err == nil && resp.Size < 0 && rerr == nil {
			err = control.Flush()
		}
		if err == nil {
			err = rerr
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
		deadline(time.Time{}) // it would outlive the answer
	}
	return err
}
