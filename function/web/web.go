// Package web makes a function of an http.Handler:
//
//	func main() { web.Serve(mux) }
//
// An event's method, path, query, headers and body are the request's, and what
// the handler writes is the answer, as it flushes it or beyond the first 32 KiB.
// There is no server and no socket between them: no hijacking, no trailers, no
// server push; 1xx statuses are dropped.
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

// Serve serves h until the engine ends it, as [function.Handle] does. It does not
// return.
func Serve(h http.Handler) { function.Handle(Handler(h)) }

// firstBytes are held back until the handler flushes or returns: an answer that is
// no longer is sent whole.
const firstBytes = 32 << 10

// Handler makes a function's handler of h. A panic of h's is the event's failure.
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

// request is the event as a server would have read it.
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
		Header: make(http.Header, len(e.Header)), ContentLength: e.Length, RemoteAddr: "@", // as net/http says of a Unix socket
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

// response is an http.ResponseWriter, an http.Flusher and an io.StringWriter. Only
// the handler's goroutine touches it before began or ended is closed; after that
// that goroutine writes to the pipe alone.
type response struct {
	header http.Header
	status int           // 0: the handler has not said
	sent   http.Header   // as they were when the handler said the status
	first  bytes.Buffer  // the answer's beginning, until began
	began  chan struct{} // closed when the answer has to begin before the handler's end
	ended  chan struct{} // closed at the handler's end
	failed error         // valid once ended is closed

	rest *io.PipeReader
	pipe *io.PipeWriter
}

// Header is the answer's, until its status is said.
func (w *response) Header() http.Header { return w.header }

// WriteHeader says the status, once; 1xx are dropped.
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

// WriteString is Write without a copy, where the answer has not begun.
func (w *response) WriteString(s string) (int, error) {
	if w.open() && !w.hasBegun() && w.first.Len()+len(s) <= firstBytes {
		return w.first.WriteString(s)
	}
	return w.Write([]byte(s))
}

// Flush sends what has been written so far.
func (w *response) Flush() {
	w.WriteHeader(http.StatusOK)
	if !w.hasBegun() {
		w.begin(nil)
	}
}

// open says whether the answer has a body.
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

// begin lets the answer begin; next are the bytes after those held back.
func (w *response) begin(next []byte) {
	w.guessType(next)
	close(w.began)
}

// guessType does what net/http does where the handler has not said the type.
func (w *response) guessType(next []byte) {
	if _, said := w.sent["Content-Type"]; said || !w.open() {
		return
	}
	if start := w.first.Bytes(); len(start)+len(next) > 0 {
		w.sent.Set("Content-Type", http.DetectContentType(slices.Concat(start, next[:min(len(next), 512)])))
	}
}

// finish is called at the handler's end.
func (w *response) finish(err error) {
	w.failed = err
	if w.hasBegun() {
		_ = w.pipe.CloseWithError(err) // nil: the body's end
		return
	}
	if err == nil {
		w.WriteHeader(http.StatusOK)
		w.guessType(nil)
	}
}

// answer is called once w has begun or ended.
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

// streamed is a body that is still being written.
type streamed struct {
	io.Reader
	w *response
}

// Close is called when the answer is whole, or nobody wants the rest of it: the
// event ends with its handler.
func (s *streamed) Close() error {
	_ = s.w.rest.CloseWithError(errGone)
	<-s.w.ended
	return nil
}

var errGone = errors.New("the client has gone")
