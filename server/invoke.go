package server

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
)

// invoke answers POST /v1/functions/{name}/invoke: the event's body and
// headers are the request's own; its method, path and query come in the
// query string.
func (s *server) invoke(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	req := &engine.Request{Method: q.Get("method"), Path: q.Get("path"), Query: q.Get("query"), Header: eventHeader(r), Size: r.ContentLength}
	if req.Method == "" {
		req.Method = http.MethodPost
	}
	if req.Path == "" {
		req.Path = "/"
	}
	if !strings.HasPrefix(req.Path, "/") {
		return badRequest("path %q does not begin with /", req.Path)
	}
	control := http.NewResponseController(w)
	if r.ContentLength != 0 {
		// The answer may begin before the body's end.
		if err := control.EnableFullDuplex(); err != nil {
			return fmt.Errorf("stream event: %w", err)
		}
		req.Body = http.MaxBytesReader(w, &eventBody{ReadCloser: r.Body, control: control}, s.cfg.MaxInvokeBytes)
	}
	resp, err := s.engine.Invoke(r.Context(), r.PathValue("name"), req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()

	header := w.Header()
	for _, h := range resp.Header {
		if key := http.CanonicalHeaderKey(h[0]); !hopByHop[key] && !strings.HasPrefix(key, "X-Fre-") {
			header.Add(key, h[1])
		}
	}
	if len(header["Content-Type"]) == 0 {
		header["Content-Type"] = nil // do not guess from hostile bytes
	}
	header.Set(api.InvocationHeader, resp.ID)
	header.Set(api.InstanceHeader, resp.Instance)
	header.Set(api.ColdHeader, map[bool]string{true: "1", false: "0"}[resp.Cold])
	header.Set(api.StartHeader, strconv.FormatInt(resp.Start.Microseconds(), 10))
	if resp.Size >= 0 {
		header.Set("Content-Length", strconv.FormatInt(resp.Size, 10))
	}
	w.WriteHeader(resp.Status)
	if resp.Size < 0 { // a client may wait for the status before it sends on
		if err := control.Flush(); err != nil {
			return nil // the client has gone
		}
	}
	if err := copyFlush(w, control, resp.Body); err != nil {
		// The status is out: only a broken connection can still say it.
		s.log.DebugContext(r.Context(), "answer broken off", "function", r.PathValue("name"), "invocation", resp.ID, "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// copyFlush passes on what a function streams as it comes.
func copyFlush(w io.Writer, control *http.ResponseController, body io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
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

// eventBody lets the engine end a blocked Read when the event is over before
// the client has sent everything.
type eventBody struct {
	io.ReadCloser
	control *http.ResponseController
	once    sync.Once
}

func (b *eventBody) Close() error {
	b.once.Do(func() { _ = b.control.SetReadDeadline(time.Unix(1, 0)) })
	return nil // net/http closes the body itself after the handler
}

// hopByHop are the headers of RFC 9110 section 7.6.1, which concern one
// connection only, and the length, which the server writes itself.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true,
}

// eventHeader lists a request's end-to-end headers, sorted by name.
func eventHeader(r *http.Request) [][2]string {
	h := r.Header
	drop := map[string]bool{}
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			drop[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	out := [][2]string{{"Host", r.Host}}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if hopByHop[name] || drop[name] {
			continue
		}
		for _, v := range h[name] {
			out = append(out, [2]string{name, v})
		}
	}
	return out
}
