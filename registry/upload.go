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

// maxUploads bounds the unfinished uploads.
const maxUploads = 10000

// uploadIdle is how long an upload may say nothing in the middle of a request.
const uploadIdle = 2 * time.Minute

// uploadBuffer is how much of an upload is in memory.
const uploadBuffer = 256 << 10

var buffers = sync.Pool{New: func() any { return new([uploadBuffer]byte) }}

// uploads are those that are not finished.
type uploads struct {
	mu   sync.Mutex
	byID map[string]*upload
}

// upload is content on its way. Its file has what came so far, whoever sends it
// and however often the process ended meanwhile; the hash of that is in memory, and
// made anew from the file where it is not.
type upload struct {
	id   string
	file string // below the registry's root

	// turn holds a value while a request changes the fields below.
	turn      chan struct{}
	size      atomic.Int64 // of the file
	algorithm string
	hash      hash.Hash // of the file; nil if it has to be read for that
	done      bool      // finished or cancelled: the file is not this upload's

	mu     sync.Mutex
	latest *claim // nil once it is released
}

// claim is a request's to an upload. The latest one wins: its client has given up the
// others, whose connections may not know it yet.
type claim struct {
	superseded chan struct{}
	conn       *http.ResponseController
}

// claimUpload returns the claim of a request, and ends the one before: its reads fail.
func (u *upload) claimUpload(w http.ResponseWriter) *claim {
	c := &claim{make(chan struct{}), http.NewResponseController(w)}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.latest != nil {
		close(u.latest.superseded)
		_ = u.latest.conn.SetReadDeadline(time.Unix(1, 0)) // what has no deadlines is waited for
	}
	u.latest = c
	return c
}

// setDeadline sets that of the claim's reads, unless a later claim has ended them.
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

// uploadPath binds an upload to its repository: another one does not find it.
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

// loadUploads finds those of an earlier process.
func (r *Registry) loadUploads() error {
	names, err := r.list(uploadsDir)
	if err != nil {
		return err
	}
	r.uploads.byID = make(map[string]*upload)
	for _, name := range names {
		info, err := r.root.Stat(path.Join(uploadsDir, name))
		if err != nil {
			return err
		}
		id, _, _ := strings.Cut(name, ".")
		u := &upload{id: id, file: path.Join(uploadsDir, name), turn: make(chan struct{}, 1), algorithm: sha256Name}
		u.size.Store(info.Size())
		r.uploads.byID[id] = u
	}
	return nil
}

// newUpload begins an upload, whose content is hashed as it comes. The caller has the
// turn and gives it back.
func (r *Registry) newUpload(name, algorithm string) (*upload, error) {
	id := newUUID()
	u := &upload{id: id, file: uploadPath(id, name), turn: make(chan struct{}, 1), algorithm: algorithm, hash: newHash(algorithm)}
	u.turn <- struct{}{}
	r.uploads.mu.Lock()
	full := len(r.uploads.byID) >= maxUploads
	if !full {
		r.uploads.byID[id] = u
	}
	r.uploads.mu.Unlock()
	if full {
		return nil, errTooManyUps
	}
	f, err := r.root.OpenFile(u.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, r.endUpload(u))
	}
	return u, nil
}

// endUpload forgets an upload whose turn the caller has, and removes its file if it is
// still there.
func (r *Registry) endUpload(u *upload) error {
	u.done = true
	r.uploads.mu.Lock()
	delete(r.uploads.byID, u.id)
	r.uploads.mu.Unlock()
	return r.remove(u.file)
}

// find returns an upload of a repository.
func (r *Registry) find(t target) (*upload, error) {
	r.uploads.mu.Lock()
	u := r.uploads.byID[t.ref]
	r.uploads.mu.Unlock()
	if u == nil || u.file != uploadPath(u.id, t.name) {
		return nil, errUploadUnknown(t.ref)
	}
	return u, nil
}

// takeTurn has an upload to itself until the function that is returned is called. A
// request that still reads for the same upload is interrupted.
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

// change finds an upload and takes a turn at it.
func (r *Registry) change(w http.ResponseWriter, req *http.Request, t target) (*upload, *claim, func(), error) {
	u, err := r.find(t)
	if err != nil {
		return nil, nil, nil, err
	}
	c, release, err := u.takeTurn(w, req)
	return u, c, release, err
}

