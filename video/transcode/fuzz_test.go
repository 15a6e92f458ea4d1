package transcode_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sources are small clips in common containers and codecs, always the same bytes.
func sources(t testing.TB) []string {
	t.Helper()
	titles := write(t, "titles.srt", "1\n00:00:00,100 --> 00:00:00,900\n<i>one</i> & {\\an8}two\n\n2\n00:00:01,000 --> 00:00:01,500\nthree\n")
	const (
		video = "-f lavfi -i testsrc2=size=64x48:rate=25:duration=1.6 "
		sound = "-f lavfi -i sine=duration=1.6:sample_rate=22050 "
		exact = " -threads 1 -fflags +bitexact -flags:v +bitexact -flags:a +bitexact"
		x264  = " -c:v libx264 -preset ultrafast -bf 2 -g 12 "
	)
	var paths []string
	for name, args := range map[string]string{
		"a.mp4":  video + sound + "-i " + titles + x264 + "-c:a aac -c:s mov_text",
		"b.mp4":  video + sound + x264 + "-c:a aac -movflags frag_keyframe+empty_moov",
		"c.mov":  video + sound + "-c:v mjpeg -c:a pcm_s16be -metadata:s:v rotate=90",
		"d.mkv":  video + sound + "-i " + titles + x264 + "-c:a libopus -c:s subrip",
		"e.mkv":  video + "-i " + titles + " -c:v libx265 -preset ultrafast -x265-params log-level=none:pools=none:frame-threads=1 -c:s ass",
		"f.webm": video + sound + "-i " + titles + " -c:v libvpx -deadline realtime -cpu-used 8 -c:a libvorbis -c:s webvtt",
		"g.webm": video + "-c:v libvpx-vp9 -deadline realtime -cpu-used 8",
		"h.ts":   video + sound + x264 + "-c:a aac",
		"i.ts":   video + sound + "-c:v mpeg2video -bf 2 -c:a mp2",
		"j.flv":  video + sound + x264 + "-c:a aac",
		"k.flv":  video + sound + "-c:v flv -c:a libmp3lame",
		"l.ogg":  video + sound + "-c:v libtheora -c:a libvorbis",
		"m.avi":  video + sound + "-c:v mpeg4 -bf 2 -c:a libmp3lame",
		"n.avi":  video + sound + "-c:v mjpeg -c:a pcm_u8",
		"o.mpg":  video + sound + "-c:v mpeg1video -c:a mp2",
		"p.mkv":  video + sound + "-c:v ffv1 -c:a flac",
		"q.mxf":  video + "-c:v mpeg2video",
		"r.asf":  video + sound + "-c:v wmv2 -c:a wmav2",
		"s.gif":  video,
		"t.m4a":  sound + "-c:a alac",
		"u.mp3":  sound + "-c:a libmp3lame -id3v2_version 3 -metadata title=x",
		"v.h264": video + x264,
		"w.nut":  video + sound + "-c:v mpeg4 -c:a ac3",
		"x.mp4":  "-f lavfi -i testsrc2=size=64x64:rate=25:duration=1 -c:v libsvtav1 -preset 12",
	} {
		paths = append(paths, clip(t, name, strings.Fields(args+exact)...))
	}
	return paths
}

