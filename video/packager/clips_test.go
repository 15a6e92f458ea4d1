package packager_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/packager"
	"github.com/fre-engine/fre/video/transcode"
)

// film is a rendition: an initialisation segment and its segments.
type film struct {
	name     string
	init     []byte
	segments [][]byte
}

// whole returns the whole rendition.
func (f *film) whole() []byte { return append(bytes.Clone(f.init), bytes.Join(f.segments, nil)...) }

// run runs a program and returns its output. Output to stderr fails the test.
func run(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || said.Len() > 0 {
		t.Fatalf("%s: %v\n%s", cmd, err, &said)
	}
	return out
}

// write makes a file in a directory.
func write(t testing.TB, dir, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// source makes a file with some seconds of pictures and sound.
func source(t testing.TB, rate string, seconds int, args string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source.mkv")
	d := strconv.Itoa(seconds)
	run(t, "ffmpeg", append(strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=320x180:rate="+rate+":duration="+d+
		" -f lavfi -i sine=frequency=440:beep_factor=4:sample_rate=48000:duration="+d+" "+args), path)...)
	return path
}

// add adds the bytes of a rendition from the transcoder.
func (f *film) add(made *media.Made, b []byte) {
	if f.init == nil {
		f.init = b[:made.Init]
	}
	at := made.Init
	for _, n := range made.Segments {
		f.segments = append(f.segments, b[at:at+n])
		at += n
	}
}

// picture and sound return renditions as the service makes them.
func picture(t testing.TB, rate media.Fraction, seconds int) *film {
	t.Helper()
	path := source(t, fmt.Sprintf("%d/%d", rate.Num, rate.Den), seconds, "-c:v libx264 -preset ultrafast -c:a pcm_s16le")
	f := &film{name: "picture"}
	frames := seconds * rate.Num / rate.Den
	segment := 2 * rate.Num / rate.Den
	for from := 0; from < frames; from += 2 * segment {
		head, bodies, err := transcode.Chunk(path, media.Chunk{
			Grid: media.Grid{Rate: rate, Segment: segment}, From: from, To: from + 2*segment,
			Rungs: []media.Rung{{Width: 320, Height: 180, BitRate: 1_000_000}}, Threads: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if head.Frames > 0 {
			f.add(&head.Rungs[0], bodies[0])
		}
	}
	return f
}

func sound(t testing.TB, seconds int) *film {
	t.Helper()
	path := source(t, "10", seconds, "-c:v libx264 -preset ultrafast -c:a pcm_s16le")
	made, parts, err := transcode.Sound(path, media.Sound{Stream: 1, Segment: 2})
	if err != nil {
		t.Fatal(err)
	}
	f := &film{name: "sound"}
	f.add(made, bytes.Join(parts, nil))
	return f
}

// foreign returns a rendition that ffmpeg has packaged as DASH: styp and sidx before each segment,
// and times moved by an edit list.
func foreign(t testing.TB, name, codec string) *film {
	t.Helper()
	dir := t.TempDir()
	input := "-f lavfi -i testsrc2=size=320x180:rate=30000/1001:duration=5"
	if codec == "aac" {
		input = "-f lavfi -i sine=sample_rate=44100:duration=5 -ac 1"
	}
	run(t, "ffmpeg", append(strings.Fields("-v error -nostdin "+input+" -c "+codec+
		" -g 60 -f dash -seg_duration 2 -init_seg_name init.mp4 -media_seg_name $Number%03d$.m4s"), filepath.Join(dir, "x.mpd"))...)
	return opened(t, name, filepath.Join(dir, "init.mp4"), filepath.Join(dir, "0*.m4s"))
}

func opened(t testing.TB, name, init, pattern string) *film {
	t.Helper()
	f := &film{name: name}
	var err error
	if f.init, err = os.ReadFile(init); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) < 2 {
		t.Fatal(err, paths)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f.segments = append(f.segments, b)
	}
	return f
}

// films returns renditions of all kinds, made once per test run.
func films(t testing.TB) []*film {
	t.Helper()
	made.Do(func() {
		made.all = []*film{
			picture(t, media.Fraction{Num: 25, Den: 1}, 7), sound(t, 7),
			picture(t, media.Fraction{Num: 24000, Den: 1001}, 5),
			foreign(t, "x264", "libx264"), foreign(t, "x265", "libx265 -x265-params log-level=none:open-gop=0 -tag:v hvc1"), foreign(t, "mono", "aac"),
			foreign(t, "slices", "libx264 -aud 1 -x264-params slices=4:weightp=2:weightb=1:ref=5:bframes=5:b-pyramid=2"),
			foreign(t, "cavlc", "libx264 -profile:v baseline -b:v 4M"), foreign(t, "interlaced", "libx264 -flags +ildct+ilme -x264-params tff=1:ref=4:nal-hrd=vbr -b:v 1M -maxrate 2M -bufsize 2M"),
		}
		made.all[2].name = "film"
	})
	if len(made.all) == 0 {
		t.Fatal("there are no films")
	}
	return made.all
}

var made struct {
	sync.Once
	all []*film
}

// named returns the film with a name.
func named(t testing.TB, name string) *film {
	t.Helper()
	for _, f := range films(t) {
		if f.name == name {
			return f
		}
	}
	t.Fatalf("no film %s", name)
	return nil
}

// times returns each sample's presentation time in seconds as read by mp4ff, an independent parser.
// FFmpeg's parser shifts all times by the lowest composition offset.
func (f *film) times(t testing.TB) (all []float64) {
	t.Helper()
	file, err := mp4.DecodeFile(bytes.NewReader(f.whole()))
	if err != nil {
		t.Fatal(err)
	}
	track := file.Init.Moov.Trak
	shift := int64(0)
	if track.Edts != nil {
		for _, e := range track.Edts.Elst[0].Entries {
			shift = e.MediaTime
		}
	}
	for _, fragment := range fragments(file) {
		samples, err := fragment.GetFullSamples(file.Init.Moov.Mvex.Trex)
		if err != nil {
			t.Fatal(err)
		}
		for _, sample := range samples {
			time := int64(sample.DecodeTime) + int64(sample.CompositionTimeOffset) - shift
			all = append(all, float64(time)/float64(track.Mdia.Mdhd.Timescale))
		}
	}
	return all
}

// track reads a film's track.
func (f *film) track(t testing.TB) *packager.Track {
	t.Helper()
	track, err := packager.ReadTrack(f.init)
	if err != nil {
		t.Fatalf("%s: %v", f.name, err)
	}
	return track
}

// short returns a segment with only its first sample, for fuzzing.
func short(t testing.TB, f *film) []byte {
	t.Helper()
	file, err := mp4.DecodeFile(bytes.NewReader(f.whole()))
	if err != nil {
		t.Fatal(err)
	}
	all := fragments(file)
	last := all[len(all)-1]
	samples, err := last.GetFullSamples(file.Init.Moov.Mvex.Trex)
	if err != nil {
		t.Fatal(err)
	}
	fragment, err := mp4.CreateFragment(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range samples[max(0, len(samples)-3):] {
		fragment.AddFullSample(s)
	}
	var b bytes.Buffer
	if err := fragment.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
