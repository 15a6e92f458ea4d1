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
	"sync/atomic"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/packager"
	"github.com/fre-engine/fre/video/playlist"
)

// item is a servable object: bytes in memory, a part of a file, or a segment to be made.
type item struct {
	kind   string // media type
	keep   string // Cache-Control
	tag    string // entity tag
	plain  []byte
	packed []byte // plain as gzip; nil: not worth packing
	file   *os.File
	offset int64
	size   int64
	by     maker // makes the item; nil: no need
}

// Values of Cache-Control. An object with a unique name never changes. A playlist changes when
// its asset is made again.
const (
	forever = "public, max-age=31536000, immutable"
	awhile  = "public, max-age=10, stale-while-revalidate=30"
	never   = "no-store"
)

// shelf holds the playlists and open files of an asset.
type shelf struct {
	use
	asset *asset.Asset
	ready chan struct{}    // closed once the fields below are set
	err   error            // why fill failed
	texts map[string]*item // by path relative to the asset's address
	rows  map[string]*row  // by rendition

	mu     sync.Mutex
	files  map[string]*os.File
	users  int // exchanges in progress
	closed bool
	path   func(elem ...string) string
	used   uint64 // the origin's count at the last use
}

// row is a rendition on a shelf.
type row struct {
	of   *asset.Rendition
	tags []string // of the segments
	init string   // tag
	kind string

	mu   sync.Mutex
	read *packager.Track // nil before the first use
}

// folders maps the folders of playlists to the form of their segments.
var folders = map[string]playlist.Form{"hls": playlist.MP4, "ts": playlist.TS}

// newShelf returns an empty shelf for a ready asset.
func newShelf(a *asset.Asset, path func(elem ...string) string) *shelf {
	return &shelf{asset: a, path: path, ready: make(chan struct{}), texts: map[string]*item{}, rows: map[string]*row{}, files: map[string]*os.File{}}
}

// fill makes the playlists. For an asset of hours, fill takes a good part of a second.
func (s *shelf) fill() error {
	a := s.asset
	add := func(path, kind string, b []byte, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s.texts[path] = text(kind, b)
		return nil
	}
	if err := s.fillPlaylists(add); err != nil {
		return err
	}
	if a.Protection != asset.AES128 {
		manifest, err := playlist.DASH(a)
		if err := add("dash/manifest.mpd", "application/dash+xml", manifest, err); err != nil {
			return err
		}
	}
	if a.Thumbnails != nil {
		if err := add("thumbnails.vtt", "text/vtt; charset=utf-8", playlist.Thumbnails(a), nil); err != nil {
			return err
		}
	}
	for _, r := range a.Renditions {
		if r.Kind == "video" && playlist.HasKeys(a, playlist.MP4) {
			b, err := playlist.Keys(r)
			if err := add("hls/"+r.Name+"-keys.m3u8", typeM3U8, b, err); err != nil {
				return err
			}
		}
		s.rows[r.Name] = newRow(a, r)
	}
	return nil
}

const typeM3U8 = "application/vnd.apple.mpegurl"

// fillPlaylists adds the master and media playlists of each form.
func (s *shelf) fillPlaylists(add func(path, kind string, b []byte, err error) error) error {
	a := s.asset
	for folder, form := range folders {
		if form == playlist.TS && !a.InTS() {
			continue
		}
		if err := add(folder+"/master.m3u8", typeM3U8, playlist.Master(a, form), nil); err != nil {
			return err
		}
		for _, r := range a.Renditions {
			b, err := playlist.Media(a, r, form)
			if err := add(folder+"/"+r.Name+".m3u8", typeM3U8, b, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// newRow returns the row of a rendition, with the tags of its segments.
func newRow(a *asset.Asset, r *asset.Rendition) *row {
	w := &row{of: r, kind: r.Kind + "/mp4", init: `"` + a.Made + "-" + r.Name + `-init"`}
	for i := range r.Segments {
		w.tags = append(w.tags, `"`+a.Made+"-"+r.Name+"-"+strconv.Itoa(i+1)+`"`)
	}
	return w
}

// text returns an item in memory.
func text(kind string, b []byte) *item {
	sum := sha256.Sum256(b)
	t := &item{kind: kind, keep: awhile, plain: b, size: int64(len(b)), tag: `"` + hex.EncodeToString(sum[:12]) + `"`}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
	_, _ = z.Write(b)                                          // writes to memory
	_ = z.Close()
	if packed.Len() < len(b)*9/10 {
		t.packed = packed.Bytes()
	}
	return t
}

// open opens a file of the asset. The file stays open until the shelf is closed.
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

// release ends a use. If the shelf was closed meanwhile, the last release closes its files.
func (s *shelf) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.tidyLocked()
}

// acquire begins a use and returns true, or returns false if the shelf is closed.
func (s *shelf) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.users++
	return true
}

// close closes the files as soon as the shelf has no users.
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
		_ = f.Close() // read-only
	}
	clear(s.files)
}

// use counts the answers about an asset since its shelf was opened.
type use struct {
	answers atomic.Int64
	bytes   atomic.Int64
}

// track parses the row's initialisation segment, stored in f, once.
func (r *row) track(f *os.File) (*packager.Track, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read != nil {
		return r.read, nil
	}
	b, err := r.initialization(f)
	if err == nil {
		r.read, err = packager.ReadTrack(b)
	}
	return r.read, err
}

func (r *row) initialization(f *os.File) ([]byte, error) {
	b := make([]byte, r.of.Init)
	_, err := f.ReadAt(b, 0)
	return b, err
}
