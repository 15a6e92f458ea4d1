package origin

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/playlist"
)

// item is something that is served: bytes in memory, or some of a file.
type item struct {
	kind   string // media type
	keep   string // Cache-Control
	tag    string // entity tag
	plain  []byte
	packed []byte // plain by gzip, nil where that is not worth it
	file   *os.File
	offset int64
	size   int64
}

// The values of Cache-Control: what has a name of its own never changes, playlists may once
// an asset is made anew.
const (
	forever = "public, max-age=31536000, immutable"
	awhile  = "public, max-age=10, stale-while-revalidate=30"
)

// shelf is what is served of an asset: its playlists, and its files while they are open.
type shelf struct {
	asset *asset.Asset
	texts map[string]*item // by path below the asset's
	rows  map[string]*row  // by rendition

	mu     sync.Mutex
	files  map[string]*os.File
	users  int // exchanges under way
	closed bool
	path   func(elem ...string) string
	used   uint64 // the origin's count when it was asked for last
}

// row is a rendition on a shelf.
type row struct {
	of   *asset.Rendition
	tags []string // of the segments
	init string   // tag
	kind string
}

// newShelf makes the playlists of an asset that is ready.
func newShelf(a *asset.Asset, path func(elem ...string) string) (*shelf, error) {
	s := &shelf{asset: a, path: path, texts: map[string]*item{}, rows: map[string]*row{}, files: map[string]*os.File{}}
	add := func(path, kind string, b []byte, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s.texts[path] = text(kind, b)
		return nil
	}
	const m3u8 = "application/vnd.apple.mpegurl"
	if err := add("hls/master.m3u8", m3u8, playlist.Master(a), nil); err != nil {
		return nil, err
	}
	manifest, err := playlist.DASH(a)
	if err := add("dash/manifest.mpd", "application/dash+xml", manifest, err); err != nil {
		return nil, err
	}
	if a.Thumbnails != nil {
		if err := add("thumbnails.vtt", "text/vtt; charset=utf-8", playlist.Thumbnails(a), nil); err != nil {
			return nil, err
		}
	}
	for _, r := range a.Renditions {
		b, err := playlist.Media(r)
		if err := add("hls/"+r.Name+".m3u8", m3u8, b, err); err != nil {
			return nil, err
		}
		if r.Kind == "video" {
			b, err := playlist.Keys(r)
			if err := add("hls/"+r.Name+"-keys.m3u8", m3u8, b, err); err != nil {
				return nil, err
			}
		}
		w := &row{of: r, kind: r.Kind + "/mp4", init: `"` + a.Made + "-" + r.Name + `-init"`}
		for i := range r.Segments {
			w.tags = append(w.tags, `"`+a.Made+"-"+r.Name+"-"+strconv.Itoa(i+1)+`"`)
		}
		s.rows[r.Name] = w
	}
	return s, nil
}

// text is an item in memory.
func text(kind string, b []byte) *item {
	sum := sha256.Sum256(b)
	t := &item{kind: kind, keep: awhile, plain: b, size: int64(len(b)), tag: `"` + hex.EncodeToString(sum[:12]) + `"`}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is one that there is
	_, _ = z.Write(b)                                          // to memory
	_ = z.Close()
	if packed.Len() < len(b)*9/10 {
		t.packed = packed.Bytes()
	}
	return t
}

// find is what is at a path below the asset's; ok is false where there is nothing. What is of
// a file is good until release.
func (s *shelf) find(path []byte) (it item, ok bool, err error) {
	if t := s.texts[string(path)]; t != nil {
		return *t, true, nil
	}
	folder, rest, found := bytes.Cut(path, []byte{'/'})
	if !found {
		return item{}, false, nil
	}
	switch string(folder) {
	case "cmaf":
		return s.media(rest)
	case "text":
		name, ok := bytes.CutSuffix(rest, []byte(".vtt"))
		r := s.rows[string(name)]
		if !ok || r == nil || r.of.Kind != "text" {
			return item{}, false, nil
		}
		return s.whole(r.of.Name+".vtt", "text/vtt; charset=utf-8")
	case "thumbs":
		name, ok := bytes.CutSuffix(rest, []byte(".jpg"))
		n, valid := number(name)
		t := s.asset.Thumbnails
		if !ok || !valid || t == nil || n*t.Columns*t.Rows >= t.Count {
			return item{}, false, nil
		}
		return s.whole(fmt.Sprintf("sheet%d.jpg", n), "image/jpeg")
	}
	return item{}, false, nil
}

// media is a segment, cmaf/NAME/N.m4s or init.mp4, or the whole file, cmaf/NAME.mp4.
func (s *shelf) media(path []byte) (it item, ok bool, err error) {
	name, segment, within := bytes.Cut(path, []byte{'/'})
	if !within {
		base, ok := bytes.CutSuffix(path, []byte(".mp4"))
		r := s.rows[string(base)]
		if !ok || r == nil || r.of.Kind == "text" {
			return item{}, false, nil
		}
		return s.whole(r.of.Name+".mp4", r.kind)
	}
	r := s.rows[string(name)]
	if r == nil || r.of.Kind == "text" {
		return item{}, false, nil
	}
	it = item{kind: r.kind, keep: forever}
	if string(segment) == "init.mp4" {
		it.tag, it.size = r.init, r.of.Init
	} else {
		digits, ok := bytes.CutSuffix(segment, []byte(".m4s"))
		n, valid := number(digits)
		if !ok || !valid || n < 1 || n > len(r.of.Segments) {
			return item{}, false, nil
		}
		of := &r.of.Segments[n-1]
		it.tag, it.offset, it.size = r.tags[n-1], of.Offset, of.Size
	}
	it.file, err = s.open(r.of.Name + ".mp4")
	return it, err == nil, err
}

// number is a number as it is written in addresses: digits, no more than nine, and no zero
// before others.
func number(b []byte) (n int, ok bool) {
	if len(b) == 0 || len(b) > 9 || b[0] == '0' && len(b) > 1 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// whole is a file of the asset's.
func (s *shelf) whole(name, kind string) (it item, ok bool, err error) {
	f, err := s.open(name)
	if err != nil {
		return item{}, false, err
	}
	info, err := f.Stat()
	return item{kind: kind, keep: forever, tag: `"` + s.asset.Made + "-" + name + `"`, file: f, size: info.Size()}, err == nil, err
}

// open is a file of the asset's, which stays open until the shelf is closed.
func (s *shelf) open(name string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		return f, nil
	}
	f, err := os.Open(s.path(name))
	if err == nil {
		s.files[name] = f
	}
	return f, err
}

// release is the end of a use. What was closed meanwhile is closed now.
func (s *shelf) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.tidyLocked()
}

// acquire begins a use, unless the shelf was closed.
func (s *shelf) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.users++
	return true
}

// close closes the files once nobody uses them.
func (s *shelf) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.tidyLocked()
}

func (s *shelf) tidyLocked() {
	if !s.closed || s.users > 0 {
		return
	}
	for _, f := range s.files {
		_ = f.Close() // it was only read
	}
	clear(s.files)
}
