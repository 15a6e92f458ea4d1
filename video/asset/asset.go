// Package asset is what the video service knows of a video: its source, what has been made
// of it, and where the bytes of each segment are.
package asset

import (
	"encoding/binary"
	"os"
	"strings"
	"time"

	"github.com/fre-engine/fre/video/media"
)

// State is how far an asset is.
type State string

// The states of an asset, in their order; Failed may follow on any.
const (
	Uploading State = "uploading"
	Working   State = "working" // it is looked at, and made into renditions
	Ready     State = "ready"
	Failed    State = "failed"
)

// Asset is one video.
type Asset struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"` // what its owner calls it: a file's name
	Created  time.Time `json:"created"`
	State    State     `json:"state"`
	Size     int64     `json:"size"`               // of the source in bytes, of an upload when it is whole
	Codec    string    `json:"codec,omitempty"`    // of media.Codecs, in which its owner wants it; "": the service's choice
	Error    string    `json:"error,omitempty"`    // why it failed: the decoder's words
	Warnings []string  `json:"warnings,omitempty"` // what of the source is not in what was made
	Jobs     *Jobs     `json:"jobs,omitempty"`     // while it is worked on

	Protection Protection `json:"protection,omitempty"`
	Secret     *Secret    `json:"secret,omitempty"` // where it is protected; never in a View

	Source     *media.Source `json:"source,omitempty"`
	Plan       *Plan         `json:"plan,omitempty"`     // what is made of it, once that is known
	Made       string        `json:"made,omitempty"`     // names what was made of it: another time, another name
	Duration   float64       `json:"duration,omitempty"` // seconds of what was made
	Renditions []*Rendition  `json:"renditions,omitempty"`
	Thumbnails *Thumbnails   `json:"thumbnails,omitempty"`
}

// View is an asset as the service's API shows it: without its secret and the places of its
// segments, and with the addresses of its playlists once there are any.
type View struct {
	*Asset
	HLS           string `json:"hls,omitempty"`
	HLSTS         string `json:"hls_ts,omitempty"`  // with segments in MPEG-TS
	DASH          string `json:"dash,omitempty"`    // none where Protection is AES128
	License       string `json:"license,omitempty"` // of CBCS, for players that have Clear Key
	ThumbnailsVTT string `json:"thumbnails_vtt,omitempty"`
}

// Plan is what is made of a source. Whoever goes on with the work of another process keeps
// to the plan that it has found.
type Plan struct {
	Video int          `json:"video"` // index of the stream; -1: none
	Grid  media.Grid   `json:"grid,omitzero"`
	Rungs []media.Rung `json:"rungs,omitempty"`
	Chunk int          `json:"chunk,omitempty"` // frames that one sandbox makes at a time, whole segments

	Preset string  `json:"preset,omitempty"` // of the encoder
	Most   float64 `json:"most"`             // seconds: what comes later is left out

	Audio   []int   `json:"audio,omitempty"` // indices of streams
	Text    []int   `json:"text,omitempty"`
	Segment float64 `json:"segment"` // seconds
	Thumbs  float64 `json:"thumbs"`  // seconds from one thumbnail to the next; 0: none
}

// Frames is how many of the grid there are at most.
func (p *Plan) Frames() int {
	return max(1, int(p.Most*float64(p.Grid.Rate.Num)/float64(p.Grid.Rate.Den)))
}

// Seconds is when a frame of the grid is shown.
func (p *Plan) Seconds(frame int) float64 {
	return float64(frame) * float64(p.Grid.Rate.Den) / float64(p.Grid.Rate.Num)
}

// PlayerFields are the fields that players in a browser may send, to assets and live streams
// alike: conditions, ranges, and what they tell of themselves (CMCD, CTA-5004).
const PlayerFields = "Content-Type, Range, If-None-Match, If-Range, If-Modified-Since, CMCD-Request, CMCD-Object, CMCD-Status, CMCD-Session"

// Jobs is how far the work on an asset is.
type Jobs struct {
	Done  int    `json:"done"`
	All   int    `json:"all"`             // 0 where that is not known
	Waits string `json:"waits,omitempty"` // what for, and what to do, where it does not go on
}

// Thumbnails are small pictures of an asset, one each Interval seconds, in sheets of
// Columns × Rows, row by row; sheet n, from 0 on, is the file sheetN.jpg.
type Thumbnails struct {
	Width    int     `json:"width"` // of each, in pixels
	Height   int     `json:"height"`
	Columns  int     `json:"columns"`
	Rows     int     `json:"rows"`
	Count    int     `json:"count"` // of all sheets
	Interval float64 `json:"interval"`
}

