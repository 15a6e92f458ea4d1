package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// buildRoutes are the routes that build images and deploy functions.
type buildRoutes struct {
	engine        Engine
	log           *slog.Logger
	access        *access.Access // nil: no tenants
	remote        bool
	scratch       func() (dir string, err error)
	maxTarBytes   int64
	maxTarEntries int
	uploads       intake.Slots[string] // uploads of templates from remote clients, by tenant
}

func (s *buildRoutes) routes() []route {
	return []route{
		{"POST", "/v1/build", s.build},
		{"POST", "/v1/bases/{name}", s.base},
		{"POST", "/v1/functions", s.deploy},
	}
}

// build answers POST /v1/build: builds an image from an uploaded template directory.
func (s *buildRoutes) build(w http.ResponseWriter, r *http.Request) error {
	if err := wantTar(r); err != nil {
		return err
	}
	out := &lines{w: w, log: s.log}
	img, lock, err := s.buildBody(w, r, out)
	if err != nil {
		return out.end(r, err)
	}
	out.send(built(img, lock))
	return nil
}

// base answers POST /v1/bases/{name}.
func (s *buildRoutes) base(w http.ResponseWriter, r *http.Request) error {
	out := &lines{w: w, log: s.log}
	img, err := s.engine.Base(r.Context(), r.PathValue("name"), out.report)
	if err != nil {
		return out.end(r, err)
	}
	out.send(built(img, nil))
	return nil
}

// deploy answers POST /v1/functions. The body is a template directory (tar, with the options in
// the query), or a JSON request that names an image.
func (s *buildRoutes) deploy(w http.ResponseWriter, r *http.Request) error {
	release := s.engine.Hold()
	defer release()
	out := &lines{w: w, log: s.log}
	req, err := deployRequest(w, r)
	if err != nil {
		return err
	}
	if req.Temporary {
		w.Header().Set("Connection", "close") // see removeOnHangup
	}
	var img *store.Image
	var lock *image.Lock
	if req.Image != "" {
		img, err = visibleImage(r, s.engine, req.Image)
	} else {
		img, lock, err = s.buildBody(w, r, out)
	}
	if err != nil {
		return out.end(r, err)
	}
	if req.Name == "" {
		req.Name = engine.DefaultName(img)
	}
	noteOn(r, req.Name)
	o := engine.DeployOptions{Replace: req.Replace, NoTraffic: req.NoTraffic, By: identityOf(r).Who, Temporary: req.Temporary, Trace: req.Trace}
	if id := identityOf(r); !id.All() {
		if o.Within = id.Tenant; o.Temporary {
			return out.end(r, notOfTenant("a temporary function counts against nobody's quotas"))
		}
	}
	f, err := s.engine.Deploy(r.Context(), req.Name, img, o)
	if err != nil {
		return out.end(r, err)
	}
	release() // the function now protects the image
	if req.Temporary {
		defer s.removeOnHangup(r, f.Name)
	}
	line := built(img, lock)
	function := functionOf(f)
	line.Function = &function
	out.send(line)
	return nil
}

// deployRequest reads the options of deploy, from the body for an image, else from the query.
func deployRequest(w http.ResponseWriter, r *http.Request) (req api.DeployRequest, err error) {
	if mediaType(r) != "application/json" {
		if err := wantTar(r); err != nil {
			return req, err
		}
		q := queryOf(r)
		req = api.DeployRequest{
			Name: q.Get("name"), Replace: q.flag("replace"), NoTraffic: q.flag("no_traffic"),
			Temporary: q.flag("temporary"), Trace: q.flag("trace"),
		}
		return req, q.err
	}
	switch err := decode(w, r, &req); {
	case err != nil:
		return req, err
	case req.Image == "":
		return req, badRequest("image is missing")
	case req.Locked || req.Offline:
		return req, badRequest("locked and offline apply to builds of templates only: leave both out to deploy an image")
	}
	return req, nil
}

// removeOnHangup waits until the client of a temporary function hangs up, and then removes the
// function unless the client has removed it. The handler must have set Connection: close,
// because on a reusable connection net/http drains the request's body before it sends the
// answer.
func (s *buildRoutes) removeOnHangup(r *http.Request, name string) {
	_, _ = io.Copy(io.Discard, r.Body) // net/http detects a disconnect only after the whole body was read
	select {
	case <-r.Context().Done():
	case <-s.engine.Closed(): // the next engine removes the function
		return
	}
	ctx := context.WithoutCancel(r.Context())
	var unknown *engine.UnknownError
	if err := s.engine.RemoveFunction(ctx, name); err != nil && !errors.As(err, &unknown) && !errors.Is(err, engine.ErrClosed) {
		s.log.ErrorContext(ctx, "temporary function not removed", "function", name, "error", err)
	}
}

