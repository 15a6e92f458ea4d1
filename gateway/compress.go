package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

const (
	// worthwhile is how long a body is at least that compressing makes shorter by
	// enough, in bytes.
	worthwhile = 1 << 10
	// compressedFile is how long a file is at most that is compressed, in bytes: beyond,
	// it costs the engine more than it saves, and the kernel sends it as it is.
	compressedFile = 1 << 20
)

// coder compresses. It is of one of the pools below.
type coder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

// codings are those that the gateway knows, the preferred one first; coders are theirs.
var codings = []string{"zstd", "gzip"}

var coders = []*sync.Pool{
	{New: func() any {
		// RFC 9659: no window above 8 MiB; a small one keeps the encoder small.
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
		if err != nil { // of these options: never
			return nil
		}
		return coder(w)
	}},
	{New: func() any {
		w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		if err != nil { // of this level: never
			return nil
		}
		return coder(w)
	}},
}

// compressible says whether bodies of that type usually become shorter. Events are
// left alone: each is for now.
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

// coding is the index of how a's body is to be sent, -1 for as it is. Whether it is or
// not, caches are told what that depended on.
func (a *reply) coding(r *request) int {
	switch {
	case a.status < 200 || a.status > 299 || a.status == http.StatusNoContent || a.status == http.StatusPartialContent || a.get("Content-Range") != "":
		return -1
	case 0 <= a.size && a.size < worthwhile, a.file != nil && a.size > compressedFile:
		return -1
	case a.get("Content-Encoding") != "" || !compressible(a.get("Content-Type")):
		return -1
	}
	for _, h := range a.header {
		if h[0] == "Cache-Control" && strings.Contains(strings.ToLower(h[1]), "no-transform") {
			return -1
		}
	}
	if !a.varies() {
		a.header = append(a.header, [2]string{"Vary", "Accept-Encoding"})
	}
	return httpserver.AcceptedCoding(r.Field("Accept-Encoding"), codings)
}

// varies says whether the answer says already that it depends on the coding.
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

// encoded makes of a's head that of a body in that coding.
func (a *reply) encoded(name string) {
	a.set("Content-Encoding", name)
	if tag := a.get("Etag"); strings.HasPrefix(tag, `"`) {
		a.set("Etag", "W/"+tag) // the bytes are others, what they say is the same
	}
	a.remove(func(n string) bool {
		return n == "Accept-Ranges" || n == "Content-Md5" || n == "Content-Digest" || n == "Repr-Digest"
	})
	a.size = -1
}

// sendCompressed answers with a's body in the coding of that index. One that is here
// goes out whole and with its length, any other piece by piece as it comes.
func (a *reply) sendCompressed(f front, r *request, resp *engine.Response, coding int) (begun bool, err error) {
	if r.head {
		a.encoded(codings[coding])
		a.setFields(f, r, resp)
		return true, f.Begin(a.status, -1)
	}
	body, length := a.body, a.size
	if a.file != nil {
		body = io.NewSectionReader(a.file, a.offset, a.size)
	}
	w, ok := coders[coding].Get().(coder)
	if !ok { // see the pools
		return false, http.ErrNotSupported
	}
	defer func() {
		w.Reset(nil) // it must keep nothing of this request
		coders[coding].Put(w)
	}()
	if length >= 0 {
		var out bytes.Buffer
		w.Reset(&out)
		n, err := io.Copy(writerOnly{w}, readerOnly{body})
		if err == nil && n != length {
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
	b, err := f.Buffer(streamSize)
	if err != nil {
		return false, err
	}
	defer b.Release()
	buf := b.Bytes()
	a.encoded(codings[coding])
	a.setFields(f, r, resp)
	if err := f.Begin(a.status, -1); err != nil {
		return true, err
	}
	w.Reset(f)
	for {
		n, rerr := body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return true, err
			}
			if err := w.Flush(); err != nil {
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