// Rendition is one track of an asset, made in one way and stored as one file: of kind video
// and audio a fragmented MP4, NAME.mp4, the initialisation segment, then one fragment for each
// segment; of kind text WebVTT, NAME.vtt, one segment without initialisation.
type Rendition struct {
	Name    string `json:"name"` // in addresses, and of the file: v720p, a0
	Kind    string `json:"kind"` // video, audio, text
	Codec   string `json:"codec"`
	BitRate int64  `json:"bit_rate"` // on average, of what was made

	Width     int            `json:"width,omitempty"`
	Height    int            `json:"height,omitempty"`
	FrameRate media.Fraction `json:"frame_rate,omitzero"`
	Colour    media.Colour   `json:"colour,omitzero"`

	SampleRate int    `json:"sample_rate,omitempty"`
	Channels   int    `json:"channels,omitempty"`
	Language   string `json:"language,omitempty"`
	Title      string `json:"title,omitempty"`
	Default    bool   `json:"default,omitempty"`

	TimeScale int       `json:"time_scale"`      // units of a second in Segment.Duration
	Shift     int64     `json:"shift,omitempty"` // units that the edit list takes off times
	Init      int64     `json:"init"`            // bytes
	Segments  []Segment `json:"segments,omitempty"`
}

// Segment is a fragment of a rendition.
type Segment struct {
	Offset   int64 `json:"offset"` // in the rendition's file
	Size     int64 `json:"size"`
	Duration int64 `json:"duration"`
	Key      int64 `json:"key,omitempty"` // bytes from Offset to the end of the first picture
}

// pipePages is how many pages sendfile(2) moves at a time (PIPE_DEF_BUFFERS of fs/splice.c).
const pipePages = 16

// Place is where a segment of size bytes is to begin in a rendition's file that ends at end:
// there, or at a page's begin where the kernel sends it in a turn less then, as it does 64 KiB,
// which lie in 17 pages else. What is between has room for the head of a box.
func Place(end, size int64) int64 {
	page := int64(os.Getpagesize())
	turns := func(at int64) int64 {
		pages := (at+size-1)/page - at/page + 1
		return (pages + pipePages - 1) / pipePages
	}
	at := (end + page - 1) / page * page
	if at-end < boxHead {
		at += page
	}
	if end%page == 0 || turns(at) == turns(end) {
		return end
	}
	return at
}

// boxHead is how long the head of a box is that has nothing else (ISO/IEC 14496-12, 4.2).
const boxHead = 8

// AppendFree appends a box of so many bytes, at least 8, that means nothing (ISO/IEC 14496-12,
// 8.1.2): what Place leaves out.
func AppendFree(dst []byte, size int64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(size)) //nolint:gosec // a page and a head at most
	dst = append(dst, "free"...)
	return append(dst, make([]byte, size-boxHead)...)
}

// Seconds is how long a segment takes.
func (r *Rendition) Seconds(s Segment) float64 { return float64(s.Duration) / float64(r.TimeScale) }

// Total is how long all segments take, in seconds.
func (r *Rendition) Total() float64 {
	var all int64
	for _, s := range r.Segments {
		all += s.Duration
	}
	return float64(all) / float64(r.TimeScale)
}

// Lasts returns the seconds for which the rendition is seen or heard: Total without the
// priming of sound, which the edit list takes away.
func (r *Rendition) Lasts() float64 {
	if r.Kind != "audio" {
		return r.Total()
	}
	return r.Total() - float64(r.Shift)/float64(r.TimeScale)
}

// Longest segment in seconds.
func (r *Rendition) Longest() float64 {
	longest := 0.0
	for _, s := range r.Segments {
		longest = max(longest, r.Seconds(s))
	}
	return longest
}

// Rates are the bits each second on average, and of the segment that has most.
func (r *Rendition) Rates() (average, peak int64) {
	var bytes int64
	var seconds float64
	for _, s := range r.Segments {
		t := r.Seconds(s)
		bytes += s.Size
		seconds += t
		if t > 0.5 { // a last one of a packet says nothing
			peak = max(peak, int64(float64(8*s.Size)/t))
		}
	}
	if seconds > 0 {
		average = int64(float64(8*bytes) / seconds)
	}
	return average, max(average, peak)
}

// Of are the renditions of a kind.
func (a *Asset) Of(kind string) []*Rendition {
	var of []*Rendition
	for _, r := range a.Renditions {
		if r.Kind == kind {
			of = append(of, r)
		}
	}
	return of
}

// InTS says whether segments can be had in MPEG-TS: H.264 and AAC, as HLS has them there.
func (a *Asset) InTS() bool {
	for _, r := range a.Of("video") {
		if !strings.HasPrefix(r.Codec, "avc") {
			return false
		}
	}
	return true
}

// Rendition is that of a name, nil if there is none.
func (a *Asset) Rendition(name string) *Rendition {
	for _, r := range a.Renditions {
		if r.Name == name {
			return r
		}
	}
	return nil
}
