package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

// admit checks the credentials of a request.
func (u *Users) admit(w http.ResponseWriter, req *http.Request, reads bool) error {
	user, ok := u.authenticate(req)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Basic realm="FRE registry", charset="UTF-8"`)
		return errUnauthorized
	}
	if !reads && !user.writer {
		return errDenied
	}
	return nil
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

// getBlob serves a blob or ranges of it, by sendfile if the connection supports that.
func (r *Registry) getBlob(w http.ResponseWriter, req *http.Request, t target) error {
	d, err := parseDigest(t.ref)
	if err != nil {
		return errDigestInvalid(t.ref, err)
	}
	r.mu.RLock()
	_, err = r.statBlob(t.name, d)
	r.mu.RUnlock()
	if errors.Is(err, fs.ErrNotExist) {
		return errBlobUnknown(t.name, d)
	}
	if err != nil {
		return err
	}
	f, err := r.root.OpenFile(d.blobPath(), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errBlobUnknown(t.name, d)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Docker-Content-Digest", d.String())
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Etag", `"`+d.String()+`"`)
	h.Set("Cache-Control", "max-age=31536000")
	http.ServeContent(w, req, "", time.Time{}, f)
	return nil
}

// deleteBlob removes a blob from a repository. The next collection removes the content, unless
// another repository has the blob.
func (r *Registry) deleteBlob(w http.ResponseWriter, _ *http.Request, t target) error {
	d, err := parseDigest(t.ref)
	if err != nil {
		return errDigestInvalid(t.ref, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.root.Stat(d.blobPath()); errors.Is(err, fs.ErrNotExist) {
		return errBlobUnknown(t.name, d)
	}
	marker := markerPath(t.name, d)
	if err := r.root.Remove(marker); errors.Is(err, fs.ErrNotExist) {
		return errBlobUnknown(t.name, d)
	} else if err != nil {
		return err
	}
	if err := r.syncDir(path.Dir(marker)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// getTags lists the tags of a repository, sorted by their bytes.
func (r *Registry) getTags(w http.ResponseWriter, req *http.Request, t target) error {
	ok, err := r.exists(t.name)
	if err != nil {
		return err
	}
	if !ok {
		return errNameUnknown(t.name)
	}
	tags, err := r.list(repoPath(t.name, "_tags"))
	if err != nil {
		return err
	}
	tags, err = page(w, req, tags)
	if err != nil {
		return err
	}
	return writeJSON(w, "application/json", struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}{t.name, tags})
}

// getCatalog lists the repositories, like Docker's registry.
func (r *Registry) getCatalog(w http.ResponseWriter, req *http.Request, _ target) error {
	names, err := r.repositories(req.Context())
	if err != nil {
		return err
	}
	names, err = page(w, req, names)
	if err != nil {
		return err
	}
	return writeJSON(w, "application/json", struct {
		Repositories []string `json:"repositories"`
	}{names})
}

// list returns the names in a directory, sorted by their bytes; none if the directory is
// missing.
func (k *disk) list(dir string) ([]string, error) {
	d, err := k.root.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// page returns the part of names that the parameters n and last select, never nil. It sets Link
// if more names follow.
func page(w http.ResponseWriter, req *http.Request, names []string) ([]string, error) {
	query := req.URL.Query()
	if last := query.Get("last"); last != "" {
		i, found := slices.BinarySearch(names, last)
		if found {
			i++
		}
		names = names[i:]
	}
	if s := query.Get("n"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return nil, badRequest(codeUnsupported, "n=%.20q is no number of results", s)
		}
		if n < len(names) {
			names = names[:n]
			if n > 0 {
				setNext(w, req.URL.Path, url.Values{"n": {s}, "last": {names[n-1]}})
			}
		}
	}
	if names == nil {
		names = []string{}
	}
	return names, nil
}

// setNext sets the Link to the next part of a list (RFC 8288).
func setNext(w http.ResponseWriter, path string, query url.Values) {
	w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, path, query.Encode()))
}

// writeJSON answers with 200 and a body of known length.
func writeJSON(w http.ResponseWriter, mediaType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may be gone
	return nil
}

// mediaType returns a Content-Type without its parameters, in lower case.
func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}
