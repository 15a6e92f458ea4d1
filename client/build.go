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

// Built is what came of a build or a deployment.
type Built struct {
	Image    api.Image
	Lock     json.RawMessage // content for the lock file; nil where there is none
	Function *api.Function   // of a deployment
}

// Logins are at registries, by their host: "index.docker.io", "host:5000".
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

// BuildOptions say what a build may not do, and who asks for it.
type BuildOptions struct {
	Locked  bool   // resolve anything that the lock does not answer
	Offline bool   // use a network
	Logins  Logins // for the image that the template stands on; without one the engine's own
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

// Build sends the template directory dir and builds its image. report is called
// with each line of progress from the caller's goroutine.
func (c *Client) Build(ctx context.Context, dir string, o BuildOptions, report func(api.Event)) (*Built, error) {
	return c.upload(ctx, "/v1/build", o.query(url.Values{}), o.Logins, dir, report)
}

// Base builds the named base environment, or finds it in the registry.
func (c *Client) Base(ctx context.Context, name string, report func(api.Event)) (*Built, error) {
	resp, err := c.send(ctx, http.MethodPost, "/v1/bases/"+url.PathEscape(name), nil, nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return readBuild(ctx, resp.Body, report)
}

// DeployDir builds the template directory dir, as one whose logins those are, and
// deploys it. Of the request, Image is ignored.
func (c *Client) DeployDir(ctx context.Context, dir string, r api.DeployRequest, logins Logins, report func(api.Event)) (*Built, error) {
	q := url.Values{"replace": {strconv.FormatBool(r.Replace)}, "no_traffic": {strconv.FormatBool(r.NoTraffic)}}
	if r.Name != "" {
		q.Set("name", r.Name)
	}
	return c.upload(ctx, "/v1/functions", BuildOptions{Locked: r.Locked, Offline: r.Offline}.query(q), logins, dir, report)
}

// Temporary is a function for a while.
type Temporary struct {
	Name  string // that no other function has; Built.Function.Name is qualified
	Dir   string // the template's directory, which is built; or
	Image string // an image that is there
	Trace bool   // note what it opens, for [Client.Slim]

	BuildOptions // of Dir
}

// DeployTemporary deploys t until end is called, which must be, or this process
// ends. It has a /work of its own, and nothing of it stays.
func (c *Client) DeployTemporary(ctx context.Context, t Temporary, report func(api.Event)) (built *Built, end func() error, err error) {
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
				return errors.New("engine did not say what it deployed")
			}
			ready <- built
			_, _ = io.Copy(io.Discard, body) // until hangUp, or the engine's end
			return errHungUp
		}
		if t.Image == "" {
			ended <- c.uploadAnd(ctx, "/v1/functions", q, t.Logins, t.Dir, read)
			return
		}
		resp, err := c.sendJSON(ctx, "/v1/functions", api.DeployRequest{Image: t.Image, Name: t.Name, Temporary: true, Trace: t.Trace})
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
		err := c.RemoveFunction(context.WithoutCancel(ctx), built.Function.Name)
		hangUp()
		<-ended
		var gone *api.Error
		if errors.As(err, &gone) && gone.Code == api.CodeNotFound { // with ctx, the engine has
			err = nil
		}
		return err
	}, nil
}

// Deploy deploys an image that is already there.
func (c *Client) Deploy(ctx context.Context, r api.DeployRequest) (*Built, error) {
	resp, err := c.sendJSON(ctx, "/v1/functions", r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return readBuild(ctx, resp.Body, func(api.Event) {})
}

func (c *Client) upload(ctx context.Context, path string, q url.Values, logins Logins, dir string, report func(api.Event)) (built *Built, err error) {
	err = c.uploadAnd(ctx, path, q, logins, dir, func(body io.Reader) error {
		built, err = readBuild(ctx, body, report)
		return err
	})
	return built, err
}

// uploadAnd sends dir and has the answer read.
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
			return failed // it says more than the broken request
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
	errHungUp  = errors.New("engine has ended a temporary function")
)

func readBuild(ctx context.Context, body io.Reader, report func(api.Event)) (*Built, error) {
	var built *Built
	err := readLines(ctx, body, "build", endsShort, func(line api.BuildLine) (bool, error) {
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
