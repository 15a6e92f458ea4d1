package registry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxTags is the maximum number of tags in one push (?tag=).
const maxTags = 100

// putManifest stores a manifest and sets its tags.
func (r *Registry) putManifest(w http.ResponseWriter, req *http.Request, t target) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(uploadIdle)) // without deadlines the read may block
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, MaxManifestBytes))
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	d, tags, err := manifestNames(t.ref, req.URL.Query()["tag"], data)
	if err != nil {
		return err
	}
	m, err := parseManifest(req.Header.Get("Content-Type"), data)
	if err != nil {
		return badRequest(codeManifestInvalid, "manifest %s: %v", d, err)
	}
	if err := r.room(); err != nil {
		return err
	}
	if err := r.keepManifest(t.name, d, m, data, tags); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Location", "/v2/"+t.name+"/manifests/"+d.String())
	h.Set("Docker-Content-Digest", d.String())
	if m.Subject != nil {
		h.Set("OCI-Subject", m.Subject.Digest)
	}
	if len(tags) > 0 && tags[0] != t.ref {
		h.Set("OCI-Tag", strings.Join(tags, ", "))
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// manifestNames returns the digest of a manifest and its tags: the parameters ?tag= and, if ref
// is a tag, ref itself.
func manifestNames(ref string, params []string, data []byte) (digest, []string, error) {
	tags := params
	d := digest{algorithm: sha256Name}
	if strings.Contains(ref, ":") {
		var err error
		if d, err = parseDigest(ref); err != nil {
			return digest{}, nil, errDigestInvalid(ref, err)
		}
	} else {
		tags = append([]string{ref}, params...)
	}
	if len(tags) > maxTags {
		return digest{}, nil, &apiError{http.StatusRequestURITooLong, codeUnsupported, fmt.Sprintf("more than %d tags at once", maxTags)}
	}
	for _, tag := range tags {
		if !tagSyntax.MatchString(tag) {
			return digest{}, nil, badRequest(codeManifestInvalid, "bad tag %.200q: use at most 128 letters, digits, . _ and -, not beginning with . or -", tag)
		}
	}
	h := newHash(d.algorithm)
	_, _ = h.Write(data) // never fails
	found := hex.EncodeToString(h.Sum(nil))
	if d.hex != "" && d.hex != found {
		return digest{}, nil, badRequest(codeDigestInvalid, "the digest of the manifest is %s:%s and not %s", d.algorithm, found, d)
	}
	d.hex = found
	return d, tags, nil
}

// deleteManifest removes a tag, or a manifest with all its tags.
func (r *Registry) deleteManifest(w http.ResponseWriter, _ *http.Request, t target) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if strings.Contains(t.ref, ":") {
		var d digest
		if d, err = parseDigest(t.ref); err != nil {
			return errDigestInvalid(t.ref, err)
		}
		err = r.removeManifest(t.name, d)
	} else if !tagSyntax.MatchString(t.ref) {
		err = fs.ErrNotExist
	} else if err = r.root.Remove(tagPath(t.name, t.ref)); err == nil {
		err = r.syncDir(repoPath(t.name, "_tags"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errManifestUnknown(t.name, t.ref)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
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

// postUpload begins an upload, receives a whole blob (?digest=), or mounts a blob of another
// repository (?mount=).
func (r *Registry) postUpload(w http.ResponseWriter, req *http.Request, t target) error {
	query := req.URL.Query()
	if s := query.Get("mount"); s != "" {
		d, err := parseDigest(s)
		if err != nil {
			return errDigestInvalid(s, err)
		}
		ok, err := r.mount(req.Context(), t.name, query.Get("from"), d)
		if err != nil {
			return err
		}
		if ok {
			created(w, t.name, d)
			return nil
		}
	}
	algorithm := sha256Name
	if s := query.Get("digest-algorithm"); s != "" {
		if newHash(s) == nil {
			return errDigestInvalid(s, errUnknownAlgorithm)
		}
		algorithm = s
	}
	s := query.Get("digest")
	if s == "" {
		u, err := r.uploads.begin(t.name, algorithm)
		if err != nil {
			return err
		}
		<-u.turn
		setUpload(w, t.name, u.id, 0)
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return r.receiveWhole(w, req, t, s)
}

// receiveWhole receives the blob with the digest s in a single request.
func (r *Registry) receiveWhole(w http.ResponseWriter, req *http.Request, t target, s string) error {
	d, err := parseDigest(s)
	if err != nil {
		return errDigestInvalid(s, err)
	}
	u, err := r.uploads.begin(t.name, d.algorithm)
	if err != nil {
		return err
	}
	c := u.claimUpload(w)
	defer func() { u.release(c); <-u.turn }()
	if err := r.receive(req, u, c, -1); err != nil {
		return errors.Join(err, r.uploads.end(u)) // the client has no id to continue with
	}
	if err := r.finish(req.Context(), u, t.name, d); err != nil {
		return err
	}
	created(w, t.name, d)
	return nil
}

// mount links a blob of the repository from, or of any repository if from is empty. It needs no
// further permission, because a user who may read one repository may read all.
func (r *Registry) mount(ctx context.Context, name, from string, d digest) (bool, error) {
	if _, err := r.root.Stat(d.blobPath()); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	names := []string{from}
	if from != "" && checkName(from) != nil {
		names = nil
	}
	if from == "" {
		var err error
		if names, err = r.repositories(ctx); err != nil {
			return false, err
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, other := range names {
		_, err := r.statBlob(other, d)
		if err == nil {
			return true, r.link(name, d)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// getUpload returns the progress of an upload, for a client that lost the response to a request.
func (r *Registry) getUpload(w http.ResponseWriter, _ *http.Request, t target) error {
	u, err := r.uploads.find(t)
	if err != nil {
		return err
	}
	setUpload(w, t.name, u.id, u.size.Load())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// patchUpload appends a chunk, or a stream of unknown size.
func (r *Registry) patchUpload(w http.ResponseWriter, req *http.Request, t target) error {
	u, c, release, err := r.change(w, req, t)
	if err != nil {
		return err
	}
	defer release()
	limit, err := checkRange(w, req, u, t)
	if err != nil {
		return err
	}
	if err := r.receive(req, u, c, limit); err != nil {
		return err
	}
	setUpload(w, t.name, u.id, u.size.Load())
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// putUpload appends the last chunk, or the whole content, and finishes the upload.
func (r *Registry) putUpload(w http.ResponseWriter, req *http.Request, t target) error {
	s := req.URL.Query().Get("digest")
	d, err := parseDigest(s)
	if err != nil {
		return errDigestInvalid(s, err)
	}
	u, c, release, err := r.change(w, req, t)
	if err != nil {
		return err
	}
	defer release()
	limit, err := checkRange(w, req, u, t)
	if err != nil {
		return err
	}
	if u.size.Load() == 0 {
		u.algorithm, u.hash = d.algorithm, newHash(d.algorithm)
	}
	if err := r.receive(req, u, c, limit); err != nil {
		return err
	}
	if err := r.finish(req.Context(), u, t.name, d); err != nil {
		return err
	}
	created(w, t.name, d)
	return nil
}

// deleteUpload cancels an upload.
func (r *Registry) deleteUpload(w http.ResponseWriter, req *http.Request, t target) error {
	u, _, release, err := r.change(w, req, t)
	if err != nil {
		return err
	}
	defer release()
	if err := r.uploads.end(u); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// change finds an upload and takes its turn.
func (r *Registry) change(w http.ResponseWriter, req *http.Request, t target) (*upload, *claim, func(), error) {
	u, err := r.uploads.find(t)
	if err != nil {
		return nil, nil, nil, err
	}
	c, release, err := u.takeTurn(w, req)
	return u, c, release, err
}

// receive appends the body of a request, at most limit bytes unless limit is negative. Bytes
// received before an error are kept, so the upload can continue after them.
func (r *Registry) receive(req *http.Request, u *upload, c *claim, limit int64) error {
	f, err := r.root.OpenFile(u.file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := u.rehash(req.Context(), f); err != nil {
		return err
	}
	buf := buffers.Get().(*[uploadBuffer]byte)
	defer buffers.Put(buf)
	start := u.size.Load()
	for {
		u.setDeadline(c, time.Now().Add(uploadIdle))
		n, readErr := readFull(req.Body, buf[:])
		if err := r.room(); err != nil {
			return err
		}
		size := u.size.Load()
		if limit >= 0 && size-start+int64(n) > limit {
			u.hash = nil
			err := f.Truncate(start)
			u.size.Store(start)
			return errors.Join(badRequest(codeSizeInvalid, "more came than the %d bytes of Content-Range", limit), err)
		}
		written, err := f.WriteAt(buf[:n], size)
		_, _ = u.hash.Write(buf[:written]) // never fails
		size = u.size.Add(int64(written))
		switch {
		case err != nil:
			return err
		case readErr == io.EOF: //nolint:errorlint // readers return it bare
			if limit >= 0 && size-start < limit {
				return badRequest(codeSizeInvalid, "%d bytes came of the %d of Content-Range; the upload goes on at %d", size-start, limit, size)
			}
			return f.Close()
		case errors.Is(readErr, os.ErrDeadlineExceeded):
			return errInterrupted
		case readErr != nil:
			return badRequest(codeUploadInvalid, "the request ended early; the upload goes on at %d", size)
		}
	}
}

// finish verifies the content, sets the final name and links the blob to the repository. finish
// ends the upload, even on an error.
func (r *Registry) finish(ctx context.Context, u *upload, name string, d digest) (err error) {
	defer func() { err = errors.Join(err, r.uploads.end(u)) }()
	f, err := r.root.OpenFile(u.file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if u.algorithm != d.algorithm {
		u.algorithm, u.hash = d.algorithm, nil
	}
	if err := u.rehash(ctx, f); err != nil {
		return err
	}
	if found := hex.EncodeToString(u.hash.Sum(nil)); found != d.hex {
		return badRequest(codeDigestInvalid, "the digest of the %d received bytes is %s:%s, not %s", u.size.Load(), d.algorithm, found, d)
	}
	blob := d.blobPath()
	durable := false
	if _, err := r.root.Stat(blob); errors.Is(err, fs.ErrNotExist) {
		if err := f.Sync(); err != nil { // may take a while
			return err
		}
		durable = true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, err := r.root.Stat(blob); errors.Is(err, fs.ErrNotExist) {
		if !durable { // collected meanwhile
			if err := f.Sync(); err != nil {
				return err
			}
		}
		if err := r.mkdirAll(path.Dir(blob)); err != nil {
			return err
		}
		// If another upload of the same blob came first, equal bytes replace it.
		if err := r.root.Rename(u.file, blob); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return r.link(name, d)
}

// checkRange returns the number of bytes to expect, -1 if unknown. A chunk must begin at the end
// of the previous one.
func checkRange(w http.ResponseWriter, req *http.Request, u *upload, t target) (int64, error) {
	header := req.Header.Get("Content-Range")
	if header == "" {
		return -1, nil
	}
	first, length, err := parseContentRange(header)
	if err != nil {
		return 0, err
	}
	if size := u.size.Load(); first != size {
		setUpload(w, t.name, u.id, u.size.Load())
		return 0, &apiError{http.StatusRequestedRangeNotSatisfiable, codeUploadInvalid, fmt.Sprintf("the chunk begins at %d, and the next byte is %d", first, size)}
	}
	if req.ContentLength >= 0 && req.ContentLength != length {
		return 0, badRequest(codeSizeInvalid, "Content-Length %d does not fit Content-Range %s", req.ContentLength, header)
	}
	return length, nil
}

var rangeSyntax = regexp.MustCompile(`^([0-9]+)-([0-9]+)$`)

// parseContentRange parses FIRST-LAST, the distribution-spec's own form of the header; both are
// inclusive. length is positive, and first+length does not overflow.
func parseContentRange(header string) (first, length int64, err error) {
	m := rangeSyntax.FindStringSubmatch(header)
	if m == nil {
		return 0, 0, badRequest(codeUploadInvalid, "Content-Range %.60q is not FIRST-LAST", header)
	}
	first, err1 := strconv.ParseInt(m[1], 10, 64)
	last, err2 := strconv.ParseInt(m[2], 10, 64)
	if err1 != nil || err2 != nil || last < first || last == 1<<63-1 {
		return 0, 0, badRequest(codeUploadInvalid, "Content-Range %.60q is no range", header)
	}
	return first, last - first + 1, nil
}

// setUpload sets the headers with the progress of an upload. For an empty upload Range is 0-0,
// as in Docker's registry, because the form cannot express an empty range.
func setUpload(w http.ResponseWriter, name, id string, size int64) {
	h := w.Header()
	h.Set("Location", "/v2/"+name+"/blobs/uploads/"+id)
	h.Set("Docker-Upload-UUID", id)
	h.Set("Range", fmt.Sprintf("0-%d", max(size-1, 0)))
}

// created answers that a blob was created.
func created(w http.ResponseWriter, name string, d digest) {
	h := w.Header()
	h.Set("Location", (&url.URL{Path: "/v2/" + name + "/blobs/" + d.String()}).String())
	h.Set("Docker-Content-Digest", d.String())
	w.WriteHeader(http.StatusCreated)
}
