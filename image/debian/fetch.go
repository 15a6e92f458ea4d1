package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// FetchError says that a file of an archive could not be fetched.
type FetchError struct {
	URI    string // without a password
	Status int    // of HTTP; 0 without an answer
	Err    error

	origin string // explains where the address comes from
}

func (e *FetchError) Error() string { return fmt.Sprintf("fetch %s: %s%s", e.URI, e.Err, e.origin) }

func (e *FetchError) Unwrap() error { return e.Err }

// fetchError wraps err as a [FetchError] of uri.
func fetchError(uri string, err error, origin string) error {
	e := &FetchError{URI: redact(uri), Err: err, origin: origin}
	var status *statusError
	if errors.As(err, &status) {
		e.Status = status.code
	}
	return e
}

type fetcher struct {
	client  *http.Client
	cache   string
	idle    time.Duration // a download without data for this long fails
	backoff time.Duration // before the second attempt, doubled for the third
}

// open starts to read uri. A since that is not zero may yield errNotModified. The reader fails when
// no data arrives for f.idle.
func (f *fetcher) open(ctx context.Context, uri string, since time.Time) (io.ReadCloser, time.Time, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, time.Time{}, errors.New("address does not parse")
	}
	if u.Scheme == "file" {
		return openFile(u.Path)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(f.idle, func() { cancel(fmt.Errorf("no data for %s", f.idle)) })
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil {
		idle.Stop()
		cancel(nil)
		return nil, time.Time{}, errors.New("address does not parse")
	}
	req.Header.Set("User-Agent", "fre")
	if !since.IsZero() {
		req.Header.Set("If-Modified-Since", since.UTC().Format(http.TimeFormat))
	}
	resp, err := f.client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		err = refused(resp.StatusCode, !since.IsZero())
	}
	if err != nil {
		idle.Stop()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, time.Time{}, err
	}
	modified, _ := http.ParseTime(resp.Header.Get("Last-Modified"))
	return &idleReader{ctx: ctx, body: resp.Body, timer: idle, idle: f.idle, cancel: cancel}, modified, nil
}

// refused returns the error of a status other than 200. conditional says that 304 may come.
func refused(status int, conditional bool) error {
	if status == http.StatusNotModified && conditional {
		return errNotModified
	}
	return &statusError{status}
}

// openFile returns the file and the time of its last change.
func openFile(path string) (io.ReadCloser, time.Time, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	st, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, time.Time{}, err
	}
	return file, st.ModTime(), nil
}

type idleReader struct {
	ctx    context.Context //nolint:containedctx // for its cause
	body   io.ReadCloser
	timer  *time.Timer
	idle   time.Duration
	cancel context.CancelCauseFunc
}

func (r *idleReader) Read(p []byte) (int, error) {
	r.timer.Reset(r.idle)
	n, err := r.body.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
		if cause := context.Cause(r.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (r *idleReader) Close() error {
	r.timer.Stop()
	r.cancel(nil)
	return r.body.Close()
}

// temporary reports whether another attempt may succeed.
func temporary(err error) bool {
	var status *statusError
	return !errors.Is(err, errNotModified) && !errors.Is(err, fs.ErrNotExist) &&
		(!errors.As(err, &status) || status.code >= 500 || status.code == 429)
}

// retry runs what up to three times while the error may be temporary.
func (f *fetcher) retry(ctx context.Context, what func() error) error {
	wait := f.backoff
	for try := 1; ; try++ {
		err := what()
		if err == nil || ctx.Err() != nil || !temporary(err) || try == 3 {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
		wait *= 2
	}
}

// verified returns the cache's file for a content hash. If needed it downloads the file from the
// first of uris that succeeds. The bytes are checked on every call: the cache is not trusted
// further than the network. The caller closes the file.
func (f *fetcher) verified(ctx context.Context, dir, hash string, size int64, uris ...string) (*os.File, error) {
	path := filepath.Join(f.cache, dir, hash)
	file, err := os.Open(path)
	if err == nil {
		if err = check(file, hash, size); err == nil {
			return file, nil
		}
		_ = file.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrHash) {
		return nil, err
	}
	for _, uri := range uris {
		err = f.retry(ctx, func() error { return f.download(ctx, uri, path, hash, size) })
		if err == nil {
			return os.Open(path)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fetchError(uris[len(uris)-1], err, "")
}

func (f *fetcher) download(ctx context.Context, uri, path, hash string, size int64) (err error) {
	body, _, err := f.open(ctx, uri, time.Time{})
	if err != nil {
		return err
	}
	defer body.Close()
	return writeAside(path, func(w *os.File) error {
		h := sha256.New()
		n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(body, size+1))
		if err != nil {
			return err
		}
		if n != size {
			return fmt.Errorf("%w: got %d bytes, want %d", ErrHash, n, size)
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != hash {
			return fmt.Errorf("%w: got sha256 %s, want %s", ErrHash, got, hash)
		}
		return nil
	})
}

// writeAside makes path appear whole. There is no fsync, because the cache's content is checked
// when read.
func writeAside(path string, fill func(*os.File) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "tmp-*")
	if err != nil {
		return err
	}
	err = fill(tmp)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// check reads all of file, then rewinds it.
func check(file *os.File, hash string, size int64) error {
	h := sha256.New()
	n, err := io.Copy(h, file)
	if err != nil {
		return err
	}
	if n != size || hex.EncodeToString(h.Sum(nil)) != hash {
		return ErrHash
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

// redact removes a password from an address before it goes into an error or a log.
func redact(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return "(address)"
	}
	return u.Redacted()
}
