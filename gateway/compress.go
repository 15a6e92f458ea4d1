package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

const (
	// worthwhile is the shortest body, in bytes, worth compressing.
	worthwhile = 1 << 10
	// compressedFile is the longest file, in bytes, worth compressing. Beyond, the CPU time
	// exceeds the gain, and the kernel sends the file as it is.
	compressedFile = 1 << 20
)

// coder is a compressor from one of the pools below.
type coder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

// codings lists the supported codings, the preferred one first. coders holds their pools.
var codings = []string{"zstd", "gzip"}

var coders = []*sync.Pool{
	{New: func() any {
		// RFC 9659: no window above 8 MiB; a small one keeps the encoder small.
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
		if err != nil { // impossible with these options
			return nil
		}
		return coder(w)
	}},
	{New: func() any {
		w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		if err != nil { // impossible with this level
			return nil
		}
		return coder(w)
	}},
}

// compressible reports whether bodies of the media type usually shrink. Event streams do not
// count: each event must leave at once.
func compressible(kind string) bool {
	kind, _, _ = strings.Cut(kind, ";")
	kind = strings.ToLower(strings.Trim(kind, " \t"))
	switch {
	case kind == "text/event-stream":
		return false
	case strings.HasPrefix(kind, "text/"), strings.HasSuffix(kind, "+json"), strings.HasSuffix(kind, "+xml"), strings.HasSuffix(kind, "+text"):
		return true
	}
	switch kind {
	case "application/json", "application/javascript", "application/xml", "application/x-ndjson", "application/wasm", "application/manifest+json",
		"application/x-www-form-urlencoded", "application/vnd.apple.mpegurl", "application/x-mpegurl", "font/ttf", "font/otf", "image/bmp", "image/x-icon":
		return true
	}
	return false
}

// coding returns the index of the coding for a's body, -1 for none. If the choice depends on
// Accept-Encoding, coding adds Vary for caches.
func (a *reply) coding(r *request) int {
	if !a.shrinks() {
		return -1
	}
	if !a.varies() {
		a.header = append(a.header, [2]string{"Vary", "Accept-Encoding"})
	}
	return httpserver.AcceptedCoding(r.Field("Accept-Encoding"), codings)
}

// shrinks reports whether a may be compressed, and likely becomes shorter.
func (a *reply) shrinks() bool {
	switch {
	case a.status < 200 || a.status > 299 || a.status == http.StatusNoContent || a.status == http.StatusPartialContent:
		return false
	case 0 <= a.size && a.size < worthwhile, a.file != nil && a.size > compressedFile:
		return false
	case a.get("Content-Range") != "" || a.get("Content-Encoding") != "" || !compressible(a.get("Content-Type")):
		return false
	}
	return !a.fixed()
}

// fixed reports whether the function forbids other codings.
func (a *reply) fixed() bool {
	return slices.ContainsFunc(a.header, func(h [2]string) bool {
		return h[0] == "Cache-Control" && strings.Contains(strings.ToLower(h[1]), "no-transform")
	})
}

// varies reports whether Vary already names Accept-Encoding.
func (a *reply) varies() bool {
	for _, h := range a.header {
		if h[0] != "Vary" {
			continue
		}
		for name := range strings.SplitSeq(h[1], ",") {
			if name = strings.Trim(name, " \t"); name == "*" || strings.EqualFold(name, "Accept-Encoding") {
				return true
			}
		}
	}
	return false
}

// encoded adapts a's header to a body in the coding.
func (a *reply) encoded(name string) {
	a.set("Content-Encoding", name)
	if tag := a.get("Etag"); strings.HasPrefix(tag, `"`) {
		a.set("Etag", "W/"+tag) // a weak tag: same meaning, other bytes
	}
	a.remove(func(n string) bool {
		return n == "Accept-Ranges" || n == "Content-Md5" || n == "Content-Digest" || n == "Repr-Digest"
	})
	a.size = -1
}

// sendCompressed answers with a's body in the coding. A body of known length is compressed whole
// and sent with its length; any other body is sent piece by piece.
func (a *reply) sendCompressed(f front, r *request, resp *engine.Response, coding int) (begun bool, err error) {
	if r.head {
		a.encoded(codings[coding])
		a.setFields(f, r, resp)
		return true, f.Begin(a.status, -1)
	}
	w, ok := coders[coding].Get().(coder)
	if !ok { // the pool could not make a coder
		return false, http.ErrNotSupported
	}
	defer func() {
		w.Reset(nil) // drops all references to the request
		coders[coding].Put(w)
	}()
	if a.size < 0 {
		return a.streamCompressed(f, r, resp, codings[coding], w)
	}
	body := a.body
	if a.file != nil {
		body = io.NewSectionReader(a.file, a.offset, a.size)
	}
	var out bytes.Buffer
	w.Reset(&out)
	n, err := io.Copy(writerOnly{w}, readerOnly{body})
	if err == nil && n != a.size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return false, err
	}
	a.encoded(codings[coding])
	a.setFields(f, r, resp)
	return true, f.Send(a.status, out.Bytes())
}

// streamCompressed compresses a body of unknown length by w, and sends each piece at once.
func (a *reply) streamCompressed(f front, r *request, resp *engine.Response, coding string, w coder) (begun bool, err error) {
	b, err := f.Buffer(streamSize)
	if err != nil {
		return false, err
	}
	defer b.Release()
	buf := b.Bytes()
	a.encoded(coding)
	a.setFields(f, r, resp)
	if err := f.Begin(a.status, -1); err != nil {
		return true, err
	}
	w.Reset(f)
	for {
		n, rerr := a.body.Read(buf)
		if n > 0 {
			_, err := w.Write(buf[:n])
			if err == nil {
				err = w.Flush()
			}
			if err != nil {
				return true, err
			}
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return true, w.Close()
		case rerr != nil:
			return true, rerr
		}
	}
}
