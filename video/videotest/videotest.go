// Package videotest makes assets for tests with the transcoder's own code.
package videotest

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// Asset returns an asset of eight seconds with two rungs and two audio tracks, and the renditions'
// files by name. The asset is in no library.
func Asset(tb testing.TB) (*asset.Asset, map[string][]byte) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "in.mp4")
	cmd := exec.CommandContext(tb.Context(), "ffmpeg", strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=25:duration=8 -f lavfi -i sine=duration=8 -f lavfi -i sine=f=880:duration=8 -map 0 -map 1 -map 2 -c:v libx264 -c:a aac -metadata:s:a:1 language=deu "+path)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	files := map[string][]byte{}
	a := &asset.Asset{Duration: 8}
	grid := media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 50}
	segments := func(made *media.Made, body []byte) []asset.Segment {
		var all []asset.Segment
		at := int64(made.Init)
		for _, size := range made.Segments {
			s := asset.Segment{Offset: at, Size: int64(size)}
			box, err := mp4.DecodeBox(0, bytes.NewReader(body[at:]))
			if err != nil {
				tb.Fatal(err)
			}
			run := box.(*mp4.MoofBox).Traf.Trun
			run.AddSampleDefaultValues(box.(*mp4.MoofBox).Traf.Tfhd, nil)
			for _, sample := range run.Samples {
				s.Duration += int64(sample.Dur)
			}
			s.Key = int64(run.DataOffset) + int64(run.Samples[0].Size)
			all = append(all, s)
			at += int64(size)
		}
		return all
	}
	rungs := []media.Rung{{Name: "360p", Width: 640, Height: 360, BitRate: 800_000}, {Name: "180p", Width: 320, Height: 180, BitRate: 300_000}}
	head, bodies, err := transcode.Chunk(path, media.Chunk{Grid: grid, To: -1, Rungs: rungs, Preset: "ultrafast"})
	if err != nil {
		tb.Fatal(err)
	}
	for i, r := range rungs {
		name := "v" + r.Name
		files[name] = bodies[i]
		a.Renditions = append(a.Renditions, &asset.Rendition{
			Name: name, Kind: "video", Codec: "avc1.64001e", Width: r.Width, Height: r.Height, FrameRate: grid.Rate,
			TimeScale: 90000, Init: int64(head.Rungs[i].Init), Segments: segments(&head.Rungs[i], bodies[i]),
		})
	}
	for i, language := range []string{"und", "deu"} {
		made, parts, err := transcode.Sound(path, media.Sound{Stream: i + 1, Segment: 2})
		if err != nil {
			tb.Fatal(err)
		}
		name := fmt.Sprint("a", i)
		body := bytes.Join(parts, nil)
		files[name] = body
		a.Renditions = append(a.Renditions, &asset.Rendition{
			Name: name, Kind: "audio", Codec: "mp4a.40.2", SampleRate: 48000, Channels: 2, Language: language,
			TimeScale: 48000, Init: int64(made.Init), Segments: segments(made, body),
		})
	}
	return a, files
}
