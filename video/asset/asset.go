// Package asset describes the videos of the video service: the source, the renditions, and the
// position of each segment's bytes. A [Library] stores the descriptions.
package asset

import (
	"encoding/binary"
	"os"
	"strings"
	"time"

	"github.com/fre-engine/fre/video/media"
)

// State is the progress of an asset.
type State string

// The states of an asset, in order. Failed may follow any of them.
const (
	Uploading State = "uploading"
	Working   State = "working" // being probed and transcoded
	Ready     State = "ready"
	Failed    State = "failed"
)

// Asset is a video.
type Asset struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"` // chosen by its owner: a file name
	Created  time.Time `json:"created"`
	State    State     `json:"state"`
	Size     int64     `json:"size"`               // of the source in bytes; of an upload in progress, the announced size
	Codec    string    `json:"codec,omitempty"`    // of media.Codecs, chosen by the owner; "": the service's default
	Error    string    `json:"error,omitempty"`    // why the asset failed, in the decoder's words
	Warnings []string  `json:"warnings,omitempty"` // parts of the source missing in the renditions
	Jobs     *Jobs     `json:"jobs,omitempty"`     // while in state Working

	Protection Protection `json:"protection,omitempty"`
	Secret     *Secret    `json:"secret,omitempty"` // of a protected asset; never in a View

	Source     *media.Source `json:"source,omitempty"`
	Plan       *Plan         `json:"plan,omitempty"`     // after the probe
	Made       string        `json:"made,omitempty"`     // id of this set of renditions; renditions made again get a new id
	Duration   float64       `json:"duration,omitempty"` // seconds of the renditions
	Renditions []*Rendition  `json:"renditions,omitempty"`
	Thumbnails *Thumbnails   `json:"thumbnails,omitempty"`
}

// View is an asset in the service's API: without its secret and the positions of segments, but
// with the addresses of its playlists once the asset is ready.
type View struct {
	*Asset
	HLS           string `json:"hls,omitempty"`
	HLSTS         string `json:"hls_ts,omitempty"`  // with segments in MPEG-TS
	DASH          string `json:"dash,omitempty"`    // empty if Protection is AES128
	License       string `json:"license,omitempty"` // of CBCS, for players with Clear Key
	ThumbnailsVTT string `json:"thumbnails_vtt,omitempty"`
}

// Plan is the list of renditions to make from a source. A process that continues the work of
// another keeps its plan.
type Plan struct {
	Video int          `json:"video"` // index of the stream; -1: none
	Grid  media.Grid   `json:"grid,omitzero"`
	Rungs []media.Rung `json:"rungs,omitempty"`
	Chunk int          `json:"chunk,omitempty"` // frames of a chunk, whole segments

	Preset string  `json:"preset,omitempty"` // of the encoder
	Most   float64 `json:"most"`             // seconds; the rest of the source is left out

	Audio   []int   `json:"audio,omitempty"` // indices of streams
	Text    []int   `json:"text,omitempty"`
	Segment float64 `json:"segment"` // seconds
	Thumbs  float64 `json:"thumbs"`  // interval of thumbnails in seconds; 0: none
}

// Frames returns the number of frames in Most seconds, at least 1.
func (p *Plan) Frames() int {
	return max(1, int(p.Most*float64(p.Grid.Rate.Num)/float64(p.Grid.Rate.Den)))
}

// Seconds returns the presentation time of a frame of the grid.
func (p *Plan) Seconds(frame int) float64 {
	return float64(frame) * float64(p.Grid.Rate.Den) / float64(p.Grid.Rate.Num)
}

// PlayerFields lists the header fields that a player in a browser may send, for assets and live
// streams: conditions, ranges and the player's own data (CMCD, CTA-5004).
const PlayerFields = "Content-Type, Range, If-None-Match, If-Range, If-Modified-Since, CMCD-Request, CMCD-Object, CMCD-Status, CMCD-Session"

// Jobs is the progress of the work on an asset.
type Jobs struct {
	Done  int    `json:"done"`
	All   int    `json:"all"`             // 0: unknown
	Waits string `json:"waits,omitempty"` // why the work waits, and how to end the wait
}

// Thumbnails describes small pictures of an asset, one per Interval seconds, on sheets of Columns
// × Rows, row by row. Sheet n, from 0, is the file sheetN.jpg.
type Thumbnails struct {
	Width    int     `json:"width"` // of each picture, in pixels
	Height   int     `json:"height"`
	Columns  int     `json:"columns"`
	Rows     int     `json:"rows"`
	Count    int     `json:"count"` // pictures on all sheets
	Interval float64 `json:"interval"`
}

