package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxUploads bounds the number of unfinished uploads.
const maxUploads = 10000

// uploadIdle is the longest pause of a client within a request body.
const uploadIdle = 2 * time.Minute

// uploadBuffer is the size of the buffer of one upload.
const uploadBuffer = 256 << 10

var buffers = sync.Pool{New: func() any { return new([uploadBuffer]byte) }}

// uploads are the unfinished uploads.
type uploads struct {
	disk *disk

	mu   sync.Mutex
	byID map[string]*upload
}

// upload is content being uploaded. Its file holds the bytes received so far, across requests
// and restarts of the process. The hash of these bytes is in memory, or is computed again from
// the file.
type upload struct {
	id   string
	file string // below the registry's root

	// turn holds a value while a request changes the fields below.
	turn      chan struct{}
	size      atomic.Int64 // of the file
	algorithm string
	hash      hash.Hash // of the file; nil if the file must be read again
	done      bool      // finished or cancelled: the file no longer belongs to this upload

	mu     sync.Mutex
	latest *claim // nil after its release
}

// claim is the claim of a request to an upload. The latest claim wins: the client has given up
// its earlier requests, but their connections may not have noticed.
type claim struct {
	superseded chan struct{}
	conn       *http.ResponseController
}

// claimUpload makes a claim and ends the previous claim: reads of the previous request fail.
func (u *upload) claimUpload(w http.ResponseWriter) *claim {
	c := &claim{make(chan struct{}), http.NewResponseController(w)}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.latest != nil {
		close(u.latest.superseded)
		// Without support for deadlines, wait for the reads.
		_ = u.latest.conn.SetReadDeadline(time.Unix(1, 0))
	}
	u.latest = c
	return c
}

// setDeadline sets the read deadline of the claim, unless a later claim has replaced it.
func (u *upload) setDeadline(c *claim, deadline time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.latest == c {
		_ = c.conn.SetReadDeadline(deadline)
	}
}

func (u *upload) release(c *claim) {
	u.setDeadline(c, time.Time{})
	u.mu.Lock()
	if u.latest == c {
		u.latest = nil
	}
	u.mu.Unlock()
}

// uploadPath binds an upload to a repository: requests for another repository fail.
func uploadPath(id, name string) string {
	repo := sha256.Sum256([]byte(name))
	return path.Join(uploadsDir, id+"."+hex.EncodeToString(repo[:16]))
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// load loads the uploads of an earlier process.
func (s *uploads) load() error {
	names, err := s.disk.list(uploadsDir)
	if err != nil {
		return err
	}
	s.byID = make(map[string]*upload)
	for _, name := range names {
		info, err := s.disk.root.Stat(path.Join(uploadsDir, name))
		if err != nil {
			return err
		}
		id, _, _ := strings.Cut(name, ".")
		u := &upload{id: id, file: path.Join(uploadsDir, name), turn: make(chan struct{}, 1), algorithm: sha256Name}
		u.size.Store(info.Size())
		s.byID[id] = u
	}
	return nil
}

// begin begins an upload and hashes content as it arrives. The caller has the turn and gives
// it back.
func (s *uploads) begin(name, algorithm string) (*upload, error) {
	id := newUUID()
	u := &upload{id: id, file: uploadPath(id, name), turn: make(chan struct{}, 1), algorithm: algorithm, hash: newHash(algorithm)}
	u.turn <- struct{}{}
	s.mu.Lock()
	full := len(s.byID) >= maxUploads
	if !full {
		s.byID[id] = u
	}
	s.mu.Unlock()
	if full {
		return nil, errTooManyUps
	}
	f, err := s.disk.root.OpenFile(u.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, s.end(u))
	}
	return u, nil
}

// end forgets an upload and removes its file if it still exists. The caller has the turn.
func (s *uploads) end(u *upload) error {
	u.done = true
	s.mu.Lock()
	delete(s.byID, u.id)
	s.mu.Unlock()
	return s.disk.remove(u.file)
}

// find returns an upload of the target's repository.
func (s *uploads) find(t target) (*upload, error) {
	s.mu.Lock()
	u := s.byID[t.ref]
	s.mu.Unlock()
	if u == nil || u.file != uploadPath(u.id, t.name) {
		return nil, errUploadUnknown(t.ref)
	}
	return u, nil
}

// takeTurn waits for the turn of an upload. The returned function gives the turn back. takeTurn
// interrupts a request that still reads for the upload.
func (u *upload) takeTurn(w http.ResponseWriter, req *http.Request) (*claim, func(), error) {
	c := u.claimUpload(w)
	var err error
	select {
	case u.turn <- struct{}{}:
		if !u.done {
			return c, func() { u.release(c); <-u.turn }, nil
		}
		err = errUploadUnknown(u.id)
		<-u.turn
	case <-c.superseded:
		err = errInterrupted
	case <-req.Context().Done():
		err = req.Context().Err()
	}
	u.release(c)
	return nil, nil, err
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

// readFull reads until the buffer is full or the input ends, and returns the error of the last
// read.
func readFull(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// rehash computes the hash of the file if it is unknown.
func (u *upload) rehash(ctx context.Context, f *os.File) error {
	if u.hash != nil {
		return nil
	}
	h := newHash(u.algorithm)
	buf := buffers.Get().(*[uploadBuffer]byte)
	defer buffers.Put(buf)
	size := u.size.Load()
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		_, _ = h.Write(buf[:n]) // never fails
		at += int64(n)
		if err != nil && at < size {
			return err
		}
	}
	u.hash = h
	return nil
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