// mutated returns a source with the seed's faults: changed bytes and numbers, and pieces removed,
// repeated or replaced by another file's.
func mutated(all map[string][]byte, names []string, seed uint64) (name string, b []byte) {
	r := rand.New(rand.NewPCG(seed, 0))
	name = names[r.IntN(len(names))]
	b = bytes.Clone(all[name])
	place := func(n int) int { // headers more often than contents
		switch n = max(len(b)-n, 1); r.IntN(4) {
		case 0:
			return r.IntN(min(n, 512))
		case 1:
			return n - 1 - r.IntN(min(n, 2048))
		}
		return r.IntN(n)
	}
	for range 1 + r.IntN(4) {
		switch n := 1 << r.IntN(12); r.IntN(8) {
		case 0: // bits
			for range 1 + r.IntN(32) {
				b[place(1)] ^= 1 << r.IntN(8)
			}
		case 1: // neighbouring bytes
			at := place(64)
			for range 1 + r.IntN(16) {
				b[min(at+r.IntN(64), len(b)-1)] = byte(r.Uint32())
			}
		case 2: // a number
			number := [][]byte{{0xff, 0xff, 0xff, 0xff}, {0x7f, 0xff, 0xff, 0xff}, {0x80, 0, 0, 0}, {0, 0, 0, 0}, {0xff, 0xff}, {0, 0, 0, 1}, {0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}[r.IntN(7)]
			copy(b[place(8):], number)
		case 3: // a missing piece
			at := place(n)
			b = append(b[:at], b[min(at+n, len(b)):]...)
		case 4: // a repeated piece
			at := place(n)
			b = append(b[:at:at], append(bytes.Clone(b[at:min(at+n, len(b))]), b[at:]...)...)
		case 5: // a piece of zeros
			at := place(n)
			clear(b[at:min(at+n, len(b))])
		case 6: // a piece of another file
			other := all[names[r.IntN(len(names))]]
			from := r.IntN(len(other))
			copy(b[place(n):], other[from:min(from+n, len(other))])
		case 7: // a missing end
			b = b[:place(1)+1]
		}
		if len(b) == 0 {
			b = []byte{0}
		}
	}
	return name, b
}

// mutations are files made from seeds, and the child that works on the files.
type mutations struct {
	dir    string
	all    map[string][]byte
	names  []string
	worker *worker // nil after a crash

	files, made, crashes, hangs int
}

func newMutations(t testing.TB) *mutations {
	t.Helper()
	m := &mutations{dir: t.TempDir(), all: map[string][]byte{}}
	for _, path := range sources(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m.all[filepath.Base(path)] = b
	}
	m.names = slices.Sorted(maps.Keys(m.all))
	return m
}

func (m *mutations) close(t testing.TB) {
	t.Helper()
	if m.worker != nil {
		if err := m.worker.close(); err != nil {
			t.Error(err)
		}
	}
}

// run makes the file of a seed, and the child works on the file.
func (m *mutations) run(t testing.TB, seed uint64) {
	t.Helper()
	name, b := mutated(m.all, m.names, seed)
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if m.worker == nil {
		m.worker = newWorker(t)
	}
	r, err := m.worker.work(path, 30*time.Second)
	m.files++
	if r != nil && r.Errors["probe"] == "" {
		m.made++
	}
	if err != nil {
		m.worker = nil
	}
	switch {
	case errors.Is(err, errHung):
		m.hangs++
		t.Logf("finding: seed %d, %s: %v", seed, name, err)
	case errors.Is(err, errCrashed):
		m.crashes++
		t.Logf("finding: seed %d, %s: %.3000v", seed, name, err)
		if !crashes(t, path) {
			t.Errorf("seed %d, %s: the program does not crash: how are the libraries used?", seed, name)
		}
	case err != nil:
		t.Errorf("seed %d, %s: %v", seed, name, err)
	case r.Peak > 2*mostMemory:
		t.Errorf("seed %d, %s: it took %d MiB", seed, name, r.Peak>>20)
	}
}

// crashes reports whether a signal ends the ffmpeg program when the program decodes a file.
func crashes(t testing.TB, path string) bool {
	t.Helper()
	for _, args := range [][]string{{}, {"-skip_frame", "nokey"}, {"-skip_frame", "noref"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := exec.CommandContext(ctx, "ffmpeg", append(append([]string{"-v", "quiet", "-nostdin", "-threads", "1"}, args...), "-i", path, "-f", "null", "-")...).Run()
		cancel()
		if e := (*exec.ExitError)(nil); errors.As(err, &e) && e.ExitCode() == -1 && ctx.Err() == nil {
			return true
		}
	}
	return false
}

// Variables for longer runs of TestMutations: the duration, for example 10m, with random seeds; and
// the first seed, to repeat a run.
const (
	timeVariable = "TRANSCODE_FUZZ_TIME"
	seedVariable = "TRANSCODE_FUZZ_SEED"
)

// TestMutations: damaged files are transcoded or refused, and leave no files or memory behind. The
// seeds are the same in each run: random finds belong to FuzzSource and the longer runs, and must
// not fail a run of all tests.
//
// FFmpeg is written in C: some files crash its process. In the service the process is a sandbox,
// and a crash costs a chunk; here the process is a child, and a crash costs a file. The test logs
// such a crash with its seed as a finding about Debian's FFmpeg, without failing, if the ffmpeg
// program crashes too. FRE's own faults fail the test: a panic, a contradictory answer, an error
// without text, memory above a sandbox's limit, unreleased memory after an error ([ffmpeg.Live]
// counts in the child), and a crash without a crash of the program. The child overwrites released
// memory ([ffmpeg.Check]), so a late read returns nonsense.
func TestMutations(t *testing.T) {
	const files = 12
	var limit time.Duration
	seed := uint64(0)
	var err error
	if text := os.Getenv(timeVariable); text != "" {
		limit, err = time.ParseDuration(text)
		seed = rand.Uint64() >> 16
	}
	if text := os.Getenv(seedVariable); text != "" && err == nil {
		seed, err = strconv.ParseUint(text, 10, 64)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	begun := time.Now()
	m := newMutations(t)
	defer m.close(t)
	for time.Since(begun) < limit || m.files < files {
		m.run(t, seed)
		seed++
	}
	t.Logf("%d files, %d of them opened, %d crashes and %d hangs of the libraries", m.files, m.made, m.crashes, m.hangs)
	if m.made == 0 {
		t.Error("none was media any more")
	}
}

// FuzzSource is [TestMutations] with seeds from Go's fuzzer, which cannot see into C: FuzzSource
// runs for the given time on all processors.
func FuzzSource(f *testing.F) {
	m := newMutations(f)
	f.Cleanup(func() { m.close(f) })
	for seed := range uint64(3) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { m.run(t, seed) })
}
