package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// Built is the result of a build or a deployment.
type Built struct {
	Image    api.Image
	Lock     json.RawMessage // content for the lock file; nil: no lock file
	Function *api.Function   // set after a deployment
}

// Logins maps a registry's host to a login: "index.docker.io", "host:5000".
type Logins map[string]api.RegistryAuth

func (l Logins) header() (http.Header, error) {
	h := http.Header{}
	if len(l) == 0 {
		return h, nil
	}
	text, err := json.Marshal(l)
	h.Set(api.RegistryConfigHeader, base64.URLEncoding.EncodeToString(text))
	return h, err
}

// BuildOptions restricts a build, and provides registry logins.
type BuildOptions struct {
	Locked  bool   // fail if the lock lacks an answer
	Offline bool   // use no network
	Logins  Logins // for the template's base image; empty: the engine's logins
}

func (o BuildOptions) query(q url.Values) url.Values {
	if o.Locked {
		q.Set("locked", "true")
	}
	if o.Offline {
		q.Set("offline", "true")
	}
	return q
}

// Build uploads the template directory dir and builds the image. Build calls report with each
// line of progress, on the caller's goroutine.
func (g Images) Build(ctx context.Context, dir string, o BuildOptions, report func(api.Progress)) (*Built, error) {
	return g.c.upload(ctx, "/v1/build", o.query(url.Values{}), o.Logins, dir, report)
}

// Base builds the named base environment, or finds the base in the store.
func (g Images) Base(ctx context.Context, name string, report func(api.Progress)) (*Built, error) {
	resp, err := g.c.send(ctx, http.MethodPost, "/v1/bases/"+url.PathEscape(name), nil, nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return readBuild(ctx, resp.Body, report)
}

// DeployDir builds the template directory dir with the given logins and deploys the image.
// DeployDir ignores r.Image.
func (g Functions) DeployDir(ctx context.Context, dir string, r api.DeployRequest, logins Logins, report func(api.Progress)) (*Built, error) {
	q := url.Values{"replace": {strconv.FormatBool(r.Replace)}, "no_traffic": {strconv.FormatBool(r.NoTraffic)}}
	if r.Name != "" {
		q.Set("name", r.Name)
	}
	return g.c.upload(ctx, "/v1/functions", BuildOptions{Locked: r.Locked, Offline: r.Offline}.query(q), logins, dir, report)
}

// Temporary describes a temporary function.
type Temporary struct {
	Name  string // unique name; Built.Function.Name is the qualified name
	Dir   string // template directory to build; excludes Image
	Image string // existing image to deploy; excludes Dir
	Trace bool   // record the files opened, for [Functions.Slim]

	BuildOptions // for Dir
}

// DeployTemporary deploys t. The function exists until the caller calls end, ctx ends or the
// process ends. The caller must call end. The function has an empty /work of its own, and the
// engine keeps nothing afterwards. DeployTemporary calls report with each line of progress, on
// another goroutine.
func (g Functions) DeployTemporary(ctx context.Context, t Temporary, report func(api.Progress)) (built *Built, end func() error, err error) {
	ctx, hangUp := context.WithCancel(ctx)
	ended := make(chan error, 1)
	ready := make(chan *Built, 1)
	q := t.query(url.Values{"name": {t.Name}, "temporary": {"true"}, "trace": {strconv.FormatBool(t.Trace)}})
	go func() {
		read := func(body io.Reader) error {
			built, err := readBuild(ctx, body, report)
			if err != nil {
				return err
			}
			if built.Function == nil {
				return errors.New("the engine's answer lacks the deployed function")
			}
			ready <- built
			_, _ = io.Copy(io.Discard, body) // until hangUp or the engine's end
			return errHungUp
		}
		if t.Image == "" {
			ended <- g.c.uploadAnd(ctx, "/v1/functions", q, t.Logins, t.Dir, read)
			return
		}
		resp, err := g.c.sendJSON(ctx, "/v1/functions", api.DeployRequest{Image: t.Image, Name: t.Name, Temporary: true, Trace: t.Trace})
		if err == nil {
			err = read(resp.Body)
			_ = resp.Body.Close()
		}
		ended <- err
	}()
	select {
	case built = <-ready:
	case err = <-ended:
		hangUp()
		return nil, nil, err
	}
	return built, func() error {
		err := g.Remove(context.WithoutCancel(ctx), built.Function.Name)
		hangUp()
		<-ended
		var gone *api.Error
		if errors.As(err, &gone) && gone.Code == api.CodeNotFound { // removed by the engine because ctx ended
			err = nil
		}
		return err
	}, nil
}

// Deploy deploys an existing image.
func (g Functions) Deploy(ctx context.Context, r api.DeployRequest) (*Built, error) {
	resp, err := g.c.sendJSON(ctx, "/v1/functions", r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return readBuild(ctx, resp.Body, func(api.Progress) {})
}

func (c *Client) upload(ctx context.Context, path string, q url.Values, logins Logins, dir string, report func(api.Progress)) (built *Built, err error) {
	err = c.uploadAnd(ctx, path, q, logins, dir, func(body io.Reader) error {
		built, err = readBuild(ctx, body, report)
		return err
	})
	return built, err
}

// uploadAnd uploads dir and calls read with the body of the answer.
func (c *Client) uploadAnd(ctx context.Context, path string, q url.Values, logins Logins, dir string, read func(body io.Reader) error) error {
	header, err := logins.header()
	if err != nil {
		return err
	}
	header.Set("Content-Type", "application/x-tar")
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	files, err := c.selected(ctx, root)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(w, root, files)
		w.CloseWithError(err)
		packed <- err
	}()
	resp, err := c.send(ctx, http.MethodPost, path, q, header, r)
	if err != nil {
		r.CloseWithError(errStopped)
		failed := <-packed
		if failed != nil && !errors.Is(failed, errStopped) && !errors.Is(failed, io.ErrClosedPipe) {
			return failed // clearer than the broken request
		}
		return err
	}
	err = read(resp.Body)
	_ = resp.Body.Close()
	r.CloseWithError(errStopped)
	<-packed
	return err
}

var (
	errStopped = errors.New("upload stopped")
	errHungUp  = errors.New("the engine ended a temporary function")
)

func readBuild(ctx context.Context, body io.Reader, report func(api.Progress)) (*Built, error) {
	var built *Built
	err := readLines(ctx, body, "build", endsShort, func(line api.BuildLine) (bool, error) {
		switch {
		case line.Error != nil:
			return true, line.Error
		case line.Image != nil:
			built = &Built{Image: *line.Image, Lock: line.Lock, Function: line.Function}
		case line.Progress != nil:
			report(*line.Progress)
		}
		return built != nil, nil
	})
	return built, err
}
