package httpserver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// wholeAnswer limits, in bytes, how much of an [http.Handler]'s answer is held back until the
// handler returns. A shorter answer leaves in one write with its head.
const wholeAnswer = 32 << 10

// NetHTTP adapts a net/http handler. It suits requests that need no speed: requests and heads are
// allocated and answers copied. Trailers are dropped, and hijacking is not supported. A
// http.ResponseController can flush, and can end reading of the body by a deadline in the past;
// all other deadlines are the server's. A panic breaks the answer off, silently for
// [http.ErrAbortHandler].
func NetHTTP(h http.Handler) Handler {
	return HandlerFunc(func(x *Exchange) {
		r, err := newRequest(x)
		if err != nil {
			_ = x.Send(http.StatusBadRequest, []byte(err.Error())) // fails only with the connection
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
		// As in net/http, the request's context ends with the exchange.
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
		w.end()
	})
}

// newRequest converts the request of x.
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

// responseWriter implements http.ResponseWriter.
type responseWriter struct {
	x      *Exchange
	header http.Header
	status int    // 0: not set yet
	length int64  // the handler's Content-Length, -1 if not set
	kept   []byte // start of the body, until the head is sent
	begun  bool
	err    error // why the answer cannot be sent
}

// Header returns the fields of the answer's head.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader sets the answer's status, once.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 || status < 200 { // the server sends 100; clients can do without the other 1xx
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

// FlushError sends the part of the answer held back.
func (w *responseWriter) FlushError() error {
	w.WriteHeader(http.StatusOK)
	w.begin()
	return w.err
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// SetReadDeadline ends reading of the request's body if t has passed.
func (w *responseWriter) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && !t.After(time.Now()) && w.x.Body != nil {
		return w.x.Body.Close()
	}
	return nil
}

// SetWriteDeadline does nothing: the server limits stalls of the client.
func (w *responseWriter) SetWriteDeadline(time.Time) error { return nil }

// begin sends the head and the part of the body held back; more may follow.
func (w *responseWriter) begin() {
	if w.begun {
		return
	}
	w.begun = true
	w.setFields()
	if w.err = w.x.Begin(w.status, w.length); w.err == nil && len(w.kept) > 0 && string(w.x.Method) != http.MethodHead {
		_, w.err = w.x.Write(w.kept)
	}
	w.kept = nil
}

// end sends the unsent rest after the handler has returned.
func (w *responseWriter) end() {
	switch {
	case w.begun:
	case string(w.x.Method) == http.MethodHead && len(w.kept) == 0:
		w.WriteHeader(http.StatusOK)
		w.begin()
	default:
		w.WriteHeader(http.StatusOK)
		w.begun = true
		w.setFields()
		_ = w.x.Send(w.status, w.kept) // fails only with the connection
	}
}

// setFields sets the header fields, except those that the server sets itself.
func (w *responseWriter) setFields() {
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
