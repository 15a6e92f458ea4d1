package gateway

import (
	"net"
	"net/http"

	"github.com/fre-engine/fre/httpserver"
)

// OpenFaaSNamespace is what OpenFaaS's clients call the default tenant where nobody has named
// a namespace: faas-cli calls NAME.openfaas-fn.
const OpenFaaSNamespace = "openfaas-fn"

// openFaaS has the adapter for OpenFaaS's clients answer, which asks for a token itself.
func (e *exchange) openFaaS() {
	if !e.paced() {
		return
	}
	e.secret = true
	httpserver.NetHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = net.JoinHostPort(e.client.text, "0") // who is behind a trusted proxy
		noted := &notedWriter{ResponseWriter: w, e: e}
		e.g.OpenFaaS.ServeHTTP(noted, r)
		if e.status == 0 {
			e.status = http.StatusOK
		}
	})).Serve(e.Exchange)
}

// notedWriter tells the access log of an answer; [http.ResponseController] finds what is below.
type notedWriter struct {
	http.ResponseWriter
	e *exchange
}

// WriteHeader is part of http.ResponseWriter.
func (w *notedWriter) WriteHeader(status int) {
	if w.e.status == 0 {
		w.e.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write is part of http.ResponseWriter.
func (w *notedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.e.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *notedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
