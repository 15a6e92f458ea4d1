package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/fre-engine/fre/api"
)

// Load uploads an archive of images: a docker save archive or an OCI layout, compressed or not.
// Load calls report with each line of progress, on the caller's goroutine.
func (g Images) Load(ctx context.Context, r io.Reader, report func(api.Progress)) ([]api.Image, error) {
	line, err := g.c.travelTar(ctx, "/v1/images/load", nil, r, report)
	return line.Images, err
}

// ImportOptions adjust Import.
type ImportOptions struct {
	Name    string   // "name:version"; "" for none
	Changes []string // Dockerfile instructions
	Message string
}

// Import uploads a plain archive of a file system and makes an image of the files.
func (g Images) Import(ctx context.Context, r io.Reader, o ImportOptions, report func(api.Progress)) (api.Image, error) {
	q := url.Values{"change": o.Changes}
	for key, v := range map[string]string{"name": o.Name, "message": o.Message} {
		if v != "" {
			q.Set(key, v)
		}
	}
	line, err := g.c.travelTar(ctx, "/v1/images/import", q, r, report)
	return first(line, err)
}

// Save writes an archive of the images to w.
func (g Images) Save(ctx context.Context, w io.Writer, refs []string) error {
	resp, err := g.c.send(ctx, http.MethodGet, "/v1/images/save", url.Values{"ref": refs}, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("save: the archive broke off: %w", orCause(ctx, err))
	}
	return nil
}

// Pull makes the engine pull an image from a registry.
func (g Images) Pull(ctx context.Context, r api.PullRequest, report func(api.Progress)) (api.Image, error) {
	line, err := g.c.travelJSON(ctx, "/v1/images/pull", r, report)
	return first(line, err)
}

// Push makes the engine push an image to a registry, and returns the digest of the manifest at
// the registry.
func (g Images) Push(ctx context.Context, r api.PushRequest, report func(api.Progress)) (digest string, err error) {
	line, err := g.c.travelJSON(ctx, "/v1/images/push", r, report)
	return line.Digest, err
}

// Resolve makes the engine ask a registry for an image's digest, and returns "name@sha256:…".
func (g Images) Resolve(ctx context.Context, r api.ResolveRequest) (string, error) {
	out, err := post[api.Resolved](ctx, g.c, "/v1/images/resolve", r)
	return out.Ref, err
}

// Sign makes the engine store a signature beside an image at the image's registry.
func (g Images) Sign(ctx context.Context, r api.SignRequest) error {
	resp, err := g.c.sendJSON(ctx, "/v1/images/sign", r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func first(line api.TravelLine, err error) (api.Image, error) {
	if err == nil && len(line.Images) == 0 {
		err = errors.New("the engine's answer lacks the result")
	}
	if err != nil {
		return api.Image{}, err
	}
	return line.Images[0], nil
}

func (c *Client) travelJSON(ctx context.Context, path string, body any, report func(api.Progress)) (api.TravelLine, error) {
	resp, err := c.sendJSON(ctx, path, body)
	if err != nil {
		return api.TravelLine{}, err
	}
	return readTravel(ctx, resp, report)
}

func (c *Client) travelTar(ctx context.Context, path string, q url.Values, body io.Reader, report func(api.Progress)) (api.TravelLine, error) {
	resp, err := c.send(ctx, http.MethodPost, path, q, http.Header{"Content-Type": {"application/x-tar"}}, body)
	if err != nil {
		return api.TravelLine{}, err
	}
	return readTravel(ctx, resp, report)
}

// readTravel calls report with the progress lines and returns the last line.
func readTravel(ctx context.Context, resp *http.Response, report func(api.Progress)) (api.TravelLine, error) {
	defer resp.Body.Close()
	var last api.TravelLine
	err := readLines(ctx, resp.Body, "transfer", endsShort, func(line api.TravelLine) (bool, error) {
		switch {
		case line.Error != nil:
			return true, line.Error
		case line.Progress != nil:
			report(*line.Progress)
			return false, nil
		}
		last = line
		return true, nil
	})
	return last, err
}
