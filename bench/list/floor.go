package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
)

// floor is a proxy before an engine's socket for Docker clients. It forwards the first request for
// a resource and answers later requests from memory. Against a floor, all time is the client's own.
type floor struct {
	empty  bool // answer with empty lists of images
	engine http.Transport
	server http.Server
	served chan error

	mu      sync.Mutex // guards answers
	answers map[string]*kept
}

// kept is a stored answer.
type kept struct {
	header http.Header
	status int
	body   []byte
}

// newFloor listens at path until close.
func newFloor(path, socket string, empty bool) (*floor, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	f := &floor{empty: empty, served: make(chan error, 1), answers: map[string]*kept{}}
	f.engine.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	f.server.Handler = f
	go func() { f.served <- f.server.Serve(l) }()
	return f, nil
}

func (f *floor) close() error {
	err := f.server.Close()
	if served := <-f.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	f.engine.CloseIdleConnections()
	return err
}

// ServeHTTP implements http.Handler.
func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what := r.Method + " " + r.URL.String()
	a := f.answers[what]
	if a == nil {
		var err error
		if a, err = f.ask(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		f.answers[what] = a
	}
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // fails if the client has left
}

func (f *floor) ask(r *http.Request) (*kept, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = "http", "engine"
	resp, err := f.engine.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &kept{header: resp.Header, status: resp.StatusCode}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	if f.empty && strings.HasSuffix(r.URL.Path, dockerImages) {
		a.body = []byte("[]\n")
		a.header.Del("Content-Length")
	}
	return a, nil
}
