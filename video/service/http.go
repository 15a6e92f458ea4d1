package service

import (
	"cmp"
	_ "embed" // openapi.yaml
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/live"
)

//go:embed openapi.yaml
var openAPI []byte

// Addresses returns the address below which an asset is served.
type Addresses func(a *asset.Asset) string

func (h *rest) view(a *asset.Asset) asset.View {
	shown := *a
	shown.Renditions, shown.Secret = nil, nil
	for _, r := range a.Renditions {
		r := *r
		r.Segments = nil
		shown.Renditions = append(shown.Renditions, &r)
	}
	v := asset.View{Asset: &shown}
	if a.State == asset.Ready {
		base := h.address(a)
		v.HLS = base + "/hls/master.m3u8"
		if a.InTS() {
			v.HLSTS = base + "/ts/master.m3u8"
		}
		if a.Protection != asset.AES128 {
			v.DASH = base + "/dash/manifest.mpd"
		}
		if a.Protection == asset.CBCS {
			v.License = base + "/license"
		}
		if a.Thumbnails != nil {
			v.ThumbnailsVTT = base + "/thumbnails.vtt"
		}
	}
	return v
}

// rest is the API of openapi.yaml over HTTP.
type rest struct {
	*Service
	imports *os.Root // nil: no imports
	address Addresses
	log     *slog.Logger

	pressure func() (state, reason string, since time.Time)
	started  time.Time
}

// HTTPConfig configures the API.
type HTTPConfig struct {
	Uploads string    // required: directory of the tus handler's files
	Import  string    // directory of files to import by path; "": none
	Address Addresses // required

	Live        *live.Server             // required
	LiveAddress func(name string) string // required: the address below which a live stream is served
	Log         *slog.Logger

	Admit    func() error                                   // refuses a large body by an *api.Error of status 503; nil: admits all
	Pressure func() (state, reason string, since time.Time) // the state behind Admit's decisions; nil: always normal
}

// cheapBody is the largest body admitted under memory pressure, as in the gateway.
const cheapBody = 64 << 10

// Handler returns the service's API for net/http, and a function to close the API.
func (s *Service) Handler(cfg HTTPConfig) (_ http.Handler, closing func() error, err error) {
	h := &rest{Service: s, address: cfg.Address, log: cfg.Log, pressure: cfg.Pressure, started: time.Now().UTC()}
	closing = func() error { return nil }
	if cfg.Import != "" {
		if h.imports, err = os.OpenRoot(cfg.Import); err != nil {
			return nil, nil, fmt.Errorf("imports: %w", err)
		}
		closing = h.imports.Close
	}
	uploads, err := s.uploads(cfg.Uploads, cfg.Log)
	if err != nil {
		return nil, nil, errors.Join(err, closing())
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/uploads/", http.StripPrefix("/v1/uploads/", uploads))
	mux.Handle("/v1/uploads", http.StripPrefix("/v1/uploads", uploads))
	routes := h.routes()
	maps.Copy(routes, (&liveAPI{server: cfg.Live, address: cfg.LiveAddress}).routes())
	for pattern, serve := range routes {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := serve(w, r); err != nil {
				h.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: "there is no " + r.Method + " " + r.URL.Path, Next: "see /v1/openapi.yaml"})
	})
	if cfg.Admit == nil {
		return mux, closing, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 || r.ContentLength > cheapBody {
			if err := cfg.Admit(); err != nil {
				h.fail(w, r, err)
				return
			}
		}
		mux.ServeHTTP(w, r)
	}), closing, nil
}

// routes returns the routes of assets and of the service.
func (h *rest) routes() map[string]route {
	return map[string]route{
		"GET /v1/assets": h.list, "POST /v1/assets": h.create, "GET /v1/assets/{id}": h.get, "DELETE /v1/assets/{id}": h.remove,
		"POST /v1/assets/{id}/retry": h.retry, "GET /v1/assets/{id}/events": h.events, "GET /v1/openapi.yaml": h.describe,
		"GET /v1/status": h.status,
	}
}

func (h *rest) status(w http.ResponseWriter, _ *http.Request) error {
	s := Status{Started: h.started, State: "normal", Since: h.started, Assets: map[asset.State]int{}}
	if h.pressure != nil {
		s.State, s.Reason, s.Since = h.pressure()
	}
	all := h.library.List()
	for _, a := range all {
		s.Assets[a.State]++
	}
	answer(w, http.StatusOK, s)
	return nil
}

func (h *rest) describe(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(openAPI)
	return h.broken(err)
}