// receive appends what a client sends, at most limit bytes if that is not negative.
// What came before an error is kept, so that the upload goes on there.
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

// readFull reads until the buffer is full or no more comes, and returns the error of
// the last read.
func readFull(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// rehash makes the hash of what the file holds, if there is none.
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

// finish verifies what came, gives it its name and the repository its blob. The
// upload is over, however it ends.
func (r *Registry) finish(ctx context.Context, u *upload, name string, d digest) (err error) {
	defer func() { err = errors.Join(err, r.endUpload(u)) }()
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
		return badRequest(codeDigestInvalid, "the digest of the %d bytes that came is %s:%s and not %s", u.size.Load(), d.algorithm, found, d)
	}
	blob := d.blobPath()
	durable := false
	if _, err := r.root.Stat(blob); errors.Is(err, fs.ErrNotExist) {
		if err := f.Sync(); err != nil { // which may take a while
			return err
		}
		durable = true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, err := r.root.Stat(blob); errors.Is(err, fs.ErrNotExist) {
		if !durable { // it was collected since
			if err := f.Sync(); err != nil {
				return err
			}
		}
		if err := r.mkdirAll(path.Dir(blob)); err != nil {
			return err
		}
		// Where another upload of it came first, the same bytes replace it.
		if err := r.root.Rename(u.file, blob); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return r.link(name, d)
}

// postUpload begins an upload, takes a whole blob at once (?digest=), or takes one
// from another repository (?mount=).
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
		u, err := r.newUpload(t.name, algorithm)
		if err != nil {
			return err
		}
		<-u.turn
		setUpload(w, t.name, u.id, 0)
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	d, err := parseDigest(s)
	if err != nil {
		return errDigestInvalid(s, err)
	}
	u, err := r.newUpload(t.name, d.algorithm)
	if err != nil {
		return err
	}
	c := u.claimUpload(w)
	defer func() { u.release(c); <-u.turn }()
	if err := r.receive(req, u, c, -1); err != nil {
		return errors.Join(err, r.endUpload(u)) // nobody knows the rest of it
	}
	if err := r.finish(req.Context(), u, t.name, d); err != nil {
		return err
	}
	created(w, t.name, d)
	return nil
}

// mount gives a repository a blob that another one has: from, or any if that does
// not have it, since who may read one repository may read all.
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

// getUpload tells how far an upload is, for who lost the answer to a request.
func (r *Registry) getUpload(w http.ResponseWriter, _ *http.Request, t target) error {
	u, err := r.find(t)
	if err != nil {
		return err
	}
	setUpload(w, t.name, u.id, u.size.Load())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// patchUpload appends a chunk, or a stream without an announced size.
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

// putUpload appends the last chunk, or all of it, and finishes the upload.
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
	if err := r.endUpload(u); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkRange returns how many bytes are to come, -1 if any number may: a chunk has
// to begin where the last one ended.
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
		return 0, badRequest(codeSizeInvalid, "Content-Length %d is not what Content-Range %s says", req.ContentLength, header)
	}
	return length, nil
}

var rangeSyntax = regexp.MustCompile(`^([0-9]+)-([0-9]+)$`)

// parseContentRange reads FIRST-LAST, the distribution-spec's own form of the header,
// both inclusive; the length is positive and first+length no overflow.
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

// setUpload tells where an upload goes on. Of an empty one, Range says what Docker's
// registry says, for no other form can.
func setUpload(w http.ResponseWriter, name, id string, size int64) {
	h := w.Header()
	h.Set("Location", "/v2/"+name+"/blobs/uploads/"+id)
	h.Set("Docker-Upload-UUID", id)
	h.Set("Range", fmt.Sprintf("0-%d", max(size-1, 0)))
}

// created answers to a blob that has come.
func created(w http.ResponseWriter, name string, d digest) {
	h := w.Header()
	h.Set("Location", (&url.URL{Path: "/v2/" + name + "/blobs/" + d.String()}).String())
	h.Set("Docker-Content-Digest", d.String())
	w.WriteHeader(http.StatusCreated)
}
