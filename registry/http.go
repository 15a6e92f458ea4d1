package registry

import "net/http"

// ServeHTTP answers a request of the distribution API.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Docker-Distribution-API-Version", "registry/2.0") // for old clients
	t, err := r.serve(w, req)
	r.metrics.count(t.resource, req.Method, err)
	if err == nil {
		return
	}
	answer := answerTo(err)
	if answer.status >= http.StatusInternalServerError {
		r.cfg.Log.ErrorContext(req.Context(), "registry request failed", "method", req.Method, "path", req.URL.Path, "error", err)
	}
	writeError(w, answer)
}

// serve answers a request. On an error it has written nothing.
func (r *Registry) serve(w http.ResponseWriter, req *http.Request) (target, error) {
	t, wrong := parsePath(req.URL.Path)
	reads := req.Method == http.MethodGet || req.Method == http.MethodHead
	if r.cfg.Users != nil {
		if err := r.cfg.Users.admit(w, req, reads); err != nil {
			return t, err
		}
	}
	if err := r.origin.Check(req); err != nil {
		return t, errCrossOrigin
	}
	if wrong != nil {
		return t, wrong
	}
	if !reads && r.cfg.ReadOnly {
		return t, errReadOnly
	}
	handle := r.handler(t.resource, req.Method)
	if handle == nil {
		return t, errMethod(req.Method)
	}
	return t, handle(w, req, t)
}

type handler func(http.ResponseWriter, *http.Request, target) error

// handler returns the handler of a method on a resource, or nil.
func (r *Registry) handler(res resource, method string) handler {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	switch res {
	case resourceBase:
		return map[string]handler{http.MethodGet: r.getBase}[method]
	case resourceCatalog:
		return map[string]handler{http.MethodGet: r.getCatalog}[method]
	case resourceBlob:
		return map[string]handler{http.MethodGet: r.getBlob, http.MethodDelete: r.deleteBlob}[method]
	case resourceUploads:
		return map[string]handler{http.MethodPost: r.postUpload}[method]
	case resourceUpload:
		return map[string]handler{http.MethodGet: r.getUpload, http.MethodPatch: r.patchUpload, http.MethodPut: r.putUpload, http.MethodDelete: r.deleteUpload}[method]
	case resourceManifest:
		return map[string]handler{http.MethodGet: r.getManifest, http.MethodPut: r.putManifest, http.MethodDelete: r.deleteManifest}[method]
	case resourceTags:
		return map[string]handler{http.MethodGet: r.getTags}[method]
	case resourceReferrers:
		return map[string]handler{http.MethodGet: r.getReferrers}[method]
	}
	return nil
}

// getBase answers that this is a registry.
func (r *Registry) getBase(w http.ResponseWriter, _ *http.Request, _ target) error {
	return writeJSON(w, "application/json", struct{}{})
}
