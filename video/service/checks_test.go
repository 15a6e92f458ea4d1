package service

import (
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// TestAnswersBounded: the service checks a sandbox's answer against the request: invented numbers
// take neither files nor memory.
func TestAnswersBounded(t *testing.T) {
	few := func(n, each int) []int { return slices.Repeat([]int{each}, n) }
	sheets := func(count, each, sheets int) media.Sheets {
		return media.Sheets{Width: thumbsWidth, Height: 90, Count: count, Sheets: few(sheets, each), Interval: 1}
	}
	streams := func(n int) *media.Source {
		s := &media.Source{Format: "x", Duration: 2, Picture: -1}
		for i := range n {
			s.Streams = append(s.Streams, media.Stream{Index: i, Kind: "other"})
		}
		return s
	}
	w := newWorld(t, t.TempDir(), Config{})
	source := film(t, "in.mp4", "64x64", "2")
	for _, tt := range []struct {
		name, path string
		lie        any
		words      string // in the asset's error or warnings
		state      asset.State
	}{
		{"sheets of nothing", "/thumbs", sheets(2_000_000, 0, 20_000), "2000000 pictures", asset.Ready},
		{"more thumbnails than asked for", "/thumbs", sheets(media.MostThumbs+1, 9, 21), "2001 pictures", asset.Ready},
		{"too many sheets", "/thumbs", sheets(1, 9, 2), "1 pictures of 160 × 90 in 2 sheets", asset.Ready},
		{"too few sheets", "/thumbs", sheets(2, 9, 0), "in 0 sheets", asset.Ready},
		{"an empty sheet", "/thumbs", sheets(2, 0, 1), "a sheet of 0 bytes", asset.Ready},
		{"thumbnails for longer than allowed", "/thumbs", media.Sheets{Width: thumbsWidth, Height: 90, Count: 2, Sheets: few(1, 9), Interval: 1e300}, "2 pictures", asset.Ready},
		{"a thumbnail for ever", "/thumbs", media.Sheets{Width: thumbsWidth, Height: 90, Count: 1, Sheets: few(1, 9), Interval: 1e300}, "1 pictures", asset.Ready},
		{"thumbnails without bounds", "/thumbs", media.Sheets{Width: 1 << 40, Height: 90, Count: 2, Sheets: few(1, 9), Interval: 1}, "2 pictures", asset.Ready},
		{"sound of many segments", "/sound", media.Made{Init: 9, Segments: few(100_000, 9)}, "announces 100000 segments", asset.Ready},
		{"sound without a segment", "/sound", media.Made{Init: 9}, "announces 0 segments", asset.Ready},
		{"pictures without a segment", "/chunk", media.Chunked{Frames: 1, Rungs: []media.Made{{Init: 9}}}, "announces 0 segments", asset.Failed},
		{"no picture", "/chunk", media.Chunked{Rungs: make([]media.Made, 1)}, "nothing of it could be decoded", asset.Failed},
		{"empty segments of sound", "/sound", media.Made{Init: 9, Segments: few(2, 0)}, "a segment of 0 bytes", asset.Ready},
		{"sound of fewer bytes than none", "/sound", media.Made{Init: -9, Segments: few(1, 9)}, "-9 bytes", asset.Ready},
		{"a head without an end", "/sound", media.Made{Init: 9, Segments: few(1_000_000, 9)}, "its head has more than", asset.Ready},
		{"a chunk of many segments", "/chunk", media.Chunked{Frames: 1, Rungs: []media.Made{{Init: 9, Segments: few(1000, 9)}}}, "announces 1000 segments", asset.Failed},
		{"rungs of nothing", "/chunk", media.Chunked{Rungs: make([]media.Made, 1000)}, "0 frames in 1000 rungs", asset.Failed},
		{"many streams", "/probe", streams(media.MostStreams + 1), "129 streams", asset.Failed},
		{"a stream of another number", "/probe", &media.Source{Streams: []media.Stream{{Index: 1 << 40, Kind: "audio", Channels: 2}}}, "is said to be number", asset.Failed},
		{"pictures of no stream", "/probe", &media.Source{Picture: 7}, "stream 7, which has none", asset.Failed},
		{"a time before zero", "/probe", &media.Source{Picture: -1, Duration: -1e9}, "it is said to take", asset.Failed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.engine.lies = map[string]any{tt.path: tt.lie}
			id := w.add(t, source)
			a := w.done(t, id)
			if said := a.Error + strings.Join(a.Warnings, "; "); a.State != tt.state || !strings.Contains(said, tt.words) {
				t.Errorf("%s, %q", a.State, said)
			}
			if left := w.left(t, id); strings.Contains(left, "sheet0") && tt.path == "/thumbs" || strings.Contains(left, "a0") && tt.path == "/sound" {
				t.Errorf("it has %.200s", left)
			}
		})
	}
}

// TestLasts: an asset is as long as its longest track, without the samples that sound encoders add
// before and after it.
func TestLasts(t *testing.T) {
	track := func(kind string, scale, shift int, units ...int64) *asset.Rendition {
		r := &asset.Rendition{Kind: kind, TimeScale: scale, Shift: int64(shift)}
		for _, n := range units {
			r.Segments = append(r.Segments, asset.Segment{Duration: n})
		}
		return r
	}
	picture := track("video", 90000, 6000, 360000, 180000)
	for _, tt := range []struct {
		name   string
		tracks []*asset.Rendition
		want   float64
	}{
		{"pictures", []*asset.Rendition{picture}, 6},
		{"sound as long", []*asset.Rendition{picture, track("audio", 48000, 1024, 6*48000+2048)}, 6},
		{"sound that is shorter", []*asset.Rendition{picture, track("audio", 48000, 1024, 49024)}, 6},
		{"sound that goes on", []*asset.Rendition{picture, track("audio", 48000, 1024, 6*48000, 8*48000+1024), track("audio", 48000, 0, 48000)}, 14},
		{"sound", []*asset.Rendition{track("audio", 48000, 1024, 48000+1024)}, 1},
	} {
		if got := lasts(tt.tracks); got != tt.want {
			t.Errorf("%s: %v seconds, want %v", tt.name, got, tt.want)
		}
	}
}
