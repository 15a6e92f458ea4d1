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
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxUploads bounds the number of unfinished uploads.
const maxUploads = 10000

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

// uploadIdle is the longest pause of a client within a request body.
const uploadIdle = 2 * time.Minute
