package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/video/asset"
)

// Aims name existing targets and measures, and each row has a name of its own, because join goes by
// names.
func TestRows(t *testing.T) {
	names := map[string]bool{}
	for _, w := range rows(1) {
		if names[w.name] {
			t.Errorf("two rows %q", w.name)
		}
		names[w.name] = true
		labels := map[string]bool{"": true}
		for _, target := range w.targets {
			labels[target.label] = true
		}
		for _, a := range w.aims {
			if !labels[a.Of] || !labels[a.To] || testbed.Measures[a.What] == nil || (a.Least > 0) == (a.Most > 0) {
				t.Errorf("%s: aim %+v", w.name, a)
			}
		}
	}
	for _, what := range columns {
		if testbed.Measures[what] == nil {
			t.Errorf("column %q", what)
		}
	}
}

func box(kind string, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint32(b, uint32(size))
	copy(b[4:], kind)
	return b
}

func TestPlaces(t *testing.T) {
	file := func(boxes ...[]byte) (all []byte) {
		for _, b := range boxes {
			all = append(all, b...)
		}
		return all
	}
	r := &asset.Rendition{}
	if err := places(r, file(box("ftyp", 20), box("moov", 100), box("moof", 50), box("mdat", 1000), box("moof", 60), box("mdat", 2000))); err != nil {
		t.Fatal(err)
	}
	if r.Init != 120 || len(r.Segments) != 2 || r.Segments[0].Offset != 120 || r.Segments[0].Size != 1050 || r.Segments[1].Offset != 1170 || r.Segments[1].Size != 2060 {
		t.Errorf("%+v", r)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "no segment": box("moov", 8), "cut": box("moof", 40)[:30], "mdat first": file(box("moov", 8), box("mdat", 8)),
		"another box": file(box("moof", 8), box("free", 8)), "a head of three bytes": file(box("moov", 8), []byte{0, 0, 0}), "no size": make([]byte, 16),
	} {
		if err := places(&asset.Rendition{}, bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Of a row in two runs the later result counts, and keeps its aims.
func TestJoin(t *testing.T) {
	dir := t.TempDir()
	write := func(file string, rate float64, names ...string) string {
		r := &result{Rounds: 1}
		for _, name := range names {
			r.Rows = append(r.Rows, &testbed.Row{Name: name, Label: name, Connections: 16, Cells: []*testbed.Cell{
				{Label: freVideo, Turns: []testbed.Turn{{PerSecond: rate, P99: time.Millisecond, Mallocs: -1}}},
				{Label: nginxFiles, Turns: []testbed.Turn{{PerSecond: 100, Mallocs: -1}}},
			}})
		}
		path := filepath.Join(dir, file)
		if err := report.JSON(path, r); err != nil {
			t.Fatal(err)
		}
		return path
	}
	r, err := join([]string{write("a", 50, "segment 64 KiB", "segment 2 MiB"), write("b", 150, "segment 64 KiB")})
	if err != nil {
		t.Fatal(err)
	}
	text := r.markdown()
	for _, want := range []string{"| fre-video | 150 | 1000 |", "| requests/s of fre-video ÷ nginx | 1.50 | ≥ 1.2 × | met |", "| requests/s of fre-video ÷ nginx | 0.50 | ≥ 1.05 × | missed |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if _, err := join([]string{filepath.Join(dir, "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestTranscoding(t *testing.T) {
	var b strings.Builder
	tr := &transcoding{
		Seconds: 30, Sandbox: []time.Duration{2e9, 4e9, 3e9}, FFmpeg: []time.Duration{3e9, 3e9, 1e9},
		SandboxCPU: []time.Duration{10e9, 4e9, 2e9}, FFmpegCPU: []time.Duration{3e9, 1e9, 5e9},
		Rungs: []rungQuality{{Name: "720p", SandboxPSNR: 40.05, FFmpegPSNR: 40}, {Name: "480p", SandboxPSNR: 38, FFmpegPSNR: 38.25}},
	}
	tr.markdown(func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
	for _, want := range []string{"| speed in sandboxes ÷ ffmpeg on the host | 1.00 | ≥ 0.95 × | met |", "| CPU time of ffmpeg on the host ÷ that of the engine with its sandboxes | 0.75 | ≥ 0.95 × | missed |", "| PSNR apart, at most | 0.25 dB | ≤ 0.1 dB | missed |"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
	if got, err := parsePSNR("x\n[Parsed_psnr_1 @ 0x5] PSNR y:36.1 u:40.2 v:41.0 average:37.256421 min:35.1 max:40.0\n"); err != nil || got != 37.256421 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parsePSNR(""); err == nil {
		t.Error("no error without a PSNR")
	}
}

func TestAudience(t *testing.T) {
	var b strings.Builder
	a := &audience{Viewers: 10, Turns: map[string][]attention{
		videoServer: {{Played: 100 * time.Second, CPU: time.Second, Rebufferings: 1}, {Played: 100 * time.Second, CPU: 2 * time.Second}, {Played: 100 * time.Second, CPU: time.Second}},
		nginxOn:     {{Played: 200 * time.Second, CPU: time.Second}},
	}}
	a.markdown(func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
	for _, want := range []string{"| fre-video | 100 | 1 | 0 |", "| nginx | 200 | 0 | 0 |", "| 0.50 | ≥ 0.95 × | missed |"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
}
