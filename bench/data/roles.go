package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/httpserver"
)

// The roles of child processes that run this program. Their sockets are in dir. Each child serves
// until standard input ends, which happens when the parent ends.
const (
	roleFunction = "function"     // like bench/functions/data-go, with net/http on a Unix socket
	roleProxy    = "reverseproxy" // httputil.ReverseProxy to roleFunction
	roleFiles    = "files"        // package httpserver, SendFile
	rolePlain    = "plain"        // net/http as commonly written: a bytes.Buffer, io.Copy
)

// mallocsPath is the path at which roleFiles returns the number of allocations.
const mallocsPath = "/mallocs"

func functionSocket(dir string) string { return filepath.Join(dir, "function.sock") }
func pythonSocket(dir string) string   { return filepath.Join(dir, "python.sock") }
func filesDir(dir string) string       { return filepath.Join(dir, "files") }

// serveRole listens, prints the address, and serves.
func serveRole(_ context.Context, o options) error {
	network, address := "tcp", "127.0.0.1:0"
	if o.role == roleFunction {
		network, address = "unix", functionSocket(o.inside)
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	var serve func(net.Listener) error
	var stop func() error
	if o.role == roleFiles {
		handler, err := openFiles(filesDir(o.inside))
		if err != nil {
			return err
		}
		s := httpserver.New(httpserver.Config{Handler: handler})
		serve, stop = s.Serve, s.Close
	} else {
		handlers := map[string]http.Handler{roleFunction: http.HandlerFunc(function), roleProxy: proxy(o.inside), rolePlain: plain(filesDir(o.inside))}
		s := &http.Server{Handler: handlers[o.role]}
		serve, stop = s.Serve, s.Close
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = stop()
	}()
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// body holds the bytes for the functions' answers.
var body = make([]byte, 4<<20)

// streamed is the size of the pieces of a stream.
const streamed = 64 << 10

func function(w http.ResponseWriter, r *http.Request) {
	p, stream := strings.CutPrefix(r.URL.Path, "/stream")
	n, err := strconv.Atoi(strings.TrimPrefix(p, "/"))
	if err != nil || n < 0 || n > len(body) {
		http.Error(w, "no length", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if !stream {
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(body[:n]) // fails if the client has left
		return
	}
	for ; n > 0; n -= streamed {
		_, _ = w.Write(body[:min(n, streamed)])
	}
}

func proxy(dir string) http.Handler {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "function"})
	p.Transport = &http.Transport{
		MaxIdleConnsPerHost: 256,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", functionSocket(dir))
		},
	}
	return p
}

// plain reads the whole file for each request.
func plain(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Open(filepath.Join(dir, path.Base(r.URL.Path)))
		if err != nil {
			http.Error(w, "none", http.StatusNotFound)
			return
		}
		defer f.Close()
		var b bytes.Buffer
		if _, err := io.Copy(&b, f); err != nil {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
		_, _ = io.Copy(w, &b)
	})
}

// openFiles returns a handler that serves files kept open.
func openFiles(dir string) (httpserver.Handler, error) {
	type file struct {
		*os.File
		size int64
	}
	files := map[string]file{}
	for _, size := range fileSizes {
		name := strconv.Itoa(size)
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files["/"+name] = file{f, int64(size)}
	}
	return httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		if f, ok := files[string(x.Path)]; ok {
			_ = x.SendFile(http.StatusOK, f.File, 0, f.size) // fails if the client has left
			return
		}
		if string(x.Path) == mallocsPath {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			_ = x.Send(http.StatusOK, strconv.AppendUint(nil, m.Mallocs, 10))
			return
		}
		_ = x.Send(http.StatusNotFound, nil)
	}), nil
}
