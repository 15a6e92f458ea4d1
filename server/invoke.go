package server

import (
	"net/http"
	"strings"

	"github.com/fre-engine/fre/gateway"
)

// invoke answers POST /v1/functions/{name}/invoke. The request's body and headers become the
// event's body and headers; the query has the event's method, path and query.
func (s *server) invoke(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	ev := gateway.Event{
		Engine: s.cfg.Invoker, Log: s.log, Function: r.PathValue("name"), MaxBodyBytes: s.cfg.MaxInvokeBytes,
		Method: q.Get("method"), Path: q.Get("path"), Query: q.Get("query"),
	}
	if ev.Method == "" {
		ev.Method = http.MethodPost
	}
	if ev.Path == "" {
		ev.Path = "/"
	}
	if !strings.HasPrefix(ev.Path, "/") {
		return badRequest("path %q does not begin with /", ev.Path)
	}
	if strings.ContainsRune(ev.Method+ev.Path+ev.Query, 0) {
		return badRequest("method, path and query hold no NUL")
	}
	return gateway.Forward(w, r, ev)
}
