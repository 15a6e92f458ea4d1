package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/store"
)

const tarType = "application/x-tar"

// build answers POST /v1/build: a template directory in, an image out.
func (s *server) build(w http.ResponseWriter, r *http.Request) error {
	if err := wantTar(r); err != nil {
		return err
	}
	out := &lines{w: w}
	img, lock, err := s.buildBody(w, r, out)
	if err != nil {
		return s.end(out, r, err)
	}
	out.send(built(img, lock))
	return nil
}

// base answers POST /v1/bases/{name}.
func (s *server) base(w http.ResponseWriter, r *http.Request) error {
	out := &lines{w: w}
	img, err := s.engine.Base(r.Context(), r.PathValue("name"), out.report)
	if err != nil {
		return s.end(out, r, err)
	}
	out.send(built(img, nil))
	return nil
}

// deploy answers POST /v1/functions: a template directory (tar, with name and
// replace in the query), or the name of an image (JSON).
func (s *server) deploy(w http.ResponseWriter, r *http.Request) error {
	var (
		img  *store.Image
		lock *image.Lock
		err  error
		req  api.DeployRequest
	)
	release := s.engine.Hold()
	defer release()
	out := &lines{w: w}
	if mediaType(r) == "application/json" {
		if err := decode(w, r, &req); err != nil {
			return err
		}
		if req.Image == "" {
			return badRequest("image is missing")
		}
		if req.Locked || req.Offline {
			return badRequest("locked and offline are of a template's build: an image is deployed as it is")
		}
		if req.Temporary {
			w.Header().Set("Connection", "close") // see whileAsked
		}
		img, err = s.visibleImage(r, req.Image)
	} else {
		if err := wantTar(r); err != nil {
			return err
		}
		q := r.URL.Query()
		req.Name = q.Get("name")
		if req.Replace, err = queryBool(q.Get("replace")); err != nil {
			return badRequest("replace: %v", err)
		}
		if req.NoTraffic, err = queryBool(q.Get("no_traffic")); err != nil {
			return badRequest("no_traffic: %v", err)
		}
		if req.Temporary, err = queryBool(q.Get("temporary")); err != nil {
			return badRequest("temporary: %v", err)
		}
		if req.Temporary {
			w.Header().Set("Connection", "close") // see whileAsked
		}
		if req.Trace, err = queryBool(q.Get("trace")); err != nil {
			return badRequest("trace: %v", err)
		}
		img, lock, err = s.buildBody(w, r, out)
	}
	if err != nil {
		return s.end(out, r, err)
	}
	if req.Name == "" {
		req.Name = engine.DefaultName(img)
	}
	noteOn(r, req.Name)
	o := engine.DeployOptions{Replace: req.Replace, NoTraffic: req.NoTraffic, By: identityOf(r).Who, Temporary: req.Temporary, Trace: req.Trace}
	if id := identityOf(r); !id.All() {
		if o.Within = id.Tenant; o.Temporary {
			return s.end(out, r, notOfTenant("a temporary function counts against nobody's quotas"))
		}
	}
	f, err := s.engine.Deploy(r.Context(), req.Name, img, o)
	if err != nil {
		return s.end(out, r, err)
	}
	release() // the function does from now on
	if req.Temporary {
		defer s.whileAsked(r, f.Name)
	}
	line := built(img, lock)
	function := functionOf(f)
	line.Function = &function
	out.send(line)
	return nil
}

// whileAsked waits until a temporary function's client hangs up and removes what
// that has not. The connection is for this request alone: net/http reads what is
// left of a request's body before an answer only where another may follow.
func (s *server) whileAsked(r *http.Request, name string) {
	_, _ = io.Copy(io.Discard, r.Body) // net/http looks for the client's end once the body has been read
	select {
	case <-r.Context().Done():
	case <-s.engine.Closed(): // the next engine removes it
		return
	}
	ctx := context.WithoutCancel(r.Context())
	var unknown *engine.UnknownError
	if err := s.engine.RemoveFunction(ctx, name); err != nil && !errors.As(err, &unknown) && !errors.Is(err, engine.ErrClosed) {
		s.log.ErrorContext(ctx, "temporary function not removed", "function", name, "error", err)
	}
}

