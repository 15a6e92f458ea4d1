package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"time"
)

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

// getManifest serves a manifest with the media type of its push.
func (r *Registry) getManifest(w http.ResponseWriter, req *http.Request, t target) error {
	r.mu.RLock()
	d, err := r.resolve(t.name, t.ref)
	if err == nil {
		_, err = r.rely(manifestPath(t.name, d))
	}
	var media string
	var data []byte
	if err == nil {
		media, data, err = r.readManifest(t.name, d)
	}
	r.mu.RUnlock()
	if errors.Is(err, fs.ErrNotExist) {
		return errManifestUnknown(t.name, t.ref)
	}
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Docker-Content-Digest", d.String())
	h.Set("Content-Type", media)
	h.Set("Etag", `"`+d.String()+`"`)
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
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

// getReferrers lists the manifests whose subject is the digest, even if the subject does not
// exist.
func (r *Registry) getReferrers(w http.ResponseWriter, req *http.Request, t target) error {
	subject, err := parseDigest(t.ref)
	if err != nil {
		return errDigestInvalid(t.ref, err)
	}
	dir := repoPath(t.name, "_referrers", subject.path())
	names, err := r.list(dir)
	if err != nil {
		return err
	}
	query := req.URL.Query()
	names = after(names, query.Get("last"))
	filter := query.Get("artifactType")
	index := struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Manifests     []json.RawMessage `json:"manifests"`
	}{2, typeOCIIndex, []json.RawMessage{}}
	size := 0
	for i, name := range names {
		entry, err := r.readReferrer(t.name, path.Join(dir, name), name)
		if err != nil {
			return err
		}
		if entry == nil {
			continue
		}
		if filter != "" && artifactTypeOf(entry) != filter {
			continue
		}
		if size += len(entry); size > r.maxReferrers && len(index.Manifests) > 0 {
			next := maps.Clone(query)
			next.Set("last", names[i-1])
			setNext(w, req.URL.Path, next)
			break
		}
		index.Manifests = append(index.Manifests, entry)
	}
	if filter != "" {
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	return writeJSON(w, typeOCIIndex, index)
}

// artifactTypeOf returns the artifact type of a referrer's entry, or "" for a damaged entry.
func artifactTypeOf(entry []byte) string {
	var d struct {
		ArtifactType string `json:"artifactType"`
	}
	if json.Unmarshal(entry, &d) != nil {
		return ""
	}
	return d.ArtifactType
}