// buildBody unpacks and builds the uploaded template directory.
func (s *buildRoutes) buildBody(w http.ResponseWriter, r *http.Request, out *lines) (*store.Image, *image.Lock, error) {
	q := queryOf(r)
	o := image.BuildOptions{Locked: q.flag("locked"), Offline: q.flag("offline")}
	if q.err != nil {
		return nil, nil, q.err
	}
	logins, err := loginsOf(r.Header.Get(api.RegistryConfigHeader))
	if err != nil {
		return nil, nil, err
	}
	uploaded, err := s.upload(w, r)
	if err != nil {
		return nil, nil, err
	}
	defer uploaded()
	path, err := s.scratch()
	if err != nil {
		return nil, nil, fmt.Errorf("make scratch directory: %w", err)
	}
	defer func() {
		if err := linux.RemoveAll(path); err != nil {
			s.log.WarnContext(context.WithoutCancel(r.Context()), "upload not removed", "path", path, "error", err)
		}
	}()
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	// The limit for the raw body is higher than MaxTarBytes, to allow for tar headers and
	// padding.
	clearBodyDeadline(w)
	body, done := intake.Within(w, http.MaxBytesReader(w, r.Body, s.maxTarBytes+int64(s.maxTarEntries)*1024), uploadTime)
	err = s.unpack(r.Context(), dir, body)
	if err == nil {
		// Read the body to its end. Otherwise net/http reads on after the handler, and panics if
		// the body ends while net/http waits for the next request.
		_, _ = io.Copy(io.Discard, body)
	}
	done()
	uploaded()
	if err != nil {
		return nil, nil, uploadError(err)
	}
	t, err := s.engine.Template(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := s.mayBuild(r, t); err != nil {
		return nil, nil, err
	}
	ctx := r.Context()
	if !identityOf(r).All() {
		ctx = build.KeepNames(ctx)
	}
	return s.engine.Build(build.WithLogins(image.WithOptions(ctx, o), logins), dir, t, out.report)
}

// unpack writes the uploaded template to dir. unpack stops when the disk would run full.
func (s *buildRoutes) unpack(ctx context.Context, dir *os.Root, body io.Reader) error {
	ctx, stop, err := s.engine.LeaveRoom(ctx)
	if err != nil {
		return err
	}
	defer stop()
	err = unpack.Tar(ctx, dir, body, unpack.Limits{Bytes: s.maxTarBytes, Entries: s.maxTarEntries})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return err
}

// Limits of uploads. The server receives a template before the build takes its turn, so separate
// limits bound the number of uploads in total and per tenant, and the time of each upload.
const (
	maxUploads   = 32
	maxUploadsOf = 8
	uploadTime   = 10 * time.Minute
)

// upload reserves a slot for the upload of a remote client, until the caller calls uploaded.
func (s *buildRoutes) upload(w http.ResponseWriter, r *http.Request) (uploaded func(), err error) {
	if !s.remote {
		return func() {}, nil
	}
	uploaded, ok := s.uploads.Enter(identityOf(r).Tenant)
	if !ok {
		w.Header().Set("Retry-After", "5")
		return nil, &api.Error{Code: failure.Busy, Message: "too many uploads in progress", Next: "retry in 5 s"}
	}
	return uploaded, nil
}

// uploadError maps errors of the client's archive to API errors, and returns other errors
// unchanged.
func uploadError(err error) error {
	switch large := (*http.MaxBytesError)(nil); {
	case errors.As(err, &large):
		return failure.Wrap(failure.BodyTooLarge, large, "exclude files that the function does not need (.freignore)")
	case errors.Is(err, unpack.ErrLimit):
		return failure.Wrap(failure.TooLarge, err, "exclude files that the function does not need (.freignore)")
	case errors.Is(err, unpack.ErrArchive):
		return badRequest("%v", err)
	case errors.Is(err, intake.ErrSlow):
		return &api.Error{Code: failure.SlowBody, Message: fmt.Sprintf("the upload of the template took longer than %s", uploadTime), Next: "exclude files that the function does not need (.freignore)"}
	}
	return err
}

func wantTar(r *http.Request) error {
	if mediaType(r) != tarType {
		return badRequest("Content-Type is %q: send the template directory as %s", r.Header.Get("Content-Type"), tarType)
	}
	return nil
}

// mayBuild refuses a template of another tenant, and a template whose image would take the name
// of another tenant's image.
func (s *buildRoutes) mayBuild(r *http.Request, t *template.Template) error {
	id := identityOf(r)
	if id.All() && s.access == nil {
		return nil
	}
	noteOn(r, t.ID)
	if id.All() {
		return nil
	}
	if t.Tenant != id.Tenant {
		return &api.Error{
			Code: api.CodeForbidden, Message: fmt.Sprintf("the template is of tenant %s, the token of %s", t.Tenant, id.Tenant),
			Next: fmt.Sprintf("write into fret.yaml: tenant: %s", id.Tenant),
		}
	}
	name := t.ID + ":" + t.Version
	if img, err := s.engine.Image(name); err == nil && !id.Of(build.ImageTenant(img)) { // tenants share the names of images: docs/tenants.md
		return &build.ImageNameError{Name: name}
	}
	return nil
}
