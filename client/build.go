package client

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
)

// Built is what came of a build or a deployment.
type Built struct {
	Image    api.Image
	Lock     json.RawMessage // content for the lock file; nil where there is none
	Function *api.Function   // of a deployment
}

// Build sends the template directory dir and builds its image. report is called
// with each line of progress from the caller's goroutine.
func (c *Client) Build(ctx context.Context, dir string, report func(api.Event)) (*Built, error) {
	return c.upload(ctx, "/v1/build", nil, dir, report)
}

// Base builds the named base environment, or finds it in the registry.
func (c *Client) Base(ctx context.Context, name string, report func(api.Event)) (*Built, error) {
	resp, err := c.send(ctx, http.MethodPost, "/v1/bases/"+url.PathEscape(name), nil, nil, nil)
	if err != nil {
		return nil, err
	}
	return readBuild(ctx, resp, report)
}

// DeployDir builds the template directory dir and deploys it. Of the request,
// Image is ignored.
func (c *Client) DeployDir(ctx context.Context, dir string, r api.DeployRequest, report func(api.Event)) (*Built, error) {
	q := url.Values{"replace": {strconv.FormatBool(r.Replace)}}
	if r.Name != "" {
		q.Set("name", r.Name)
	}
	return c.upload(ctx, "/v1/functions", q, dir, report)
}

// Deploy deploys an image that is already there.
func (c *Client) Deploy(ctx context.Context, r api.DeployRequest) (*Built, error) {
	resp, err := c.sendJSON(ctx, "/v1/functions", r)
	if err != nil {
		return nil, err
	}
	return readBuild(ctx, resp, func(api.Event) {})
}

func (c *Client) upload(ctx context.Context, path string, q url.Values, dir string, report func(api.Event)) (*Built, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(w, root)
		w.CloseWithError(err)
		packed <- err
	}()
	resp, err := c.send(ctx, http.MethodPost, path, q, http.Header{"Content-Type": {"application/x-tar"}}, r)
	if err != nil {
		r.CloseWithError(errStopped)
		failed := <-packed
		if failed != nil && !errors.Is(failed, errStopped) && !errors.Is(failed, io.ErrClosedPipe) {
			return nil, failed // it says more than the broken request
		}
		return nil, err
	}
	built, err := readBuild(ctx, resp, report)
	r.CloseWithError(errStopped)
	<-packed
	return built, err
}

var errStopped = errors.New("upload stopped")

func readBuild(ctx context.Context, resp *http.Response, report func(api.Event)) (*Built, error) {
	defer resp.Body.Close()
	var built *Built
	err := readLines(ctx, resp.Body, "build", endsShort, func(line api.BuildLine) (bool, error) {
		switch {
		case line.Error != nil:
			return true, line.Error
		case line.Image != nil:
			built = &Built{Image: *line.Image, Lock: line.Lock, Function: line.Function}
		case line.Event != nil:
			report(*line.Event)
		}
		return built != nil, nil
	})
	return built, err
}

// pack writes the directory as a tar stream. .git is left out: it is large and
// nothing a function runs.
func pack(w io.Writer, root *os.Root) error {
	t := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() == ".git" {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err := packEntry(t, root, path); err != nil {
			return fmt.Errorf("send %s: %w", filepath.Join(root.Name(), path), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.Close()
}

func packEntry(t *tar.Writer, root *os.Root, path string) error {
	info, err := root.Lstat(path)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: path, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(time.Second), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		return t.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(path); err != nil {
			return err
		}
		return t.WriteHeader(h)
	case 0:
	default:
		return fmt.Errorf("is a %s: only files, directories and links can be sent", info.Mode().Type())
	}
	f, err := root.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(t, f, h.Size); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("became shorter while it was read")
		}
		return err
	}
	return nil
}
