// Package playlist writes an asset's HLS playlists (RFC 8216bis) and DASH manifests (ISO/IEC
// 23009-1). Both refer to the same segments:
//
//	../cmaf/RENDITION/init.mp4
//	../cmaf/RENDITION/NUMBER.m4s    from 1 on
//	../ts/RENDITION/NUMBER.ts       the same in MPEG-TS, for HLS
//	../text/RENDITION.vtt           of kind text
//	../ts/RENDITION.vtt             the same beside MPEG-TS
//	../key ../license               of protected assets
//	thumbs/NUMBER.jpg               of [Thumbnails], from 0 on
package playlist

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/Eyevinn/hls-m3u8/m3u8"

	"github.com/fre-engine/fre/video/asset"
)

// Group names of the renditions of sound and text.
const (
	sound = "audio"
	words = "text"
)

// Form is the container of segments.
type Form int

// The forms of segments.
const (
	MP4 Form = iota
	TS
)

// Master returns the master playlist of all renditions, with media playlists at RENDITION.m3u8.
func Master(a *asset.Asset, form Form) []byte {
	p := m3u8.NewMasterPlaylist()
	p.SetIndependentSegments(true)
	var tracks []*m3u8.Alternative
	var loudest int64
	codec := ""
	taken := map[string]bool{}
	sounds := a.Of("audio")
	first := mainSound(sounds)
	for i, r := range sounds {
		_, peak := r.Rates()
		loudest, codec = max(loudest, peak), r.Codec
		tracks = append(tracks, &m3u8.Alternative{
			Type: "AUDIO", GroupId: sound, URI: r.Name + ".m3u8", Language: language(r), Name: trackName(r, i, taken), Default: i == first, Autoselect: true,
			Channels: &m3u8.Channels{Amount: r.Channels},
		})
	}
	texts := a.Of("text")
	clear(taken)
	chosen := slices.IndexFunc(texts, func(r *asset.Rendition) bool { return r.Default }) // at most one default
	for i, r := range texts {
		tracks = append(tracks, &m3u8.Alternative{
			Type: "SUBTITLES", GroupId: words, URI: r.Name + ".m3u8", Language: language(r), Name: trackName(r, i, taken), Default: i == chosen, Autoselect: true,
		})
	}
	pictures := a.Of("video")
	for _, r := range pictures {
		average, peak := r.Rates()
		v := m3u8.VariantParams{
			Bandwidth: uint32(peak + loudest), AverageBandwidth: uint32(average + loudest), Codecs: r.Codec,
			Resolution: fmt.Sprintf("%dx%d", r.Width, r.Height), FrameRate: float64(r.FrameRate.Num) / float64(max(r.FrameRate.Den, 1)),
		}
		v.VideoRange = ranged(pictures, r)
		v.Alternatives = tracks
		if codec != "" {
			v.Codecs, v.Audio = r.Codec+","+codec, sound
		}
		if len(texts) > 0 {
			v.Subtitles = words
		}
		p.Append(r.Name+".m3u8", nil, v)
	}
	for _, r := range pictures {
		if !HasKeys(a, form) {
			break
		}
		p.Append(r.Name+"-keys.m3u8", nil, m3u8.VariantParams{
			Bandwidth: uint32(keyRate(r)), Codecs: r.Codec, Resolution: fmt.Sprintf("%dx%d", r.Width, r.Height), Iframe: true, VideoRange: ranged(pictures, r),
		})
	}
	if len(pictures) == 0 { // only sound
		for _, r := range a.Of("audio") {
			average, peak := r.Rates()
			p.Append(r.Name+".m3u8", nil, m3u8.VariantParams{Bandwidth: uint32(peak), AverageBandwidth: uint32(average), Codecs: r.Codec})
		}
	}
	return p.Encode().Bytes()
}

// ranged returns the VIDEO-RANGE of a rendition, or "" if no rendition has HDR.
func ranged(pictures []*asset.Rendition, r *asset.Rendition) string {
	if !slices.ContainsFunc(pictures, func(r *asset.Rendition) bool { return r.Colour.HDR() }) {
		return ""
	}
	return r.Colour.Range()
}

// mainSound returns the index of the default track of sound: the source's default, else 0.
func mainSound(tracks []*asset.Rendition) int {
	return max(0, slices.IndexFunc(tracks, func(r *asset.Rendition) bool { return r.Default }))
}

// trackName returns the name of a track: a quoted string (RFC 8216bis section 4.2), unique in its
// group. taken holds the names of the group so far.
func trackName(r *asset.Rendition, i int, taken map[string]bool) string {
	base := strings.TrimSpace(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) || c == '"' || c == unicode.ReplacementChar {
			return -1
		}
		return c
	}, strings.ToValidUTF8(r.Title, "")))
	if base == "" {
		base = language(r)
	}
	if base == "" || base == unknown {
		base = fmt.Sprintf("Track %d", i+1)
	}
	name := base
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%s (%d)", base, n)
	}
	taken[name] = true
	return name
}

