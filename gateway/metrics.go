package gateway

import (
	"bytes"
	"net/http"
	"net/url"
)

// serveHTTP answers a request without a body by a net/http handler, for /metrics. It buffers the
// whole answer.
func (e *exchange) serveHTTP(h http.Handler) {
	r := &http.Request{
		Method: string(e.Method), URL: &url.URL{Path: string(e.Path), RawQuery: string(e.Query)}, Host: string(e.Host),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, len(e.Fields)), Body: http.NoBody,
	}
	for _, f := range e.Fields {
		r.Header.Add(string(f.Name), string(f.Value))
	}
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(w, r.WithContext(e.Context()))
	for name, values := range w.header {
		if ours[name] {
			continue
		}
		for _, v := range values {
			e.Set(name, v)
		}
	}
	_ = e.Send(w.status, w.body.Bytes()) // fails only with the connection
}

// recorder buffers an answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header returns the answer's header.
func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) Write(p []byte) (int, error) { return w.body.Write(p) }

// WriteHeader records the status.
func (w *recorder) WriteHeader(status int) { w.status = status }
