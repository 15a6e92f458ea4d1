package origin

import (
	"bytes"
	"fmt"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/playlist"
)

// find returns the item at a path relative to the asset's address. Its file is valid until
// release.
func (s *shelf) find(path []byte) (it item, ok bool, err error) {
	if t := s.texts[string(path)]; t != nil {
		return *t, true, nil
	}
	folder, rest, found := bytes.Cut(path, []byte{'/'})
	if !found {
		if string(path) == "key" && s.asset.Protection != asset.Clear {
			return s.key(), true, nil
		}
		return item{}, false, nil
	}
	switch string(folder) {
	case "cmaf":
		return s.media(rest)
	case "ts":
		it, ok := s.transport(rest)
		return it, ok, nil
	case "text":
		name, ok := bytes.CutSuffix(rest, []byte(".vtt"))
		r := s.rows[string(name)]
		if !ok || r == nil || r.of.Kind != "text" {
			return item{}, false, nil
		}
		return s.wholeFile(r.of.Name+".vtt", "text/vtt; charset=utf-8")
	case "thumbs":
		return s.sheet(rest)
	}
	return item{}, false, nil
}

// transport returns ts/NAME.m3u8 of subtitles or a segment ts/NAME/N.ts.
func (s *shelf) transport(path []byte) (it item, ok bool) {
	name, segment, within := bytes.Cut(path, []byte{'/'})
	if !within {
		return s.textInTS(name)
	}
	r := s.rows[string(name)]
	n, ok := r.segmentNumber(segment, ".ts")
	if !ok || !s.asset.InTS() {
		return item{}, false
	}
	return s.onDemand(r, n, playlist.TS), true
}

// sheet returns thumbs/N.jpg.
func (s *shelf) sheet(path []byte) (it item, ok bool, err error) {
	name, ok := bytes.CutSuffix(path, []byte(".jpg"))
	n, valid := number(name)
	t := s.asset.Thumbnails
	if !ok || !valid || t == nil || n*t.Columns*t.Rows >= t.Count {
		return item{}, false, nil
	}
	return s.wholeFile(fmt.Sprintf("sheet%d.jpg", n), "image/jpeg")
}

// media returns a segment cmaf/NAME/N.m4s, an initialisation segment cmaf/NAME/init.mp4 or, of an
// unprotected asset, a whole file cmaf/NAME.mp4.
func (s *shelf) media(path []byte) (it item, ok bool, err error) {
	name, segment, within := bytes.Cut(path, []byte{'/'})
	if !within {
		return s.wholeMedia(path)
	}
	r := s.rows[string(name)]
	if r == nil || r.of.Kind == "text" {
		return item{}, false, nil
	}
	n, isSegment := r.segmentNumber(segment, ".m4s")
	if isSegment && s.asset.Protection != asset.Clear {
		return s.onDemand(r, n, playlist.MP4), true, nil
	}
	if !isSegment && string(segment) != "init.mp4" {
		return item{}, false, nil
	}
	f, err := s.open(r.of.Name + ".mp4")
	if err != nil {
		return item{}, false, err
	}
	switch {
	case isSegment:
		of := &r.of.Segments[n-1]
		it = item{kind: r.kind, keep: forever, tag: r.tags[n-1], file: f, offset: of.Offset, size: of.Size}
	case s.asset.Protection == asset.CBCS:
		it, err = s.protectedInit(r, f)
	default:
		it = item{kind: r.kind, keep: forever, tag: r.init, file: f, size: r.of.Init}
	}
	return it, err == nil, err
}

// wholeMedia returns cmaf/NAME.mp4 of an unprotected asset.
func (s *shelf) wholeMedia(path []byte) (it item, ok bool, err error) {
	base, ok := bytes.CutSuffix(path, []byte(".mp4"))
	r := s.rows[string(base)]
	if !ok || r == nil || r.of.Kind == "text" || s.asset.Protection != asset.Clear {
		return item{}, false, nil
	}
	return s.wholeFile(r.of.Name+".mp4", r.kind)
}

// segmentNumber returns the number, from 1, of the segment called name. r may be nil.
func (r *row) segmentNumber(name []byte, suffix string) (n int, ok bool) {
	if r == nil || r.of.Kind == "text" {
		return 0, false
	}
	digits, ok := bytes.CutSuffix(name, []byte(suffix))
	if !ok {
		return 0, false
	}
	n, ok = number(digits)
	return n, ok && n >= 1 && n <= len(r.of.Segments)
}

// number parses a number in an address: at most nine digits, without leading zeros.
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

// wholeFile returns the item of a whole file.
func (s *shelf) wholeFile(name, kind string) (it item, ok bool, err error) {
	f, err := s.open(name)
	if err != nil {
		return item{}, false, err
	}
	info, err := f.Stat()
	return item{kind: kind, keep: forever, tag: `"` + s.asset.Made + "-" + name + `"`, file: f, size: info.Size()}, err == nil, err
}
