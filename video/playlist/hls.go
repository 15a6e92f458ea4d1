// Package playlist writes what players read of an asset first: HLS playlists (RFC 8216bis)
// and DASH manifests (ISO/IEC 23009-1). Both name the same segments:
//
//	../cmaf/RENDITION/init.mp4
//	../cmaf/RENDITION/NUMBER.m4s    from 1 on
//	../ts/RENDITION/NUMBER.ts       the same in MPEG-TS, for HLS
//	../text/RENDITION.vtt           of kind text
//	../ts/RENDITION.vtt             the same beside MPEG-TS
//	../key ../license               of assets that are protected
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

// The names of the groups of renditions of sound and of text.
const (
	sound = "audio"
	words = "text"
)

// Form is what segments are in.
type Form int

// The forms of segments.
const (
	MP4 Form = iota
	TS
)

// Master is the playlist of all renditions, which are at RENDITION.m3u8.
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
	chosen := slices.IndexFunc(texts, func(r *asset.Rendition) bool { return r.Default }) // one at most
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
	if len(pictures) == 0 { // sound alone
		for _, r := range a.Of("audio") {
			average, peak := r.Rates()
			p.Append(r.Name+".m3u8", nil, m3u8.VariantParams{Bandwidth: uint32(peak), AverageBandwidth: uint32(average), Codecs: r.Codec})
		}
	}
	return p.Encode().Bytes()
}

// ranged is VIDEO-RANGE of a rendition: players are told where some have HDR.
func ranged(pictures []*asset.Rendition, r *asset.Rendition) string {
	if !slices.ContainsFunc(pictures, func(r *asset.Rendition) bool { return r.Colour.HDR() }) {
		return ""
	}
	return r.Colour.Range()
}

// mainSound is the track of sound that is heard unless somebody chooses: the one of which the
// source says so, or else the first.
func mainSound(tracks []*asset.Rendition) int {
	return max(0, slices.IndexFunc(tracks, func(r *asset.Rendition) bool { return r.Default }))
}

// trackName is what a track is called: a quoted string (RFC 8216bis section 4.2) that no other
// of its group has. taken are those of the group so far.
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

// unknown is the language of what has another, or none that can be told (ISO 639-2).
const unknown = "und"

var languageTag = regexp.MustCompile(`^[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8}){0,4}$`)

// language is the language tag of a track (RFC 5646, as xs:language has it), "" where the
// source says none. Sources may say anything.
func language(r *asset.Rendition) string {
	if r.Language == "" || languageTag.MatchString(r.Language) {
		return r.Language
	}
	return unknown
}

// Media is the playlist of a rendition's segments.
func Media(a *asset.Asset, r *asset.Rendition, form Form) ([]byte, error) {
	if r.Kind == "text" {
		folder := "text"
		if form == TS { // it has other time stamps
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

// protect says how the segments from the last one on are encrypted. What came before, the
// initialisation segment, is not.
func protect(p *m3u8.MediaPlaylist, a *asset.Asset) error {
	switch a.Protection {
	case asset.Clear:
	case asset.AES128: // IVs are the segments' numbers
		return p.SetKey("AES-128", "../key", "", "", "")
	case asset.CBCS:
		return p.SetKey("SAMPLE-AES", "../key", "0x"+a.Secret.IV.String(), "identity", "1")
	}
	return nil
}

// HasKeys says whether there are playlists of the first pictures: they are ranges of the
// segments as they are stored.
func HasKeys(a *asset.Asset, form Form) bool { return form == MP4 && a.Protection == asset.Clear }

// Keys is the playlist of a rendition's first pictures of each segment, for those who wind.
func Keys(r *asset.Rendition) ([]byte, error) {
	return segments(r, initialization(r), 0, func(p *m3u8.MediaPlaylist, n int, s asset.Segment) error {
		p.SetIframeOnly()
		return p.AppendSegment(&m3u8.MediaSegment{URI: fmt.Sprintf("../cmaf/%s/%d.m4s", r.Name, n), Duration: r.Seconds(s), Limit: s.Key})
	})
}

// initialization is where a rendition's initialisation segment is.
func initialization(r *asset.Rendition) string { return fmt.Sprintf("../cmaf/%s/init.mp4", r.Name) }

// target is the target duration in seconds of all playlists of pictures and sound, which have the
// same (RFC 8216bis, 6.2.4): that of the longest segment, rounded (4.4.3.1).
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

// segments is a playlist of all segments, which add adds; head is where their initialisation
// is, "" where they have none. The target duration is that of its own segments, or most.
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
	p.SetTargetDuration(max(1, most, p.TargetDuration)) // of clips of less than half a second it is 0, which players refuse
	p.Close()
	return p.Encode().Bytes(), nil
}

// keyRate is the bits each second of a rendition's first pictures.
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