// fail answers with an error.
func (h *rest) fail(w http.ResponseWriter, r *http.Request, err error) {
	wire := wireError(err)
	if wire.Code == api.CodeInternal && r.Context().Err() == nil {
		h.log.Error("a request has failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	answer(w, wire.Status, api.ErrorBody{Error: wire})
}

func (h *rest) list(w http.ResponseWriter, _ *http.Request) error {
	all := h.library.List()
	views := make([]asset.View, 0, len(all))
	for _, a := range all {
		views = append(views, h.view(a))
	}
	answer(w, http.StatusOK, map[string]any{"assets": views})
	return nil
}

func (h *rest) find(r *http.Request) (*asset.Asset, error) {
	a := h.library.Get(r.PathValue("id"))
	if a == nil {
		return nil, fmt.Errorf("asset %q: %w", r.PathValue("id"), fs.ErrNotExist)
	}
	return a, nil
}

func (h *rest) get(w http.ResponseWriter, r *http.Request) error {
	a, err := h.find(r)
	if err == nil {
		answer(w, http.StatusOK, h.view(a))
	}
	return err
}

// create makes an asset of the request's body, or of a file named by path.
func (h *rest) create(w http.ResponseWriter, r *http.Request) error {
	var a *asset.Asset
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var q struct {
			Path       string `json:"path"`
			Name       string `json:"name"`
			Codec      string `json:"codec"`
			Protection string `json:"protection"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&q); err != nil || q.Path == "" {
			return &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: "the body is no JSON with a path", Next: "send a video as the body with another Content-Type, or {\"path\": …} of a file below --import"}
		}
		order, err := h.parseOrder(cmp.Or(q.Name, path.Base(q.Path)), q.Codec, q.Protection)
		if err != nil {
			return err
		}
		if a, err = h.importFile(r, q.Path, order); err != nil {
			return err
		}
	} else {
		q := r.URL.Query()
		body, name, err := bodyOf(r)
		if err != nil {
			return err
		}
		order, err := h.parseOrder(cmp.Or(q.Get("name"), name), q.Get("codec"), q.Get("protection"))
		if err != nil {
			return err
		}
		if a, err = h.Add(r.Context(), order, body); err != nil {
			return err
		}
	}
	w.Header().Set("Location", "/v1/assets/"+a.ID)
	answer(w, http.StatusCreated, h.view(a))
	return nil
}

// bodyOf returns the video of a request: the body, or the first file of a form with its name.
func bodyOf(r *http.Request) (body io.Reader, name string, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || !strings.HasPrefix(kind, "multipart/") {
		return r.Body, "", nil //nolint:nilerr // of a type that nobody knows
	}
	form, err := r.MultipartReader()
	for err == nil {
		var part *multipart.Part
		if part, err = form.NextPart(); err == nil && part.FileName() != "" {
			return part, part.FileName(), nil
		}
	}
	message := "the form has no file"
	if !errors.Is(err, io.EOF) {
		message = "the body is no form: " + err.Error()
	}
	return nil, "", &api.Error{Status: http.StatusUnsupportedMediaType, Code: api.CodeBadRequest, Message: message, Next: "send the video as the body, or as the first file of multipart/form-data"}
}

func (h *rest) importFile(r *http.Request, name string, order Order) (*asset.Asset, error) {
	if h.imports == nil {
		return nil, &api.Error{Status: http.StatusForbidden, Code: api.CodeForbidden, Message: "this service imports no files", Next: "fre-video serve --import DIR allows those of a directory"}
	}
	f, err := h.imports.Open(name)
	if err != nil {
		return nil, &api.Error{Status: http.StatusUnprocessableEntity, Code: api.CodeBadRequest, Message: "import: " + err.Error(), Next: "paths are relative to the directory of --import"}
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, &api.Error{Status: http.StatusUnprocessableEntity, Code: api.CodeBadRequest, Message: name + " is no regular file"}
	}
	return h.Add(r.Context(), order, f)
}

func (h *rest) remove(w http.ResponseWriter, r *http.Request) error {
	if err := h.Remove(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *rest) retry(w http.ResponseWriter, r *http.Request) error {
	a, err := h.Retry(r.PathValue("id"))
	if err == nil {
		answer(w, http.StatusAccepted, h.view(a))
	}
	return err
}

// events sends an asset's states as server-sent events, from the current state until the asset is
// ready, failed or removed.
func (h *rest) events(w http.ResponseWriter, r *http.Request) error {
	a, err := h.find(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	var before *asset.Asset
	for {
		changed := h.library.Changed()
		a = h.library.Get(a.ID)
		if a == nil {
			_, err := fmt.Fprint(w, "event: removed\ndata: {}\n\n")
			return h.broken(err)
		}
		if a != before {
			before = a
			b, err := json.Marshal(h.view(a))
			if err == nil {
				_, err = fmt.Fprintf(w, "data: %s\n\n", b)
			}
			if err == nil {
				err = control.Flush()
			}
			if err != nil {
				return h.broken(err)
			}
		}
		if a.State == asset.Ready || a.State == asset.Failed {
			return nil
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		case <-h.ctx.Done():
			return nil
		}
	}
}

// broken logs a failed write of an answer that has begun. The client has gone, so the result is
// nil.
func (h *rest) broken(err error) error {
	if err != nil {
		h.log.Debug("a client has gone", "error", err)
	}
	return nil
}
