package httpserver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// wholeAnswer is how many bytes of an answer from a [http.Handler] are kept back until it has
// returned: one that is no longer goes out with its head, in one write.
const wholeAnswer = 32 << 10

// NetHTTP has a handler for net/http answer, for what is not in a hurry: its requests and its
// answers' heads are made anew, and its answers copied. Trailers are not passed on, and the
// connection cannot be hijacked. A http.ResponseController can flush, and end the reading of
// the request's body by a deadline that has passed; other deadlines are the server's. A
// handler that panics breaks its answer off, with [http.ErrAbortHandler] silently.
func NetHTTP(h http.Handler) Handler {
	return HandlerFunc(func(x *Exchange) {
		r, err := newRequest(x)
		if err != nil {
			_ = x.Send(http.StatusBadRequest, []byte(err.Error())) // fails with the connection
			return
		}
		w := &responseWriter{x: x, header: http.Header{}, length: -1}
		defer func() {
			if p := recover(); p != nil {
				x.Abort()
				if p != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
					panic(p)
				}
			}
		}()
		// Its context ends with the exchange, as that of net/http does.
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
		w.end()
	})
}

// newRequest is the request of x as net/http has it.
func newRequest(x *Exchange) (*http.Request, error) {
	target := string(x.Target)
	u, err := url.ParseRequestURI(target)
	if err != nil {
		if target != "*" {
			return nil, fmt.Errorf("the request's target: %w", err)
		}
		u = &url.URL{Path: "*"}
	}
	r := &http.Request{
		Method: string(x.Method), URL: u, RequestURI: target, Host: string(x.Host), RemoteAddr: x.RemoteAddr(),
		Header: make(http.Header, len(x.Fields)), Body: http.NoBody, Close: x.Close,
	}
	r.Proto = x.Protocol()
	if r.Proto == "HTTP/2" {
		r.Proto = "HTTP/2.0"
	}
	r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(r.Proto)
	for _, f := range x.Fields {
		if name := http.CanonicalHeaderKey(string(f.Name)); name != "Host" {
			r.Header[name] = append(r.Header[name], string(f.Value))
		}
	}
	if x.Body != nil {
		r.Body, r.ContentLength = x.Body, x.Body.Size()
	}
	return r.WithContext(x.Context()), nil
}

// responseWriter is an answer of a handler for net/http.
type responseWriter struct {
	x      *Exchange
	header http.Header
	status int    // 0: not said yet
	length int64  // of the body as the handler has said, -1 where it has not
	kept   []byte // of the body, while nothing is out
	begun  bool
	err    error // why the answer cannot be sent
}

// Header are the fields of the answer's head.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader says the answer's status, once.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 || status < 200 { // 100 is the server's to say, others are for clients that do not need them
		return
	}
	w.status = status
	if n, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		w.length = n
	}
}

// Write sends the next part of the body.
func (w *responseWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if _, said := w.header["Content-Type"]; !said && !w.begun && len(p) > 0 && w.header.Get("Content-Encoding") == "" {
		w.header.Set("Content-Type", http.DetectContentType(p))
	}
	if !w.begun && len(w.kept)+len(p) <= wholeAnswer {
		w.kept = append(w.kept, p...)
		return len(p), nil
	}
	w.begin()
	if w.err != nil {
		return 0, w.err
	}
	if string(w.x.Method) == http.MethodHead {
		return len(p), nil
	}
	return w.x.Write(p)
}

// FlushError sends what has been kept back.
func (w *responseWriter) FlushError() error {
	w.WriteHeader(http.StatusOK)
	w.begin()
	return w.err
}

// Flush is FlushError for those who do not want to know.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// SetReadDeadline ends the reading of the request's body where t has passed.
func (w *responseWriter) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && !t.After(time.Now()) && w.x.Body != nil {
		return w.x.Body.Close()
	}
	return nil
}

// SetWriteDeadline leaves it to the server how long a client may take nothing.
func (w *responseWriter) SetWriteDeadline(time.Time) error { return nil }

// begin sends the head and what has been kept back, for a body that goes on.
func (w *responseWriter) begin() {
	if w.begun {
		return
	}
	w.begun = true
	w.fields()
	if w.err = w.x.Begin(w.status, w.length); w.err == nil && len(w.kept) > 0 && string(w.x.Method) != http.MethodHead {
		_, w.err = w.x.Write(w.kept)
	}
	w.kept = nil
}

// end sends what has not been sent when the handler has returned.
func (w *responseWriter) end() {
	switch {
	case w.begun:
	case string(w.x.Method) == http.MethodHead && len(w.kept) == 0:
		w.WriteHeader(http.StatusOK)
		w.begin()
	default:
		w.WriteHeader(http.StatusOK)
		w.begun = true
		w.fields()
		_ = w.x.Send(w.status, w.kept) // fails with the connection
	}
}

// fields sets those of the head that are not the server's.
func (w *responseWriter) fields() {
	for name, values := range w.header {
		switch name {
		case "Content-Length", "Date", "Transfer-Encoding":
			continue
		case "Connection":
			if w.header.Get(name) == "close" {
				w.x.CloseAfter()
			}
			continue
		}
		for _, v := range values {
			if ValidField(name, v) {
				w.x.Set(name, v)
			}
		}
	}
}