// unknown is the language tag of an undetermined or invalid language (ISO 639-2).
const unknown = "und"

var languageTag = regexp.MustCompile(`^[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8}){0,4}$`)

// language returns the language tag of a track (RFC 5646, in the form of xs:language), or "" if
// the source states none. A source may state any text, so an invalid tag becomes unknown.
func language(r *asset.Rendition) string {
	if r.Language == "" || languageTag.MatchString(r.Language) {
		return r.Language
	}
	return unknown
}

// Media returns the media playlist of a rendition.
func Media(a *asset.Asset, r *asset.Rendition, form Form) ([]byte, error) {
	if r.Kind == "text" {
		folder := "text"
		if form == TS { // the text beside MPEG-TS has other time stamps
			folder = "ts"
		}
		return segments(r, "", 0, func(p *m3u8.MediaPlaylist, _ int, s asset.Segment) error {
			return p.Append(fmt.Sprintf("../%s/%s.vtt", folder, r.Name), r.Seconds(s), "")
		})
	}
	head, address := initialization(r), "../cmaf/%s/%d.m4s"
	if form == TS {
		head, address = "", "../ts/%s/%d.ts"
	}
	return segments(r, head, target(a), func(p *m3u8.MediaPlaylist, n int, s asset.Segment) error {
		err := p.Append(fmt.Sprintf(address, r.Name, n), r.Seconds(s), "")
		if n == 1 && err == nil {
			err = protect(p, a)
		}
		return err
	})
}

// protect adds the key for the segments from the last one on. The initialisation segment before
// is not encrypted.
func protect(p *m3u8.MediaPlaylist, a *asset.Asset) error {
	switch a.Protection {
	case asset.Clear:
	case asset.AES128: // the IVs are the segments' numbers
		return p.SetKey("AES-128", "../key", "", "", "")
	case asset.CBCS:
		return p.SetKey("SAMPLE-AES", "../key", "0x"+a.Secret.IV.String(), "identity", "1")
	}
	return nil
}

// HasKeys reports whether the asset has playlists of key frames. They refer to byte ranges of the
// stored segments.
func HasKeys(a *asset.Asset, form Form) bool { return form == MP4 && a.Protection == asset.Clear }

// Keys returns the playlist of the first picture of each segment, for fast winding.
func Keys(r *asset.Rendition) ([]byte, error) {
	return segments(r, initialization(r), 0, func(p *m3u8.MediaPlaylist, n int, s asset.Segment) error {
		p.SetIframeOnly()
		return p.AppendSegment(&m3u8.MediaSegment{URI: fmt.Sprintf("../cmaf/%s/%d.m4s", r.Name, n), Duration: r.Seconds(s), Limit: s.Key})
	})
}

// initialization returns the address of a rendition's initialisation segment.
func initialization(r *asset.Rendition) string { return fmt.Sprintf("../cmaf/%s/init.mp4", r.Name) }

// target returns the target duration in seconds, which all playlists of pictures and sound share
// (RFC 8216bis, 6.2.4): the duration of the longest segment, rounded (4.4.3.1).
func target(a *asset.Asset) uint {
	longest := 0.0
	for _, r := range a.Renditions {
		if r.Kind != "text" {
			for _, s := range r.Segments {
				longest = max(longest, r.Seconds(s))
			}
		}
	}
	return uint(math.Round(longest))
}

// segments returns a playlist of all segments; add appends a segment. head is the address of the
// initialisation segment, or "". The target duration is at least most.
func segments(r *asset.Rendition, head string, most uint, add func(*m3u8.MediaPlaylist, int, asset.Segment) error) ([]byte, error) {
	p, err := m3u8.NewMediaPlaylist(0, uint(max(1, len(r.Segments))))
	if err != nil {
		return nil, err
	}
	p.MediaType = m3u8.VOD
	p.SetIndependentSegments(true)
	p.SetVersion(7)
	if head != "" {
		p.SetDefaultMap(head, 0, 0)
	}
	for i, s := range r.Segments {
		if err := add(p, i+1, s); err != nil {
			return nil, err
		}
	}
	p.SetTargetDuration(max(1, most, p.TargetDuration)) // below half a second the duration rounds to 0, which players refuse
	p.Close()
	return p.Encode().Bytes(), nil
}

// keyRate returns the bits per second of a rendition's first pictures.
func keyRate(r *asset.Rendition) int64 {
	var bytes int64
	var seconds float64
	for _, s := range r.Segments {
		bytes += s.Key
		seconds += r.Seconds(s)
	}
	if seconds == 0 {
		return 0
	}
	return int64(float64(8*bytes) / seconds)
}
