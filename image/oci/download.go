package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// blob is a layer's archive, packed or not.
type blob struct {
	open func(context.Context) (io.ReadCloser, error)
	size int64 // of open's content, for progress; 0 if unknown
	// packed is the registry's descriptor of the blob; nil for archives.
	packed *v1.Descriptor
}

// The connection that brings a blob may break. The received bytes are kept in a file of the cache,
// named after the blob's digest, until the blob is complete: then the file is removed. A new
// connection asks for the rest only (Range, RFC 9110 section 14.2). By the file a later pull does
// the same after a cancelled pull and after a crash.
//
//	CACHE/ab12….part ──→ the bytes it holds ─┐
//	registry         ──→ the rest ───────────┴→ hash → caller, who unpacks
//	                        └→ appended to the file

// partsExpire is the age at which an unfinished download is removed.
const partsExpire = 7 * 24 * time.Hour

// blobs downloads the blobs of one repository.
type blobs struct {
	j          *job
	repository name.Repository
	client     *http.Client
	cache      string // directory of unfinished downloads; "" for none
	pause      func(ctx context.Context, d time.Duration) error
}

// blobs makes a client for the blobs of a reference's repository.
func (o RegistryOptions) blobs(ctx context.Context, j *job, r name.Reference) (*blobs, error) {
	auth, err := authn.Resolve(ctx, o.keychain(), r.Context())
	if err != nil {
		return nil, registryError(r.Context(), err)
	}
	t, err := transport.NewWithContext(ctx, r.Context().Registry, auth, o.transport(r.Context().Registry), []string{r.Context().Scope(transport.PullScope)})
	if err != nil {
		return nil, registryError(r.Context(), err)
	}
	if o.Cache != "" {
		expireParts(o.Cache, time.Now().Add(-partsExpire))
	}
	return &blobs{j: j, repository: r.Context(), client: &http.Client{Transport: t}, cache: o.Cache, pause: o.pauser()}, nil
}

// expireParts removes unfinished downloads that no pull has touched since before.
func expireParts(dir string, before time.Time) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return // no directory yet: the first download makes it
	}
	for _, e := range list {
		if st, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), partSuffix) && st.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // after an error the next pull tries again
		}
	}
}

const partSuffix = ".part"

// blob returns a blob of the repository. Reading checks it against its digest and size.
func (b *blobs) blob(d v1.Descriptor) blob {
	return blob{size: d.Size, packed: &d, open: func(ctx context.Context) (io.ReadCloser, error) {
		if d.Digest.Algorithm != "sha256" || len(d.Digest.Hex) != 2*sha256.Size {
			return nil, fmt.Errorf("%w: digest %q: only sha256 is supported", ErrArchive, d.Digest)
		}
		x := &download{blobs: b, ctx: ctx, d: d, hash: sha256.New()}
		x.openFile()
		return x, nil
	}}
}

// download is a Reader of a blob. It ends with io.EOF only after all bytes came and their digest is
// right.
type download struct {
	*blobs
	ctx  context.Context //nolint:containedctx // lives as long as one blob's coming
	d    v1.Descriptor
	hash hash.Hash

	at     int64         // bytes that were read
	file   *os.File      // of the cache; may be nil
	held   int64         // bytes in file
	old    int64         // bytes in file from earlier downloads
	body   io.ReadCloser // of the connection; nil without one
	failed int           // consecutive connections that brought no byte
	done   bool          // all bytes came, right or wrong
}

// openFile opens the file of received bytes. Without a cache, or while another download of the same
// blob holds the file's lock, nothing is kept.
func (x *download) openFile() {
	if x.cache == "" || os.MkdirAll(x.cache, 0o700) != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(x.cache, x.d.Digest.Hex+partSuffix), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	st, err := f.Stat()
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil && st.Size() > x.d.Size {
		err = f.Truncate(0)
		st = nil
	}
	if err != nil {
		_ = f.Close()
		return
	}
	x.file = f
	if st != nil {
		x.held, x.old = st.Size(), st.Size()
	}
}

// Read implements io.Reader.
func (x *download) Read(p []byte) (int, error) {
	for {
		n, err := x.read(p)
		if n > 0 || err != nil {
			return n, err
		}
		if len(p) == 0 {
			return 0, nil
		}
	}
}

