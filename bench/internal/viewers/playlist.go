package viewers

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Eyevinn/hls-m3u8/m3u8"
)

// errPlaylist is the cause of every error about an unplayable playlist.
var errPlaylist = errors.New("not a playlist that can be played")

// address is a URL, split into the server (scheme and host) and the path with the query.
type address struct{ server, path string }

func (a address) String() string { return a.server + a.path }

// part is a resource of a server, or a byte range of a resource.
type part struct {
	address
	offset, size int64 // size 0: the whole resource
}

// master is a master playlist (RFC 8216, 4.3.4), the slowest rung first.
type master struct{ rungs []rung }

type rung struct {
	bandwidth int64 // peak, in bits per second
	name      string
	media     address
	sound     address // the rendition of sound to play with it; zero: none
}

// media is a media playlist (RFC 8216, 4.3.3) with an end.
type media struct {
	segments []segment
	total    time.Duration
}

type segment struct {
	part
	start, duration time.Duration
	head            part // the initialisation segment; zero: none
}

// at returns the index of the segment played at t, or -1. The tolerance allows for slightly
// different cuts of tracks and rungs.
func (m *media) at(t time.Duration) int {
	const tolerance = 50 * time.Millisecond
	i, found := slices.BinarySearchFunc(m.segments, t+tolerance, func(s segment, t time.Duration) int { return cmp.Compare(s.start, t) })
	if !found {
		i--
	}
	for i >= 0 && i < len(m.segments) && m.segments[i].duration == 0 {
		i++
	}
	if i < 0 || i >= len(m.segments) || m.segments[i].start+m.segments[i].duration <= t+tolerance {
		return -1
	}
	return i
}

// Limits of a playlist.
const (
	longestSegment = time.Hour
	longestMedia   = 1000 * time.Hour
)

// mapRange matches the byte range of an initialisation segment. The range is in quotes and its
// offset may be missing (RFC 8216, 4.3.2.5); the decoder expects neither.
var mapRange = regexp.MustCompile(`(?m)^(#EXT-X-MAP:.*\bBYTERANGE=)"(\d+)(@\d+)?"`)

// decode parses a playlist. The decoder panics at some broken playlists.
func decode(text []byte) (p m3u8.Playlist, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			p, err = nil, fmt.Errorf("%w: %v", errPlaylist, problem)
		}
	}()
	if !bytes.HasPrefix(text, []byte("#EXTM3U")) {
		return nil, fmt.Errorf("%w: it begins with %.20q, not with #EXTM3U", errPlaylist, text)
	}
	text = mapRange.ReplaceAllFunc(text, func(line []byte) []byte {
		found := mapRange.FindSubmatch(line)
		offset := found[3]
		if len(offset) == 0 {
			offset = []byte("@0")
		}
		return slices.Concat(found[1], found[2], offset)
	})
	p, _, err = m3u8.DecodeFrom(bytes.NewReader(text), false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPlaylist, err)
	}
	return p, nil
}

// parseMaster parses the master playlist at base.
func parseMaster(base *url.URL, text []byte) (*master, error) {
	p, err := decode(text)
	if err != nil {
		return nil, err
	}
	list, ok := p.(*m3u8.MasterPlaylist)
	if !ok {
		return nil, fmt.Errorf("%w: a media playlist, where a master playlist is asked for", errPlaylist)
	}
	m := &master{}
	for _, v := range list.Variants {
		if v.Iframe || v.URI == "" {
			continue
		}
		r := rung{bandwidth: int64(v.Bandwidth), name: v.Resolution}
		if r.bandwidth == 0 {
			return nil, fmt.Errorf("%w: %.60q has no BANDWIDTH", errPlaylist, v.URI)
		}
		if r.media, err = resolve(base, v.URI); err != nil {
			return nil, err
		}
		if a := sound(v.Alternatives); a != nil {
			if r.sound, err = resolve(base, a.URI); err != nil {
				return nil, err
			}
		}
		m.rungs = append(m.rungs, r)
	}
	if len(m.rungs) == 0 {
		return nil, fmt.Errorf("%w: a master playlist without variants", errPlaylist)
	}
	slices.SortStableFunc(m.rungs, func(a, b rung) int { return cmp.Compare(a.bandwidth, b.bandwidth) })
	return m, nil
}

