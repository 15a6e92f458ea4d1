package docker

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/access"
)

// audited wraps a route's handler with the audit log. The log has every request except GET and
// HEAD, including refused requests. The entry is on disk before the answer is complete. An
// attachment is logged when the attachment ends.
func (s *server) audited(rt route) func(http.ResponseWriter, *http.Request) error {
	if s.cfg.Access == nil {
		return rt.handle
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return rt.handle(w, r)
		}
		watched := &watchedWriter{ResponseWriter: w}
		err := rt.handle(watched, r)
		e := access.Entry{Who: "root on the Docker socket", Tenant: access.AllTenants, Action: "docker " + r.Method + " " + strings.Replace(rt.path, "...}/", "}/", 1), Result: access.Done}
		e.Status = cmp.Or(watched.status, http.StatusOK)
		q := r.URL.Query()
		e.On = cmp.Or(r.PathValue("id"), r.PathValue("name"), q.Get("name"), imageAsked(q.Get("fromImage"), q.Get("tag")), q.Get("repo"))
		if failure := cmp.Or(err, watched.failure); failure != nil {
			e.Result = access.Failed
			e.Status, e.Reason = statusOf(failure)
		}
		s.cfg.Access.Record(e)
		return err
	}
}

// imageAsked returns the image reference of a pull.
func imageAsked(name, tag string) string {
	switch {
	case name == "" || tag == "":
		return name
	case strings.Contains(tag, ":"):
		return name + "@" + tag
	}
	return name + ":" + tag
}

// watchedWriter records the result of an answer. [http.ResponseController] reaches the wrapped
// writer through Unwrap.
type watchedWriter struct {
	http.ResponseWriter
	status  int
	failure error // error that ended an answer after its start
}

// WriteHeader implements http.ResponseWriter.
func (w *watchedWriter) WriteHeader(status int) {
	if w.status < http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap serves http.ResponseController.
func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
