// Package gateway is the data path for clients: an HTTP request becomes an
// event, the function's answer becomes the response. It asks only the engine.
//
//	/function/NAME[/path]  any method: invoke
//	/healthz               200 while the engine accepts events
//	/metrics               Prometheus text
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fre-engine/fre/engine"
)

// DefaultMaxBody is the size in bytes of the largest request body.
const DefaultMaxBody = 64 << 20

// MaxHeaderBytes is what servers of this handler should allow for a request's
// header (http.Server.MaxHeaderBytes); more is answered 431.
const MaxHeaderBytes = 64 << 10

// Config wires a gateway. Engine and Log are required.
type Config struct {
	Engine       *engine.Engine
	Log          *slog.Logger
	MaxBodyBytes int64               // larger bodies get 413; default DefaultMaxBody
	Metrics      prometheus.Gatherer // nil: no /metrics
}

// New returns the handler of the data path.
func New(cfg Config) http.Handler {
	if cfg.MaxBodyBytes == 0 {
		cfg.MaxBodyBytes = DefaultMaxBody
	}
	g := &gateway{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("/function/{name}", g.invoke)
	mux.HandleFunc("/function/{name}/{path...}", g.invoke)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if g.Engine.Stopping() {
			g.fail(w, engine.ErrClosed, "")
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{}))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "not_found", "no such path: functions are at /function/NAME")
	})
	return mux
}

type gateway struct{ Config }

func (g *gateway) invoke(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	err := Forward(w, r, Event{
		Engine: g.Engine, Log: g.Log, Function: name, Method: r.Method, Path: functionPath(r), Query: r.URL.RawQuery, MaxBodyBytes: g.MaxBodyBytes,
	})
	if err != nil {
		g.fail(w, err, name)
	}
}

// functionPath is what follows the name, as the client escaped it; "/" at least.
func functionPath(r *http.Request) string {
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/function/")
	_, path, _ := strings.Cut(rest, "/")
	return "/" + path
}

// fail answers an event that has no response.
func (g *gateway) fail(w http.ResponseWriter, err error, name string) {
	status, code := statusOf(err)
	message := err.Error()
	if code == "internal" { // the engine's own trouble is for its operator
		g.Log.Error("invoke", "function", name, "error", err)
		message = "the function could not be run; the engine's log says why"
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeError(w, status, code, message)
}

// statusOf maps the engine's errors to HTTP.
func statusOf(err error) (status int, code string) {
	var (
		function *engine.FunctionError
		crash    *engine.CrashError
		tooLarge *http.MaxBytesError
		body     *BodyError
		unknown  *engine.UnknownError
	)
	switch {
	case errors.As(err, &function):
		return http.StatusInternalServerError, "function_error"
	case errors.As(err, &crash):
		return http.StatusBadGateway, "function_crashed"
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, "body_too_large"
	case errors.Is(err, engine.ErrTimeout):
		return http.StatusGatewayTimeout, "timeout"
	case errors.As(err, &body):
		return http.StatusBadRequest, "bad_body"
	case errors.Is(err, engine.ErrEventTooLarge):
		return http.StatusRequestHeaderFieldsTooLarge, "header_too_large"
	case errors.Is(err, engine.ErrOverloaded):
		return http.StatusServiceUnavailable, "overloaded"
	case errors.Is(err, engine.ErrClosed):
		return http.StatusServiceUnavailable, "stopping"
	case errors.As(err, &unknown):
		return http.StatusNotFound, "not_found"
	case errors.Is(err, context.Canceled):
		return 499, "client_gone" // nobody reads it; logs and metrics do
	}
	return http.StatusInternalServerError, "internal"
}

func writeError(w http.ResponseWriter, status int, code, message string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	body, err := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message}})
	if err != nil {
		body = []byte(`{"error":{"code":"internal"}}`)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