// sound returns the default of a variant's renditions of sound, or else the first with its own
// playlist. The result is nil if the variant's segments contain the sound.
func sound(alternatives []*m3u8.Alternative) *m3u8.Alternative {
	var first *m3u8.Alternative
	for _, a := range alternatives {
		if a.Type != "AUDIO" {
			continue
		}
		if a.Default {
			if a.URI == "" { // the sound is in the variant's own segments
				return nil
			}
			return a
		}
		if first == nil && a.URI != "" {
			first = a
		}
	}
	return first
}

// parseMedia parses the media playlist at base.
func parseMedia(base *url.URL, text []byte) (*media, error) {
	p, err := decode(text)
	if err != nil {
		return nil, err
	}
	list, ok := p.(*m3u8.MediaPlaylist)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: a master playlist, where a media playlist is asked for", errPlaylist)
	case !list.Closed:
		return nil, fmt.Errorf("%w: it is live, it has no #EXT-X-ENDLIST", errPlaylist)
	}
	m := &media{}
	header := list.Map
	var head part
	for _, s := range list.Segments {
		if s == nil { // unused capacity of the decoder
			continue
		}
		if !(s.Duration >= 0 && s.Duration <= longestSegment.Seconds()) || s.Limit < 0 || s.Offset < 0 {
			return nil, fmt.Errorf("%w: %.60q of %v seconds, %d bytes at %d", errPlaylist, s.URI, s.Duration, s.Limit, s.Offset)
		}
		if s.Map != nil {
			header = s.Map
		}
		if header != nil {
			if header.Limit < 0 || header.Offset < 0 {
				return nil, fmt.Errorf("%w: %.60q, %d bytes at %d", errPlaylist, header.URI, header.Limit, header.Offset)
			}
			head.offset, head.size = header.Offset, header.Limit
			if head.address, err = resolve(base, header.URI); err != nil {
				return nil, err
			}
		}
		next := segment{part: part{offset: s.Offset, size: s.Limit}, start: m.total, duration: time.Duration(s.Duration * float64(time.Second)), head: head}
		if next.address, err = resolve(base, s.URI); err != nil {
			return nil, err
		}
		if n := len(m.segments); n > 0 && next.size > 0 && next.offset == 0 && m.segments[n-1].address == next.address {
			// Without an offset, a range follows the range before (RFC 8216, 4.3.2.2).
			if next.offset = m.segments[n-1].offset + m.segments[n-1].size; next.offset < 0 {
				return nil, fmt.Errorf("%w: ranges of %.60q that have no end", errPlaylist, s.URI)
			}
		}
		m.segments = append(m.segments, next)
		if m.total += next.duration; m.total > longestMedia {
			return nil, fmt.Errorf("%w: it is longer than %v", errPlaylist, longestMedia)
		}
	}
	if m.total < 100*time.Millisecond {
		return nil, fmt.Errorf("%w: %d segments of %v in all", errPlaylist, len(m.segments), m.total)
	}
	return m, nil
}

// resolve returns the address of uri, relative to a playlist at base.
func resolve(base *url.URL, uri string) (address, error) {
	u, err := base.Parse(uri)
	if err != nil {
		return address{}, fmt.Errorf("%w: %w", errPlaylist, err)
	}
	return addressOf(u)
}

// addressOf returns the address of an absolute URL.
func addressOf(u *url.URL) (address, error) {
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ContainsAny(u.Host, " \r\n") {
		return address{}, fmt.Errorf("%w: an address %.60q, which is not one of HTTP", errPlaylist, u)
	}
	return address{server: u.Scheme + "://" + u.Host, path: strings.ReplaceAll(u.RequestURI(), " ", "%20")}, nil
}

// intake parses playlists once for all viewers. Each viewer fetches its own copy, but the copies
// are equal.
type intake struct {
	mu   sync.Mutex
	kept map[address]*parsed
}

// parsed is a parsed playlist.
type parsed struct {
	text   []byte
	master *master // set for a master playlist, else media is set
	media  *media
}

// read parses text, the playlist at a. The caller must not change the result.
func (in *intake) read(a address, text []byte, isMaster bool) (*parsed, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if p := in.kept[a]; p != nil && (p.master != nil) == isMaster && bytes.Equal(p.text, text) {
		return p, nil
	}
	base, err := url.Parse(a.String())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPlaylist, err)
	}
	p := &parsed{text: bytes.Clone(text)}
	if isMaster {
		p.master, err = parseMaster(base, text)
	} else {
		p.media, err = parseMedia(base, text)
	}
	if err != nil {
		return nil, err
	}
	if in.kept == nil {
		in.kept = map[address]*parsed{}
	}
	in.kept[a] = p
	return p, nil
}
