package gateway

import "net/http"

// notedWriter records the answer for the access log. [http.ResponseController] unwraps it.
type notedWriter struct {
	http.ResponseWriter
	e *exchange
}

// WriteHeader implements http.ResponseWriter.
func (w *notedWriter) WriteHeader(status int) {
	if w.e.status == 0 {
		w.e.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *notedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.e.bytes += int64(n)
	return n, err
}

// Unwrap serves http.ResponseController.
func (w *notedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
