package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fre-engine/fre/video/asset"
)

// The roles of child processes that run this program. Each child serves the origin's segment
// addresses with net/http, until standard input ends, which happens when the parent ends. The roles
// differ in how the bytes are copied:
const (
	rolePlain    = "plain"    // into a bytes.Buffer per request, and from the buffer by io.Copy
	rolePooled   = "pooled"   // into a bytes.Buffer from a pool
	roleSendFile = "sendfile" // by io.Copy from the file; net/http uses sendfile(2)
)

// serveRole listens, prints the address, and serves.
func serveRole(ctx context.Context, o options) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a, err := readAsset(o.inside, sizesAsset)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.Handle("/assets/"+sizesAsset+"/cmaf/", &plain{dir: filepath.Join(stateDir(o.inside), "assets", sizesAsset), asset: a, send: map[string]func(http.ResponseWriter, *os.File, int64) error{
		rolePlain: sendBuffer, rolePooled: sendPooled, roleSendFile: sendFile,
	}[o.role]})
	s := &http.Server{Handler: mux}
	fmt.Println(l.Addr())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = s.Close()
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// plain serves segments like the origin: from the same file, with the same header.
type plain struct {
	dir   string
	asset *asset.Asset
	send  func(w http.ResponseWriter, f *os.File, size int64) error // starts at the file's offset
}

// ServeHTTP serves one segment.
func (p *plain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, path, _ := strings.Cut(r.URL.Path, "/cmaf/")
	name, segment, _ := strings.Cut(path, "/")
	digits, ok := strings.CutSuffix(segment, ".m4s")
	n, err := strconv.Atoi(digits)
	rendition := p.asset.Rendition(name)
	if !ok || err != nil || rendition == nil || n < 1 || n > len(rendition.Segments) {
		http.NotFound(w, r)
		return
	}
	f, err := os.Open(filepath.Join(p.dir, name+".mp4"))
	if err != nil {
		http.Error(w, "the asset cannot be read", http.StatusInternalServerError)
		return
	}
	defer f.Close()
	of := rendition.Segments[n-1]
	if _, err := f.Seek(of.Offset, io.SeekStart); err != nil {
		http.Error(w, "the asset cannot be read", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Etag", fmt.Sprintf(`"%s-%s-%d"`, p.asset.Made, name, n))
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Access-Control-Expose-Headers", "Content-Length, Content-Range, Date, Etag")
	h.Set("Content-Type", "video/mp4")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", strconv.FormatInt(of.Size, 10))
	if p.send(w, f, of.Size) != nil {
		panic(http.ErrAbortHandler)
	}
}

func sendBuffer(w http.ResponseWriter, f *os.File, size int64) error {
	var b bytes.Buffer
	return sendThrough(&b, w, f, size)
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func sendPooled(w http.ResponseWriter, f *os.File, size int64) error {
	b := buffers.Get().(*bytes.Buffer)
	b.Reset()
	defer buffers.Put(b)
	return sendThrough(b, w, f, size)
}

func sendThrough(b *bytes.Buffer, w http.ResponseWriter, f *os.File, size int64) error {
	if _, err := io.Copy(b, io.LimitReader(f, size)); err != nil {
		return err
	}
	_, err := io.Copy(w, b)
	return err
}

func sendFile(w http.ResponseWriter, f *os.File, size int64) error {
	_, err := io.CopyN(w, f, size)
	return err
}
