// Package web serves an http.Handler as a function:
//
//	func main() { web.Serve(mux) }
//
// The request has the event's method, path, query, headers and body. The handler's output is the
// answer, sent when the handler flushes or writes more than 32 KiB, else when it returns. No
// server and no socket lie between: no hijacking, no trailers, no server push, no 1xx statuses.
package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/function"
	"github.com/fre-engine/fre/function/internal/failure"
)

// Serve serves h until the engine ends it, as [function.Handle] does. It does not return.
func Serve(h http.Handler) { function.Handle(Handler(h)) }

// firstBytes are held back until the handler flushes or returns. A shorter answer is sent whole.
const firstBytes = 32 << 10

// Handler returns a function's handler for h. A panic of h becomes the event's failure.
func Handler(h http.Handler) function.Handler {
	return func(ctx context.Context, e function.Event) (any, error) {
		r, err := request(ctx, e)
		if err != nil {
			return function.Response{Status: http.StatusBadRequest, Body: err.Error() + "\n"}, nil //nolint:nilerr // it is the client's mistake, and answered
		}
		w := &response{header: http.Header{}, began: make(chan struct{}), ended: make(chan struct{})}
		w.rest, w.pipe = io.Pipe()
		go func() {
			defer close(w.ended)
			var err error
			if f := failure.Catch(func() { h.ServeHTTP(w, r) }); f != nil {
				err = f
			}
			w.finish(err)
		}()
		select {
		case <-w.began:
		case <-w.ended:
		}
		return w.answer()
	}
}

// request converts the event to a server's request.
func request(ctx context.Context, e function.Event) (*http.Request, error) {
	target := e.Path
	if e.RawQuery != "" {
		target += "?" + e.RawQuery
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: e.Method, URL: u, RequestURI: target, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, len(e.Header)), ContentLength: e.Length, RemoteAddr: "@", // net/http's value for a Unix socket
		Body: io.NopCloser(e.Body),
	}
	for _, f := range e.Header {
		name := textproto.CanonicalMIMEHeaderKey(f[0])
		if name == "Host" {
			r.Host = f[1]
			continue
		}
		r.Header[name] = append(r.Header[name], f[1])
	}
	if n, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil && n >= 0 && e.Length < 0 {
		r.ContentLength = n
	}
	if r.ContentLength == 0 {
		r.Body = http.NoBody
	}
	return r.WithContext(ctx), nil
}

// response implements http.ResponseWriter, http.Flusher and io.StringWriter. Until began or ended
// is closed, only the handler's goroutine uses it. Afterwards the handler's goroutine only writes
// to the pipe.
type response struct {
	header http.Header
	status int           // 0: not set by the handler
	sent   http.Header   // header at the time of WriteHeader
	first  bytes.Buffer  // start of the answer, until began
	began  chan struct{} // closed when the answer must begin before the handler's end
	ended  chan struct{} // closed at the handler's end
	failed error         // valid once ended is closed

	rest *io.PipeReader
	pipe *io.PipeWriter
}

// Header returns the answer's header; changes after WriteHeader have no effect.
func (w *response) Header() http.Header { return w.header }

// WriteHeader sets the status, once; 1xx are dropped.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *response) Write(p []byte) (int, error) {
	if !w.open() {
		return 0, http.ErrBodyNotAllowed
	}
	if !w.hasBegun() {
		if w.first.Len()+len(p) <= firstBytes {
			return w.first.Write(p)
		}
		w.begin(p)
	}
	return w.pipe.Write(p)
}

// WriteString is Write, without a copy before the answer begins.
func (w *response) WriteString(s string) (int, error) {
	if w.open() && !w.hasBegun() && w.first.Len()+len(s) <= firstBytes {
		return w.first.WriteString(s)
	}
	return w.Write([]byte(s))
}

// Flush sends the bytes written so far.
func (w *response) Flush() {
	w.WriteHeader(http.StatusOK)
	if !w.hasBegun() {
		w.begin(nil)
	}
}

// open reports whether the answer has a body.
func (w *response) open() bool {
	w.WriteHeader(http.StatusOK)
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

func (w *response) hasBegun() bool {
	select {
	case <-w.began:
		return true
	default:
		return false
	}
}

// begin lets the answer begin. next are the bytes after first.
func (w *response) begin(next []byte) {
	w.guessType(next)
	close(w.began)
}

// guessType sets a missing content-type as net/http does.
func (w *response) guessType(next []byte) {
	if _, said := w.sent["Content-Type"]; said || !w.open() {
		return
	}
	if start := w.first.Bytes(); len(start)+len(next) > 0 {
		w.sent.Set("Content-Type", http.DetectContentType(slices.Concat(start, next[:min(len(next), 512)])))
	}
}

// finish runs at the handler's end.
func (w *response) finish(err error) {
	w.failed = err
	if w.hasBegun() {
		_ = w.pipe.CloseWithError(err) // nil ends the body
		return
	}
	if err == nil {
		w.WriteHeader(http.StatusOK)
		w.guessType(nil)
	}
}

// answer returns the answer once w has begun or ended.
func (w *response) answer() (any, error) {
	var body any
	if w.hasBegun() {
		body = &streamed{io.MultiReader(&w.first, w.rest), w}
	} else {
		if w.failed != nil {
			return nil, w.failed
		}
		if w.first.Len() > 0 {
			body = bytes.NewReader(w.first.Bytes())
		}
	}
	out := function.Response{Status: w.status, Body: body}
	for name, values := range w.sent {
		for _, v := range values {
			out.Header = append(out.Header, [2]string{name, v})
		}
	}
	slices.SortStableFunc(out.Header, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out, nil
}

// streamed is a body that the handler is still writing.
type streamed struct {
	io.Reader
	w *response
}

// Close runs when the answer is whole or given up. It waits for the handler: the event ends with
// its handler.
func (s *streamed) Close() error {
	_ = s.w.rest.CloseWithError(errGone)
	<-s.w.ended
	return nil
}

var errGone = errors.New("the client has gone")
