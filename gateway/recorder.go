package gateway

import (
	"bytes"
	"net/http"
)

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
