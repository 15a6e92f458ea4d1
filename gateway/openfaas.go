package gateway

import (
	"net"
	"net/http"

	"github.com/fre-engine/fre/httpserver"
)

// OpenFaaSNamespace is the default tenant's namespace in OpenFaaS's clients: without a namespace,
// faas-cli calls NAME.openfaas-fn.
const OpenFaaSNamespace = "openfaas-fn"

// openFaaS answers by the adapter for OpenFaaS's clients, which checks tokens itself.
func (e *exchange) openFaaS() {
	if !e.paced() {
		return
	}
	e.secret = true
	httpserver.NetHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = net.JoinHostPort(e.client.text, "0") // the client behind a trusted proxy
		noted := &notedWriter{ResponseWriter: w, e: e}
		e.g.OpenFaaS.ServeHTTP(noted, r)
		if e.status == 0 {
			e.status = http.StatusOK
		}
	})).Serve(e.Exchange)
}

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