// read may return 0 and no error: then the caller calls it again.
func (x *download) read(p []byte) (int, error) {
	left := x.d.Size - x.at
	switch {
	case x.done:
		return 0, io.EOF
	case left == 0:
		return 0, x.end()
	case x.at < x.held:
		n, err := x.file.ReadAt(p[:min(int64(len(p)), x.held-x.at)], x.at)
		if n > 0 {
			x.take(p[:n])
			return n, nil
		}
		if x.ctx.Err() != nil {
			return 0, context.Cause(x.ctx)
		}
		return 0, fmt.Errorf("read the downloaded part of %s: %w", x.d.Digest, err)
	case x.body == nil:
		if err := x.connect(); err != nil {
			return 0, x.again(err)
		}
	}
	n, err := x.body.Read(p[:min(int64(len(p)), left)])
	if n > 0 {
		x.failed = 0
		x.keep(p[:n])
		x.take(p[:n])
		return n, nil
	}
	if err == nil {
		return 0, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	x.hangUp()
	return 0, x.again(err)
}

func (x *download) take(p []byte) {
	x.hash.Write(p)
	x.at += int64(len(p))
}

// keep appends to the file. After a write error the download goes on without the file.
func (x *download) keep(p []byte) {
	if x.file == nil {
		return
	}
	if _, err := x.file.WriteAt(p, x.at); err != nil {
		x.drop()
		return
	}
	x.held = x.at + int64(len(p))
}

// drop removes the file.
func (x *download) drop() {
	if x.file == nil {
		return
	}
	_ = os.Remove(x.file.Name()) // a leftover is used by the next pull, or expires
	_ = x.file.Close()
	x.file, x.held = nil, 0
}

// end checks that the body ends at the manifest's size and that the digest is right.
func (x *download) end() error {
	x.done = true
	if x.body != nil {
		var one [1]byte
		if n, _ := io.ReadFull(x.body, one[:]); n > 0 {
			return x.lie("is longer than the manifest's %d bytes", x.d.Size)
		}
	}
	if got := hex.EncodeToString(x.hash.Sum(nil)); got != x.d.Digest.Hex {
		return x.lie("has the digest sha256:%s", got)
	}
	return io.EOF
}

// lie returns the error for a blob that contradicts its manifest.
func (x *download) lie(format string, a ...any) error {
	x.done = true
	x.drop()
	return fmt.Errorf("%w %s: %s %s: nothing is kept: pull again; if the error persists, ask the registry's operator", ErrRegistry, x.repository.RegistryStr(), x.d.Digest, fmt.Sprintf(format, a...))
}

// connect asks for the missing bytes.
func (x *download) connect() error {
	u := url.URL{Scheme: x.repository.Scheme(), Host: x.repository.RegistryStr(), Path: "/v2/" + x.repository.RepositoryStr() + "/blobs/" + x.d.Digest.String()}
	r, err := http.NewRequestWithContext(x.ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	if x.at > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", x.at))
	}
	resp, err := x.client.Do(r)
	if err != nil {
		return err
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		_ = resp.Body.Close()
		return err
	}
	skip, length := int64(0), x.d.Size-x.at
	if resp.StatusCode == http.StatusOK {
		skip, length = x.at, x.d.Size // the registry ignored Range and sends the whole blob
	} else if from, _, ok := strings.Cut(strings.TrimPrefix(resp.Header.Get("Content-Range"), "bytes "), "-"); !ok || from != strconv.FormatInt(x.at, 10) {
		_ = resp.Body.Close()
		return x.lie("has the Content-Range %q, but the request was for offset %d", resp.Header.Get("Content-Range"), x.at)
	}
	if resp.ContentLength >= 0 && resp.ContentLength != length {
		_ = resp.Body.Close()
		return x.lie("has %d bytes, but the manifest says %d", resp.ContentLength, length)
	}
	if _, err := io.CopyN(io.Discard, resp.Body, skip); err != nil {
		_ = resp.Body.Close()
		return err
	}
	x.body = resp.Body
	return nil
}

func (x *download) hangUp() {
	if x.body != nil {
		_ = x.body.Close()
		x.body = nil
	}
}

// again waits before the next attempt and returns nil, or gives up and returns the error.
func (x *download) again(err error) error {
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	var said *transport.Error
	if x.done || errors.As(err, &said) || !breaks(err) {
		return registryError(x.repository, err)
	}
	if x.failed++; x.failed >= retries {
		return fmt.Errorf("%w: the connection broke %d times in a row; pull again to continue the download", registryError(x.repository, err), x.failed)
	}
	x.j.event(image.Progress{Step: "warning", Name: short(store.Digest(x.d.Digest.String())), Message: fmt.Sprintf("the connection broke after %d of %d bytes: trying again", x.at, x.d.Size)})
	return x.pause(x.ctx, backoff(x.failed-1))
}

// Close ends the download. It keeps the bytes of an unfinished download for the next pull.
func (x *download) Close() error {
	x.hangUp()
	if x.file == nil {
		return nil
	}
	if x.at == x.d.Size {
		x.drop()
		return nil
	}
	err := x.file.Close()
	x.file = nil
	return err
}

// read calls f with the blob's content. If bytes kept from an earlier download turn out to be
// damaged, as after a crash, it downloads the blob from the beginning and calls f again.
func (b blob) read(ctx context.Context, f func(io.Reader) error) error {
	for {
		r, err := b.open(ctx)
		if err != nil {
			return err
		}
		err = f(r)
		x, ok := r.(*download)
		damaged := ok && x.old > 0 && (x.done || errors.Is(err, ErrArchive) || errors.Is(err, ErrLayer)) && err != nil
		if damaged {
			x.drop()
		}
		if err := errors.Join(err, r.Close()); !damaged {
			return err
		}
	}
}
