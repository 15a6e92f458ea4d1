package docker

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/access"
)

// audited is a route's handler whose actions are written down: all but GET and HEAD, those
// that are refused too. They are on the disk before their answer is whole, but for an
// attachment, which is written down when it has ended.
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

// imageAsked is what a pull names.
func imageAsked(name, tag string) string {
	switch {
	case name == "" || tag == "":
		return name
	case strings.Contains(tag, ":"):
		return name + "@" + tag
	}
	return name + ":" + tag
}

// watchedWriter remembers how an answer went; [http.ResponseController] finds what is below.
type watchedWriter struct {
	http.ResponseWriter
	status  int
	failure error // that the answer, begun before, ended by
}

// WriteHeader is part of http.ResponseWriter.
func (w *watchedWriter) WriteHeader(status int) {
	if w.status < http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
