// Package client is a client of the video service: resumable uploads (tus 1.0), assets and live
// streams. An error reported by the service is an *api.Error.
package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
)

// Client is safe for concurrent use.
type Client struct {
	base string // without a trailing slash
	http http.Client
}

// New returns a client of the service at the URL base.
func New(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is no address of a service, such as http://127.0.0.1:8090", base)
	}
	return &Client{base: strings.TrimRight(base, "/")}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Asset is an asset in the service's API.
type Asset = asset.View

// do sends a request. The caller closes the body. Statuses from 400 on are errors.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, body io.Reader, length int64) (*http.Response, error) {
	target := c.base + path
	if strings.Contains(path, "://") {
		target = path
	}
	r, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	if header != nil {
		r.Header = header
	}
	if body != nil {
		r.ContentLength = length
	}
	a, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if a.StatusCode < 400 {
		return a, nil
	}
	defer a.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(a.Body, 64<<10)) // an incomplete message is good enough
	e := api.ErrorBody{}
	if json.Unmarshal(b, &e) != nil || e.Error == nil {
		e.Error = &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("%s %s: %s", method, path, a.Status), Status: a.StatusCode}
		if method == http.MethodHead { // an answer to HEAD has no body
			return nil, e.Error
		}
		return nil, fmt.Errorf("%w: %w", ErrNoService, e.Error)
	}
	e.Error.Status = a.StatusCode
	return nil, e.Error
}

// ask sends a request without a body and decodes the JSON answer.
func ask[T any](ctx context.Context, c *Client, method, path string) (T, error) {
	var v T
	a, err := c.do(ctx, method, path, nil, nil, 0)
	if err != nil {
		return v, err
	}
	defer a.Body.Close()
	if err = json.NewDecoder(a.Body).Decode(&v); err != nil {
		err = fmt.Errorf("%w: %s %s: %w", ErrNoService, method, path, err)
	}
	return v, err
}

// ErrNoService reports an answer from a server that is no video service.
var ErrNoService = errors.New("the answer is not that of a video service")

// Assets returns all assets, the newest first.
func (c *Client) Assets(ctx context.Context) ([]Asset, error) {
	l, err := ask[struct {
		Assets []Asset `json:"assets"`
	}](ctx, c, http.MethodGet, "/v1/assets")
	return l.Assets, err
}

// Asset returns the asset of an id.
func (c *Client) Asset(ctx context.Context, id string) (Asset, error) {
	return ask[Asset](ctx, c, http.MethodGet, "/v1/assets/"+url.PathEscape(id))
}

// Remove deletes an asset.
func (c *Client) Remove(ctx context.Context, id string) error {
	a, err := c.do(ctx, http.MethodDelete, "/v1/assets/"+url.PathEscape(id), nil, nil, 0)
	if err != nil {
		return err
	}
	return a.Body.Close()
}

// Retry starts the work on a failed asset again.
func (c *Client) Retry(ctx context.Context, id string) (Asset, error) {
	return ask[Asset](ctx, c, http.MethodPost, "/v1/assets/"+url.PathEscape(id)+"/retry")
}

// ErrRemoved reports that an asset was removed while Follow followed it.
var ErrRemoved = errors.New("the asset was removed")