// buildBody unpacks the request's tar and builds it.
func (s *server) buildBody(w http.ResponseWriter, r *http.Request, out *lines) (*store.Image, *image.Lock, error) {
	var o image.BuildOptions
	q := r.URL.Query()
	var err error
	if o.Locked, err = queryBool(q.Get("locked")); err != nil {
		return nil, nil, badRequest("locked: %v", err)
	}
	if o.Offline, err = queryBool(q.Get("offline")); err != nil {
		return nil, nil, badRequest("offline: %v", err)
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
	path, err := s.cfg.Scratch()
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
	// Padding and headers come on top of what the entries hold.
	unhurried(w)
	body, done := intake.Within(w, http.MaxBytesReader(w, r.Body, s.cfg.MaxTarBytes+int64(s.cfg.MaxTarEntries)*1024), uploadTime)
	err = s.unpack(r.Context(), dir, body)
	if err == nil {
		// To its end: net/http would read on after the handler, and panics when it comes
		// to the end at the moment at which it waits for the next request.
		_, _ = io.Copy(io.Discard, body)
	}
	done()
	uploaded()
	if err != nil {
		return nil, nil, uploadError(err)
	}
	if err := s.mayBuild(r, dir); err != nil {
		return nil, nil, err
	}
	ctx := r.Context()
	if !identityOf(r).All() {
		ctx = engine.KeepNames(ctx)
	}
	return s.engine.Build(engine.WithLogins(image.WithOptions(ctx, o), logins), dir, out.report)
}

// unpack writes a template to the disk, as long as that leaves room there.
func (s *server) unpack(ctx context.Context, dir *os.Root, body io.Reader) error {
	ctx, stop, err := s.engine.LeaveRoom(ctx)
	if err != nil {
		return err
	}
	defer stop()
	err = unpack.Tar(ctx, dir, body, unpack.Limits{Bytes: s.cfg.MaxTarBytes, Entries: s.cfg.MaxTarEntries})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return err
}

// A template comes to the disk before a build's turn is asked for: so many at a time, of one
// tenant fewer, each within that time.
const (
	maxUploads   = 32
	maxUploadsOf = 8
	uploadTime   = 10 * time.Minute
)

// upload takes a place for a template that comes from another machine, until uploaded is called.
func (s *server) upload(w http.ResponseWriter, r *http.Request) (uploaded func(), err error) {
	if !s.cfg.Remote {
		return func() {}, nil
	}
	uploaded, ok := s.uploads.Enter(identityOf(r).Tenant)
	if !ok {
		w.Header().Set("Retry-After", "5")
		return nil, &api.Error{Code: api.CodeOverloaded, Status: http.StatusTooManyRequests, Message: "other templates are on their way", Next: "try again once they have come"}
	}
	return uploaded, nil
}

// uploadError tells what the client's archive did wrong from what went wrong here.
func uploadError(err error) error {
	switch {
	case errors.Is(err, unpack.ErrLimit):
		return tooLargeError(err.Error())
	case errors.Is(err, unpack.ErrArchive):
		return badRequest("%v", err)
	case errors.Is(err, intake.ErrSlow):
		return &api.Error{Code: api.CodeTimeout, Status: http.StatusRequestTimeout, Message: fmt.Sprintf("the template takes more than %s to come", uploadTime), Next: "leave out of its directory what the function does not need (.freignore)"}
	}
	return err
}

func built(img *store.Image, lock *image.Lock) api.BuildLine {
	shown := imageOf(img)
	line := api.BuildLine{Image: &shown}
	if lock != nil {
		raw, err := json.Marshal(lock)
		if err != nil { // only a malformed RawMessage inside can do that
			return api.BuildLine{Error: errorOf(fmt.Errorf("encode lock file: %w", err))}
		}
		line.Lock = raw
	}
	return line
}

// end reports err: as the last line where lines were sent, by returning it
// where not.
func (s *server) end(out *lines, r *http.Request, err error) error {
	if !out.started() {
		return err
	}
	e := errorOf(err)
	if e.Code == api.CodeInternal {
		s.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	noteFailure(r, e)
	out.send(api.BuildLine{Error: e})
	return nil
}

// lines writes newline-delimited JSON, each line at once. The status goes out
// with the first line, so that what fails before it has a status of its own.
type lines struct {
	w        http.ResponseWriter
	mu       sync.Mutex    // report may come from another goroutine than the handler's
	on       bool          // a line was sent
	patience time.Duration // with a client that reads nothing; 0 is maxPatience
}

// maxPatience is how long work that others wait for waits for its own client: a
// check and a pull keep what they look at from being removed.
const maxPatience = time.Minute

func (l *lines) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on
}

func (l *lines) report(e image.Event) { l.send(api.BuildLine{Event: eventOf(e)}) }

// send is best effort: a client that has gone, or reads nothing, ends the request's
// context.
func (l *lines) send(v any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.on {
		l.on = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	_ = http.NewResponseController(l.w).SetWriteDeadline(time.Now().Add(cmp.Or(l.patience, maxPatience)))
	_ = writeLine(l.w, v)
}

func writeLine(w http.ResponseWriter, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

func mediaType(r *http.Request) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t
}

func wantTar(r *http.Request) error {
	if mediaType(r) != tarType {
		return badRequest("Content-Type is %q: send the template directory as %s", r.Header.Get("Content-Type"), tarType)
	}
	return nil
}

func queryBool(v string) (bool, error) {
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		err = fmt.Errorf("%q is neither true nor false", v)
	}
	return b, err
}
