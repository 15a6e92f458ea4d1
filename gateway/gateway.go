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
	"io/fs"
	"log/slog"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{}))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "not_found", "no such path: functions are at /function/NAME")
	})
	return mux
}

type gateway struct{ Config }

// hopByHop fields belong to one connection (RFC 9110 section 7.6.1), not to the
// message that travels over it.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

func (g *gateway) invoke(w http.ResponseWriter, r *http.Request) {
	req := &engine.Request{Method: r.Method, Path: functionPath(r), Query: r.URL.RawQuery, Size: r.ContentLength}
	req.Header = append(req.Header, [2]string{"Host", r.Host})
	for k, vs := range r.Header {
		for _, v := range vs {
			if !hopByHop[k] {
				req.Header = append(req.Header, [2]string{k, v})
			}
		}
	}
	if r.ContentLength > g.MaxBodyBytes {
		w.Header().Set("Connection", "close")
		g.fail(w, &http.MaxBytesError{Limit: g.MaxBodyBytes}, "")
		return
	}
	if r.ContentLength != 0 {
		req.Body = http.MaxBytesReader(w, &requestBody{ReadCloser: r.Body, w: w}, g.MaxBodyBytes)
	}

	resp, err := g.Engine.Invoke(r.Context(), r.PathValue("name"), req)
	if err != nil {
		g.fail(w, err, r.PathValue("name"))
		return
	}
	defer resp.Body.Close()
	h := w.Header()
	for _, f := range resp.Header {
		k := textproto.CanonicalMIMEHeaderKey(f[0])
		if !hopByHop[k] && k != "Content-Length" {
			h.Add(k, f[1])
		}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // the function's silence is not a reason to guess
	}
	h.Set("X-Fre-Id", resp.ID)
	h.Set("X-Fre-Instance", resp.Instance)
	h.Set("X-Fre-Cold", map[bool]string{true: "1", false: "0"}[resp.Cold])
	h.Set("X-Fre-Start-Us", strconv.FormatInt(resp.Start.Microseconds(), 10))
	if resp.Size >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.Size, 10))
	}
	w.WriteHeader(resp.Status)
	if err := copyBody(w, resp); err != nil {
		if r.Context().Err() == nil {
			g.Log.Debug("answer broken off", "function", r.PathValue("name"), "error", err)
		}
		// The status is out: breaking the connection is the only way left to
		// say that the body is not whole.
		panic(http.ErrAbortHandler)
	}
}

// functionPath is what follows the name, as the client escaped it; "/" at least.
func functionPath(r *http.Request) string {
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/function/")
	_, path, _ := strings.Cut(rest, "/")
	return "/" + path
}

// requestBody ends a blocked Read when the event is over before the client has
// sent everything. After the body's end it leaves the connection alone: its
// next request is waited for with the same deadline.
type requestBody struct {
	io.ReadCloser
	w   http.ResponseWriter
	eof atomic.Bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.eof.Store(true)
	}
	return n, err
}

// Close leaves the body itself to net/http, which closes it after the handler.
func (b *requestBody) Close() error {
	if b.eof.Load() {
		return nil
	}
	return http.NewResponseController(b.w).SetReadDeadline(time.Unix(1, 0))
}

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// copyBody sends each piece of a streamed answer as it comes.
func copyBody(w http.ResponseWriter, resp *engine.Response) error {
	buf := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	rc := http.NewResponseController(w)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
			if resp.Size < 0 && err == nil {
				if ferr := rc.Flush(); ferr != nil {
					return ferr
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
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
	)
	switch {
	case errors.As(err, &function):
		return http.StatusInternalServerError, "function_error"
	case errors.As(err, &crash):
		return http.StatusBadGateway, "function_crashed"
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, "body_too_large"
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound, "not_found"
	case errors.Is(err, engine.ErrTimeout):
		return http.StatusGatewayTimeout, "timeout"
	case errors.Is(err, engine.ErrOverloaded):
		return http.StatusServiceUnavailable, "overloaded"
	case errors.Is(err, engine.ErrClosed):
		return http.StatusServiceUnavailable, "stopping"
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