// Follow calls each with the current asset and after every change, until the asset is ready or
// failed, and returns the last state. Follow survives restarts of the service.
func (c *Client) Follow(ctx context.Context, id string, each func(Asset)) (Asset, error) {
	wait := 100 * time.Millisecond
	for {
		last, over, err := c.followOnce(ctx, id, each)
		if over || ctx.Err() != nil {
			return last, err
		}
		var wire *api.Error
		if errors.As(err, &wire) && wire.Status < 500 {
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

func (c *Client) followOnce(ctx context.Context, id string, each func(Asset)) (last Asset, over bool, err error) {
	a, err := c.do(ctx, http.MethodGet, "/v1/assets/"+url.PathEscape(id)+"/events", nil, nil, 0)
	if err != nil {
		return last, false, err
	}
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "event: removed" {
			return last, true, ErrRemoved
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		last = Asset{}
		if err := json.Unmarshal([]byte(data), &last); err != nil {
			return last, false, err
		}
		each(last)
		if last.State == asset.Ready || last.State == asset.Failed {
			return last, true, nil
		}
	}
	return last, false, lines.Err()
}

// Video is a video to upload.
type Video struct {
	Name       string
	Codec      string // of media.Codecs; "": the service's default
	Protection asset.Protection
	Data       io.ReaderAt
	Size       int64 // bytes of Data
}

// Upload uploads a video and returns its asset's id. Upload is Begin and Continue in one.
func (c *Client) Upload(ctx context.Context, v Video, report func(sent int64)) (id string, err error) {
	if id, err = c.Begin(ctx, v); err != nil {
		return "", err
	}
	return id, c.Continue(ctx, id, v, report)
}

// Begin creates an upload without sending a byte of the video, and returns its asset's id.
func (c *Client) Begin(ctx context.Context, v Video) (id string, err error) {
	header := tus()
	header.Set("Upload-Length", strconv.FormatInt(v.Size, 10))
	metadata := "filename " + base64.StdEncoding.EncodeToString([]byte(path.Base(v.Name)))
	if v.Codec != "" {
		metadata += ",codec " + base64.StdEncoding.EncodeToString([]byte(v.Codec))
	}
	if v.Protection != asset.Clear {
		metadata += ",protection " + base64.StdEncoding.EncodeToString([]byte(v.Protection))
	}
	header.Set("Upload-Metadata", metadata)
	a, err := c.do(ctx, http.MethodPost, "/v1/uploads/", header, nil, 0)
	if err != nil {
		return "", err
	}
	id = path.Base(a.Header.Get("Location"))
	if err := a.Body.Close(); err != nil {
		return "", err
	}
	if !asset.ValidID(id) {
		return "", fmt.Errorf("%w: the upload is at %q", ErrNoService, a.Header.Get("Location"))
	}
	return id, nil
}

// Continue uploads the rest of a video, for an upload begun by this or another client. After a
// broken connection Continue resumes behind the received bytes. Continue calls report with the
// number of bytes sent. The error is [ErrGone] if the service no longer has the upload, or if the
// upload has another size.
func (c *Client) Continue(ctx context.Context, id string, v Video, report func(sent int64)) error {
	target := "/v1/uploads/" + id
	for before, failures := int64(0), 0; ; {
		at, err := c.received(ctx, target, v.Size)
		if err == nil {
			report(at)
			if at == v.Size {
				return nil
			}
			if at > before {
				before, failures = at, 0
			}
			header := tus()
			header.Set("Content-Type", "application/offset+octet-stream")
			header.Set("Upload-Offset", strconv.FormatInt(at, 10))
			sent := &counting{r: io.NewSectionReader(v.Data, at, v.Size-at), at: at, report: report}
			var a *http.Response
			if a, err = c.do(ctx, http.MethodPatch, target, header, sent, v.Size-at); err == nil {
				return a.Body.Close()
			}
		}
		if failures++; failures > 10 || ctx.Err() != nil || !passing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(100*time.Millisecond<<failures, 5*time.Second)):
		}
	}
}

// ErrGone reports that the service does not have the upload.
var ErrGone = errors.New("the upload is gone")

func tus() http.Header { return http.Header{"Tus-Resumable": {"1.0.0"}} }

// received returns how many bytes of an upload of size bytes have arrived.
func (c *Client) received(ctx context.Context, target string, size int64) (int64, error) {
	a, err := c.do(ctx, http.MethodHead, target, tus(), nil, 0)
	var wire *api.Error
	if errors.As(err, &wire) && (wire.Status == http.StatusNotFound || wire.Status == http.StatusGone) {
		return 0, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return 0, err
	}
	if err := a.Body.Close(); err != nil {
		return 0, err
	}
	if length := a.Header.Get("Upload-Length"); length != strconv.FormatInt(size, 10) {
		return 0, fmt.Errorf("%w: it has %q bytes, not %d", ErrGone, length, size)
	}
	at, err := strconv.ParseInt(a.Header.Get("Upload-Offset"), 10, 64)
	if err != nil || at < 0 || at > size {
		return 0, fmt.Errorf("%w: it has %q of %d bytes", ErrNoService, a.Header.Get("Upload-Offset"), size)
	}
	return at, nil
}

// passing reports whether another try may succeed: the service or the network was away, or
// another request still writes to the upload.
func passing(err error) bool {
	var wire *api.Error
	switch {
	case errors.Is(err, ErrGone):
		return false
	case !errors.As(err, &wire):
		return true
	case wire.Status == http.StatusConflict || wire.Status == http.StatusLocked:
		return true
	}
	return wire.Status >= http.StatusInternalServerError && wire.Status != http.StatusInsufficientStorage
}

// counting reports the bytes read.
type counting struct {
	r      io.Reader
	at     int64
	report func(int64)
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.at += int64(n)
	c.report(c.at)
	return n, err
}
