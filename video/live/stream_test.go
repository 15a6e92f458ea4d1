package live

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Eyevinn/hls-m3u8/m3u8"
	"github.com/Eyevinn/mp4ff/mp4"
	"github.com/bluenviron/gortmplib/pkg/bytecounter"
	"github.com/bluenviron/gortmplib/pkg/message"

	"github.com/fre-engine/fre/video/asset"
)

// clock is a clock that the test sets. The wall clock follows it, except for deliberate jumps.
type clock struct {
	mu   sync.Mutex
	at   time.Time
	step time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) wall() time.Time { return c.now().Add(c.step) }

func (c *clock) tick() time.Duration { return c.now().Sub(time.Unix(1, 0)) }

func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

// newStream opens a stream with pictures and sound in a directory, with its clock.
func newStream(t testing.TB, dir string, window time.Duration) (*Stream, *clock) {
	t.Helper()
	c := &clock{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if err := os.WriteFile(filepath.Join(dir, "log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return openStream(t, dir, window, c), c
}

// anyRoom is a disk that is never full.
func anyRoom(int64) error { return nil }

func openStream(t testing.TB, dir string, window time.Duration, c *clock) *Stream {
	t.Helper()
	s, err := resume(&disk{dir: dir, room: anyRoom}, "x", "id", time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), window, c.wall(), c.tick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.End()
		if err := s.disk.close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return s
}

var testTracks = []Track{
	{LiveTrack: asset.LiveTrack{Name: "v0", Kind: "video", Codec: "avc1.42c00c", Width: 320, Height: 180}, TimeScale: 90000, Init: []byte("picture")},
	{LiveTrack: asset.LiveTrack{Name: "a0", Kind: "audio", Codec: "mp4a.40.2", SampleRate: 48000, Channels: 2}, TimeScale: 48000, Init: []byte("sound")},
}

// feedSeconds writes seconds of sound and of 25 pictures per second, with a key frame each second.
func feedSeconds(t testing.TB, s *Stream, c *clock, from, seconds int) {
	t.Helper()
	feedTracks(t, s, c, from, seconds, 2)
}

// feedTracks is feedSeconds for the first tracks; a stream of one track has no sound.
func feedTracks(t testing.TB, s *Stream, c *clock, from, seconds, tracks int) {
	t.Helper()
	began := c.now()
	sound := int64(from) * 48000
	for n := from * 25; n < (from+seconds)*25; n++ {
		c.set(began.Add(time.Duration(n-from*25) * time.Second / 25))
		if err := s.Write(0, Sample{Decode: int64(n) * 3600, Key: n%25 == 0, Data: []byte{0, 0, 0, 1, byte(n)}}); err != nil {
			t.Fatal(err)
		}
		for ; tracks > 1 && sound < int64(n+1)*48000/25; sound += 1024 {
			if err := s.Write(1, Sample{Decode: sound, Key: true, Data: []byte{1, 2, 3}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.set(began.Add(time.Duration(seconds) * time.Second))
}

func get(t testing.TB, s *Stream, path, query string) answer {
	t.Helper()
	a, err := s.find(t.Context, path, query)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// mediaBytes returns the bytes at an address of a playlist.
func mediaBytes(t testing.TB, s *Stream, path string) []byte {
	t.Helper()
	a := get(t, s, strings.TrimPrefix(path, "../"), "")
	if a.problem != "" {
		t.Fatalf("%s: %s", path, a.problem)
	}
	if a.file == nil {
		return a.body
	}
	defer a.file.Close()
	b, err := io.ReadAll(io.NewSectionReader(a.file, a.offset, a.size))
	if err != nil || int64(len(b)) != a.size {
		t.Fatalf("%s: %d bytes, want %d, %v", path, len(b), a.size, err)
	}
	return b
}

// rules checks a playlist by the rules of RFC 8216bis, and returns the parsed playlist.
func rules(t testing.TB, s *Stream, b []byte) *m3u8.MediaPlaylist {
	t.Helper()
	var known []string // the reader takes no parts before the first segment's end
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "#EXT-X-PART:") || strings.Contains(strings.Join(known, ""), "#EXTINF") {
			known = append(known, line)
		}
	}
	parsed, kind, err := m3u8.DecodeFrom(strings.NewReader(strings.Join(known, "")), true)
	if err != nil || kind != m3u8.MEDIA {
		t.Fatalf("%v\n%s", err, b)
	}
	p := parsed.(*m3u8.MediaPlaylist)
	// Section 4.4.3.8: PART-HOLD-BACK at least twice the part target, better three times;
	// HOLD-BACK at least three target durations; CAN-SKIP-UNTIL at least six.
	target := float64(p.TargetDuration)
	c := p.ServerControl
	if c == nil || !c.CanBlockReload || c.PartHoldBack < 3*float64(p.PartTargetDuration) || c.HoldBack < 3*target || c.CanSkipUntil < 6*target {
		t.Errorf("server control %+v, part target %v, target %v", c, p.PartTargetDuration, target)
	}
	for _, g := range p.GetAllSegments() {
		if g.Duration > target+.5 {
			t.Errorf("segment %d takes %v s", g.SeqId, g.Duration)
		}
	}
	if dates := bytes.Count(b, []byte("#EXT-X-PROGRAM-DATE-TIME:")); dates < len(p.GetAllSegments()) {
		t.Errorf("%d dates of %d segments", dates, len(p.GetAllSegments()))
	}
	// Section 4.4.4.9: no part is longer than the target, and none shorter than 85 % of it, except
	// independent parts and the last part of a segment.
	lines := strings.Split(string(b), "\n")
	var parts [][]byte
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "#EXT-X-PART:"):
			var d float64
			if _, err := fmt.Sscanf(line, "#EXT-X-PART:DURATION=%f,", &d); err != nil {
				t.Fatal(line, err)
			}
			last := !strings.HasPrefix(lines[i+1], "#EXT-X-PART:")
			if d > float64(p.PartTargetDuration) || d < .85*float64(p.PartTargetDuration) && !last && !strings.Contains(line, "INDEPENDENT") {
				t.Errorf("%s", line)
			}
			uri, _, _ := strings.Cut(strings.SplitN(line, `URI="`, 2)[1], `"`)
			parts = append(parts, mediaBytes(t, s, uri))
		case strings.HasPrefix(line, "../media/"): // a segment is its parts one after another
			if whole := mediaBytes(t, s, line); len(parts) > 0 && !bytes.Equal(whole, bytes.Join(parts, nil)) {
				t.Errorf("%s is not its parts", line)
			}
			parts = nil
		case strings.HasPrefix(line, "#EXT-X-MAP:"):
			uri, _, _ := strings.Cut(strings.SplitN(line, `URI="`, 2)[1], `"`)
			if len(mediaBytes(t, s, uri)) == 0 {
				t.Errorf("%s is empty", uri)
			}
		}
	}
	return p
}

// TestPlaylists: after each part the playlists keep the rules, and a delta update applied to a
// client's playlist gives the whole playlist.
func TestPlaylists(t *testing.T) {
	s, c := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	var version uint64
	for second := range 70 {
		feedSeconds(t, s, c, second, 1)
		if s.version == version {
			t.Fatal("a second has made no part")
		}
		version = s.version
		for _, track := range []string{"v0", "a0"} {
			a := get(t, s, "hls/"+track+".m3u8", "")
			if second < 3 && a.status == http.StatusNotFound {
				continue // before a segment is whole
			}
			p := rules(t, s, a.text.plain)
			if p.SeqNo != 0 && second < 60 {
				t.Errorf("second %d: the window has lost segments", second)
			}
			delta := get(t, s, "hls/"+track+".m3u8", "_HLS_skip=YES")
			if got := applied(t, string(a.text.plain), string(delta.text.plain)); got != string(a.text.plain) {
				t.Fatalf("a delta update makes\n%s\nwant\n%s", got, a.text.plain)
			}
			if len(delta.text.plain) >= len(a.text.plain) && second > 45 {
				t.Errorf("second %d: a delta update of %d bytes for %d", second, len(delta.text.plain), len(a.text.plain))
			}
		}
	}
	master, _, err := m3u8.DecodeFrom(bytes.NewReader(get(t, s, "hls/master.m3u8", "").text.plain), true)
	if err != nil || len(master.(*m3u8.MasterPlaylist).Variants) != 1 {
		t.Errorf("%v %v", master, err)
	}
}

// dates returns the dates of a playlist's segments.
func dates(t *testing.T, text []byte) (all []time.Time) {
	t.Helper()
	for line := range strings.Lines(string(text)) {
		if date, ok := strings.CutPrefix(strings.TrimSpace(line), "#EXT-X-PROGRAM-DATE-TIME:"); ok {
			at, err := time.Parse(time.RFC3339, date)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, at)
		}
	}
	return all
}

// applied applies a delta update to an older playlist (here the same) and returns the result.
func applied(t *testing.T, old, delta string) string {
	t.Helper()
	before, after, ok := strings.Cut(delta, "#EXT-X-SKIP:SKIPPED-SEGMENTS=")
	if !ok {
		return delta
	}
	var n int
	if _, err := fmt.Sscanf(after, "%d\n", &n); err != nil {
		t.Fatal(err)
	}
	_, after, _ = strings.Cut(after, "\n")
	_, after, _ = strings.Cut(after, "\n") // the map, which the skipped ones have already
	rest := strings.TrimPrefix(old, before)
	at := 0
	for range n {
		i := strings.Index(rest[at:], ".m4s\n")
		if i < 0 {
			t.Fatalf("%d segments are skipped of\n%s", n, old)
		}
		at += i + len(".m4s\n")
	}
	return before + rest[:at] + after
}

// TestWindow: the files of expired segments are removed once no playlist names them that a client
// may still have.
func TestWindow(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, 30*time.Second)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	most := 0
	for second := range 400 {
		feedSeconds(t, s, c, second, 1)
		files, err := filepath.Glob(filepath.Join(dir, "*.m4s"))
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(files))
	}
	// Two tracks: 30 s in segments of 2 s, as many old segments, 6 s of grace, and some unfinished
	// segments.
	if most > 2*(15+15+3+4) {
		t.Errorf("%d files", most)
	}
	p := rules(t, s, get(t, s, "hls/v0.m3u8", "").text.plain)
	if n := p.Count(); n < 15 || n > 17 || p.SeqNo < 180 {
		t.Errorf("%d segments from %d on", n, p.SeqNo)
	}
	if a := get(t, s, "media/id/v0/1.m4s", ""); a.status != http.StatusNotFound {
		t.Errorf("what has left the window: %+v", a)
	}
	bytesInMemory := 0
	for _, r := range s.rows {
		for _, g := range r.segments {
			for _, p := range g.parts {
				bytesInMemory += len(p.body)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || bytes.Count(b, []byte("\n")) > 1100 {
		t.Errorf("a log of %d bytes, %v", len(b), err)
	}
	var listed int64
	for _, r := range s.rows {
		for _, g := range r.segments {
			if r.segments[len(r.segments)-1].end()-g.end() <= partsListed {
				listed += g.size
			}
		}
	}
	if int64(bytesInMemory) > listed {
		t.Errorf("%d bytes in memory, %d are of parts that are listed", bytesInMemory, listed)
	}
}

// TestBlocking: a request waits until its part exists, and no longer.
func TestBlocking(t *testing.T) {
	s, c := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 5)
	number, part := s.rows["v0"].latest()
	for query, want := range map[string]int{
		fmt.Sprintf("_HLS_msn=%d", number+5): http.StatusBadRequest,
		"_HLS_part=1":                        http.StatusBadRequest,
		"_HLS_msn=x":                         http.StatusBadRequest,
		"_HLS_msn=-1":                        http.StatusBadRequest,
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=-2", number):                         http.StatusBadRequest,
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number, part):                   0,
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number-1, 1000):                 0,                     // the first of the next segment
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number, part+7):                 http.StatusBadRequest, // the limit is 3 s of parts
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number+1, 6):                    http.StatusBadRequest,
		fmt.Sprintf("_HLS_msn=%d", int64(math.MaxInt64)):                        http.StatusBadRequest,
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number, int64(math.MaxInt64)):   http.StatusBadRequest,
		fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number+1, int64(math.MaxInt64)): http.StatusBadRequest,
		"_HLS_msn=9223372036854775808":                                          http.StatusBadRequest,
		"_HLS_msn=0":                                                            0,
	} {
		if a := get(t, s, "hls/v0.m3u8", query); a.status != want {
			t.Errorf("%s: %d %s, want %d", query, a.status, a.problem, want)
		}
	}
	waiting := map[string]chan answer{
		"hls/v0.m3u8?" + fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number, part+1): nil,
		fmt.Sprintf("media/id/v0/%d.%d.m4s?", number, part+1):                    nil,
	}
	for path := range waiting {
		got := make(chan answer, 1)
		waiting[path] = got
		p, q, _ := strings.Cut(path, "?")
		asked := make(chan struct{})
		go func() {
			once := false
			a, err := s.find(func() context.Context { // called when the request must wait
				if !once {
					once = true
					close(asked)
				}
				return t.Context()
			}, p, q)
			if err != nil {
				a.problem = err.Error()
			}
			got <- a
		}()
		<-asked
		if len(got) > 0 {
			t.Errorf("%s does not wait: %+v", path, <-got)
		}
	}
	feedSeconds(t, s, c, 5, 1)
	for path, got := range waiting {
		if a := <-got; a.problem != "" || a.text == nil && len(a.body) == 0 {
			t.Errorf("%s: %+v", path, a)
		}
	}
	// The wait ends when the client has gone, and when the part cannot come.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	number, part = s.rows["v0"].latest()
	if a, err := s.find(func() context.Context { return gone }, "hls/v0.m3u8", fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number, part+1)); err != nil || a.status != http.StatusServiceUnavailable {
		t.Errorf("%+v %v", a, err)
	}
	if a := get(t, s, fmt.Sprintf("media/id/v0/%d.%d.m4s", number, part+2), ""); a.status != http.StatusNotFound {
		t.Errorf("a part that is not next: %+v", a)
	}
	s.End()
	s.wake()
	if a := get(t, s, "hls/v0.m3u8", fmt.Sprintf("_HLS_msn=%d", number+2)); a.problem != "" {
		t.Errorf("a stream that is not fed: %+v", a)
	}
}