// Rendition is a track of an asset in one encoding, stored in one file. Kinds video and audio are
// fragmented MP4, NAME.mp4: the initialisation segment, then a fragment for each segment. Kind
// text is WebVTT, NAME.vtt, as a single segment without initialisation.
type Rendition struct {
	Name    string `json:"name"` // in addresses and file names: v720p, a0
	Kind    string `json:"kind"` // video, audio, text
	Codec   string `json:"codec"`
	BitRate int64  `json:"bit_rate"` // average of the stored segments

	Width     int            `json:"width,omitempty"`
	Height    int            `json:"height,omitempty"`
	FrameRate media.Fraction `json:"frame_rate,omitzero"`
	Colour    media.Colour   `json:"colour,omitzero"`

	SampleRate int    `json:"sample_rate,omitempty"`
	Channels   int    `json:"channels,omitempty"`
	Language   string `json:"language,omitempty"`
	Title      string `json:"title,omitempty"`
	Default    bool   `json:"default,omitempty"`

	TimeScale int       `json:"time_scale"`      // units per second in Segment.Duration
	Shift     int64     `json:"shift,omitempty"` // units subtracted from all times by the edit list
	Init      int64     `json:"init"`            // bytes of the initialisation segment
	Segments  []Segment `json:"segments,omitempty"`
}

// Segment is a fragment of a rendition.
type Segment struct {
	Offset   int64 `json:"offset"` // bytes from the start of the rendition's file
	Size     int64 `json:"size"`
	Duration int64 `json:"duration"`
	Key      int64 `json:"key,omitempty"` // bytes from Offset to the end of the first picture
}

// pipePages is the number of pages sendfile(2) moves at a time (PIPE_DEF_BUFFERS of fs/splice.c).
const pipePages = 16

// Place returns the offset for a segment of size bytes in a rendition's file of end bytes. The
// kernel sends pipePages pages at a time, and 64 KiB may lie in 17 pages. Place therefore returns
// the start of a page if this saves a turn of sendfile, else end. A gap has room for the head of
// a box.
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

// boxHead is the size of a box's head, in bytes (ISO/IEC 14496-12, 4.2).
const boxHead = 8

// AppendFree appends a free box of size bytes, at least 8, to fill a gap left by Place (ISO/IEC
// 14496-12, 8.1.2).
func AppendFree(dst []byte, size int64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(size)) //nolint:gosec // a page and a head at most
	dst = append(dst, "free"...)
	return append(dst, make([]byte, size-boxHead)...)
}

// Seconds returns the duration of a segment.
func (r *Rendition) Seconds(s Segment) float64 { return float64(s.Duration) / float64(r.TimeScale) }

// Total returns the duration of all segments, in seconds.
func (r *Rendition) Total() float64 {
	var all int64
	for _, s := range r.Segments {
		all += s.Duration
	}
	return float64(all) / float64(r.TimeScale)
}

// Lasts returns the rendition's audible or visible duration in seconds: Total without the priming
// of sound, which the edit list removes.
func (r *Rendition) Lasts() float64 {
	if r.Kind != "audio" {
		return r.Total()
	}
	return r.Total() - float64(r.Shift)/float64(r.TimeScale)
}

// Longest returns the duration of the longest segment, in seconds.
func (r *Rendition) Longest() float64 {
	longest := 0.0
	for _, s := range r.Segments {
		longest = max(longest, r.Seconds(s))
	}
	return longest
}

// Rates returns bits per second: the average, and the peak over the segments.
func (r *Rendition) Rates() (average, peak int64) {
	var bytes int64
	var seconds float64
	for _, s := range r.Segments {
		t := r.Seconds(s)
		bytes += s.Size
		seconds += t
		if t > 0.5 { // a last segment of one packet has no meaningful rate
			peak = max(peak, int64(float64(8*s.Size)/t))
		}
	}
	if seconds > 0 {
		average = int64(float64(8*bytes) / seconds)
	}
	return average, max(average, peak)
}

// Of returns the renditions of a kind.
func (a *Asset) Of(kind string) []*Rendition {
	var of []*Rendition
	for _, r := range a.Renditions {
		if r.Kind == kind {
			of = append(of, r)
		}
	}
	return of
}

// InTS reports whether the asset can be served in MPEG-TS: all pictures are H.264, as HLS
// demands.
func (a *Asset) InTS() bool {
	for _, r := range a.Of("video") {
		if !strings.HasPrefix(r.Codec, "avc") {
			return false
		}
	}
	return true
}

// Rendition returns the rendition of a name, or nil.
func (a *Asset) Rendition(name string) *Rendition {
	for _, r := range a.Renditions {
		if r.Name == name {
			return r
		}
	}
	return nil
}
