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

// errPlaylist is wrapped by what is no playlist that can be played.
var errPlaylist = errors.New("not a playlist that can be played")

// address is where something is: the server, as scheme and host, and what is asked of it.
type address struct{ server, path string }

func (a address) String() string { return a.server + a.path }

// part is something of a server's that is fetched whole, or by a range.
type part struct {
	address
	offset, size int64 // size 0: all of it
}

// master is a master playlist (RFC 8216, 4.3.4), the slowest rung first.
type master struct{ rungs []rung }

type rung struct {
	bandwidth int64 // bits a second, at most
	name      string
	media     address
	sound     address // the rendition of its group that is played with it; zero: none
}

// media is a media playlist (RFC 8216, 4.3.3) that has an end.
type media struct {
	segments []segment
	total    time.Duration
}

type segment struct {
	part
	start, duration time.Duration
	head            part // the initialisation segment; zero: none
}

// at is the segment that is played at t, with a tolerance, for tracks and rungs are cut at
// slightly different times; -1: none is.
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

// The most that a playlist may ask for.
const (
	longestSegment = time.Hour
	longestMedia   = 1000 * time.Hour
)

// mapRange is the range of an initialisation segment. It is in quotes (RFC 8216, 4.3.2.5), which
// the decoder does not expect, nor that its offset may be missing.
var mapRange = regexp.MustCompile(`(?m)^(#EXT-X-MAP:.*\bBYTERANGE=)"(\d+)(@\d+)?"`)

// decode reads the text of a playlist. The decoder panics at some that are broken.
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

// parseMaster reads the master playlist that is at base.
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

// sound is the default of a variant's renditions of sound, else the first that has a playlist
// of its own; nil: none has.
func sound(alternatives []*m3u8.Alternative) *m3u8.Alternative {
	var first *m3u8.Alternative
	for _, a := range alternatives {
		if a.Type != "AUDIO" {
			continue
		}
		if a.Default {
			if a.URI == "" { // it is in the variant's own segments
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

// parseMedia reads the media playlist that is at base.
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
		if s == nil { // room that the decoder has made
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
			// No offset: it follows on the one before (RFC 8216, 4.3.2.2).
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

// resolve is the address that a playlist's at base names by uri.
func resolve(base *url.URL, uri string) (address, error) {
	u, err := base.Parse(uri)
	if err != nil {
		return address{}, fmt.Errorf("%w: %w", errPlaylist, err)
	}
	return addressOf(u)
}

// addressOf is that of a whole URL.
func addressOf(u *url.URL) (address, error) {
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ContainsAny(u.Host, " \r\n") {
		return address{}, fmt.Errorf("%w: an address %.60q, which is not one of HTTP", errPlaylist, u)
	}
	return address{server: u.Scheme + "://" + u.Host, path: strings.ReplaceAll(u.RequestURI(), " ", "%20")}, nil
}

// intake has playlists parsed once for all viewers: each fetches its own, but they are the
// same.
type intake struct {
	mu   sync.Mutex
	kept map[address]*parsed
}

// parsed is what a playlist's text says.
type parsed struct {
	text   []byte
	master *master // one of the two
	media  *media
}

// read parses the text that is at a, of a master playlist or of a media playlist. What it
// returns is not to be changed.
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