// TestCrash: segments published before a crash are available after it under the same numbers, and
// new segments follow a discontinuity.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 7)
	number, part := s.rows["v0"].latest()
	if s.rows["v0"].open == nil || part < 1 {
		t.Fatalf("segment %d, part %d: no segment is open", number, part)
	}
	published := mediaBytes(t, s, fmt.Sprintf("media/id/v0/%d.0.m4s", number))
	again := t.TempDir()
	if err := os.CopyFS(again, os.DirFS(dir)); err != nil { // the disk as a crash leaves it
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(again, "log"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"t":"v0","n":99,`)
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	f, err = os.OpenFile(filepath.Join(again, fmt.Sprintf("v0-%d.m4s", number)), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(published[:len(published)-1]) // a torn part
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	c.set(c.now().Add(10 * time.Second))
	s = openStream(t, again, time.Minute, c)
	if got := mediaBytes(t, s, fmt.Sprintf("media/id/v0/%d.m4s", number)); !bytes.HasPrefix(got, published) || len(got) < (part+1)*len(published)/2 {
		t.Errorf("%d bytes of the segment that was open", len(got))
	}
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 100, 5)
	text := get(t, s, "hls/v0.m3u8", "").text.plain
	all := rules(t, s, text).GetAllSegments()
	dates := dates(t, text)
	discontinuities := 0
	for i, g := range all {
		if g.SeqId != uint64(i) {
			t.Errorf("segment %d has number %d", i, g.SeqId)
		}
		if g.Discontinuity {
			discontinuities++
			if gap := dates[i].Sub(dates[i-1]); g.SeqId != uint64(number)+1 || gap < 10*time.Second {
				t.Errorf("a discontinuity before %d, %v behind the last", g.SeqId, gap)
			}
		}
	}
	if discontinuities != 1 {
		t.Errorf("%d discontinuities", discontinuities)
	}
	if manifest := string(get(t, s, "dash/manifest.mpd", "").text.plain); strings.Count(manifest, "<Period ") != 2 {
		t.Error(manifest)
	}
	s.End()
}

// TestLongPictures: segments end even without key frames.
func TestLongPictures(t *testing.T) {
	s, _ := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks[:1]); err != nil {
		t.Fatal(err)
	}
	for n := range 30 * 25 {
		if err := s.Write(0, Sample{Decode: int64(n) * 3600, Key: n == 0, Data: []byte{0, 0, 0, 1, 1}}); err != nil {
			t.Fatal(err)
		}
	}
	b := get(t, s, "hls/v0.m3u8", "").text.plain
	p := rules(t, s, b)
	if p.Count() < 4 || bytes.Contains(b, []byte("#EXT-X-INDEPENDENT-SEGMENTS")) {
		t.Errorf("%s", b)
	}
}

// fuzzed gives input to an intake, and reads the resulting segments.
func fuzzed(t *testing.T, receive func(in *intake) error) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fre-live-") //nolint:usetesting // in memory: streams are synced
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s, _ := newStream(t, dir, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no waiting for publishers that are too fast
	_ = guard(func() error { return receive(&intake{Stream: s, ctx: ctx}) })
	s.End()
	files, err := filepath.Glob(filepath.Join(dir, "*.m4s"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mp4.DecodeFile(bytes.NewReader(b)); err != nil {
			t.Errorf("%s: %v", filepath.Base(name), err)
		}
	}
	for _, path := range []string{"hls/master.m3u8", "hls/v0.m3u8", "hls/a0.m3u8", "dash/manifest.mpd"} {
		get(t, s, path, "")
	}
}

// FuzzPublish: no bytes that a publisher with the right key sends by RTMP crash the intake or give
// segments that an MP4 reader refuses.
func FuzzPublish(f *testing.F) {
	f.Add([]byte{})
	f.Add(published(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzed(t, func(in *intake) error {
			counted := bytecounter.NewReader(bytes.NewReader(b))
			read := int64(0)
			return receive(message.NewReader(counted, counted, func(uint32) error { return nil }), &read, in)
		})
	})
}

// FuzzTS is FuzzPublish for MPEG-TS, the format inside SRT.
func FuzzTS(f *testing.F) {
	f.Add([]byte{})
	out, err := exec.Command("ffmpeg", strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=16x16:rate=25:duration=0.4 -f lavfi -i sine=duration=0.4 -c:v libx264 -g 3 -c:a aac -f mpegts -")...).Output()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(out)
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzed(t, func(in *intake) error { return receiveTS(bytes.NewReader(b), in) })
	})
}

// published returns a publisher's messages: parameter sets, three pictures, sound.
func published(f testing.TB) []byte {
	f.Helper()
	var b bytes.Buffer
	chunk := func(kind byte, at uint32, body []byte) {
		b.Write([]byte{4, byte(at >> 16), byte(at >> 8), byte(at), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body)), kind, 1, 0, 0, 0})
		for n := 0; n < len(body); n += 128 {
			if n > 0 {
				b.WriteByte(0xc4)
			}
			b.Write(body[n:min(len(body), n+128)])
		}
	}
	sps := []byte{0x67, 0x42, 0xc0, 0x0c, 0xd9, 0x41, 0x41, 0x9f, 0x9f, 0x01, 0x10, 0x00, 0x00, 0x03, 0x00, 0x10, 0x00, 0x00, 0x03, 0x03, 0x20, 0xf1, 0x42, 0x99, 0x60}
	pps := []byte{0x68, 0xcb, 0x83, 0xcb, 0x20}
	config := append([]byte{0x17, 0, 0, 0, 0, 1, sps[1], sps[2], sps[3], 0xff, 0xe1, 0, byte(len(sps))}, sps...)
	config = append(append(config, 1, 0, byte(len(pps))), pps...)
	chunk(9, 0, config)
	chunk(8, 0, []byte{0xaf, 0, 0x11, 0x90})
	for n := range uint32(3) {
		unit := binary.BigEndian.AppendUint32([]byte{0x17, 1, 0, 0, 0}, 200)
		chunk(9, 40*n, append(append(unit, 0x65), make([]byte, 199)...))
		chunk(8, 40*n, []byte{0xaf, 1, 1, 2, 3})
	}
	return b.Bytes()
}

// FuzzNALUnits: an access unit becomes NAL units, each after its length.
func FuzzNALUnits(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0x65}, 4)
	f.Add([]byte{0, 1, 0x65, 0, 0, 0, 2, 1, 1}, 2)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		to, key, err := nalUnits(b, size)
		if err != nil {
			return
		}
		found := false
		for len(to) > 0 {
			n := int(binary.BigEndian.Uint32(to))
			if n == 0 || n > len(to)-4 {
				t.Fatalf("a length of %d in %d bytes", n, len(to))
			}
			found = found || to[4]&0x1f == avcIDR
			to = to[4+n:]
		}
		if found != key {
			t.Errorf("key %v, found %v", key, found)
		}
	})
}

// TestCutsForgotten: the stream remembers only the segment ends of the picture track that another
// track has not reached yet, at any length of an epoch.
func TestCutsForgotten(t *testing.T) {
	for tracks := 1; tracks <= 2; tracks++ {
		s, c := newStream(t, t.TempDir(), time.Minute)
		if err := s.Begin(testTracks[:tracks]); err != nil {
			t.Fatal(err)
		}
		feedTracks(t, s, c, 0, 300, tracks)
		if n := len(s.rows["v0"].segments); n == 0 || len(s.feed.cuts) > 1 || s.feed.passed < 140 {
			t.Errorf("%d tracks: %d places are known, %d are past", tracks, len(s.feed.cuts), s.feed.passed)
		}
	}
}
