package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestEpochsBounded: a publisher that begins again many times, or whose clock jumps many times, is
// refused with a reason. The stream's segments stay available, and a later publisher is accepted.
func TestEpochsBounded(t *testing.T) {
	for name, again := range map[string]func(s *Stream, in *intake, n int64) error{
		"comes back": func(s *Stream, _ *intake, n int64) error {
			if err := s.Begin(testTracks[:1]); err != nil {
				return err
			}
			return s.Write(0, Sample{Decode: n, Key: true, Data: []byte{0, 0, 0, 1, 5}})
		},
		"clock jumps": func(_ *Stream, in *intake, n int64) error {
			return in.put(queued{Sample: Sample{Decode: n * 1000 * clockRate, Key: true, Data: []byte{0, 0, 0, 1, 5}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, c := newStream(t, dir, time.Minute)
			in := &intake{Stream: s, ctx: t.Context(), pictures: &testTracks[0]}
			if err := in.begin(); err != nil {
				t.Fatal(err)
			}
			feedTracks(t, s, c, 0, 5, 1)
			var refused error
			begun := 1
			for n := range int64(500) {
				if err := again(s, in, n); err != nil {
					refused = err
				} else {
					begun++
				}
			}
			if !errors.Is(refused, errEpochs) || !strings.Contains(refused.Error(), "again in 5s") || begun > mostEpochs+1 {
				t.Fatalf("%d epochs, %v", begun, refused)
			}
			s.End()
			text := get(t, s, "hls/v0.m3u8", "").text.plain
			p := rules(t, s, text)
			if n := bytes.Count(text, []byte("#EXT-X-DISCONTINUITY\n")); n > mostEpochs || p.SeqNo != 0 {
				t.Errorf("%d discontinuities, segments from %d on", n, p.SeqNo)
			}
			if log, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || bytes.Count(log, []byte(`"epoch":{`)) > mostEpochs {
				t.Errorf("a log of %d bytes, %v", len(log), err)
			}
			c.set(c.now().Add(epochEvery))
			if err := again(s, in, 1000); err != nil {
				t.Errorf("after %v: %v", epochEvery, err)
			}
		})
	}
}

// TestNothingPublished: a publisher that begins again without a key frame wakes no viewer.
func TestNothingPublished(t *testing.T) {
	s, c := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 5)
	s.End()
	version := s.version
	for n := range int64(10) {
		if err := s.Begin(testTracks); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(0, Sample{Decode: n, Data: []byte{0, 0, 0, 1, 5}}); err != nil {
			t.Fatal(err)
		}
	}
	if s.version != version {
		t.Errorf("viewers are woken %d times", s.version-version)
	}
}

// TestSharedInit: equal epochs share one initialisation segment in memory. A segment that is too
// large is refused.
func TestSharedInit(t *testing.T) {
	s, c := newStream(t, t.TempDir(), time.Minute)
	for range 2 {
		tracks := []Track{testTracks[0]}
		tracks[0].Init = bytes.Repeat([]byte{1}, 1000)
		if err := s.Begin(tracks); err != nil {
			t.Fatal(err)
		}
		feedTracks(t, s, c, 0, 3, 1)
	}
	all := s.rows["v0"].segments
	if first, last := all[0].track, s.current.track("v0"); first == last || &first.Init[0] != &last.Init[0] {
		t.Error("two initialisation segments in memory")
	}
	if err := s.Begin([]Track{{LiveTrack: testTracks[0].LiveTrack, TimeScale: 90000, Init: make([]byte, mostInit+1)}}); !errors.Is(err, errTracks) {
		t.Errorf("a large initialisation segment: %v", err)
	}
}

// TestManyBytes: a track keeps a bounded number of bytes of its parts in memory at any bit rate,
// every listed part is available, and the length of a segment is bounded.
func TestManyBytes(t *testing.T) {
	s, _ := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks[:1]); err != nil {
		t.Fatal(err)
	}
	write := func(n, size int) error {
		return s.Write(0, Sample{Decode: int64(n) * 45000, Key: n%4 == 0, Data: append([]byte{0, 0, 0, 1, 5}, make([]byte, size)...)})
	}
	for n := range 20 {
		if err := write(n, 4<<20); err != nil {
			t.Fatal(err)
		}
		held := 0
		r := s.rows["v0"]
		for _, of := range append(r.segments[:len(r.segments):len(r.segments)], r.open) {
			for i := 0; of != nil && i < len(of.parts); i++ {
				held += len(of.parts[i].body)
			}
		}
		if held > mostHeld {
			t.Fatalf("%d bytes in memory", held)
		}
	}
	rules(t, s, get(t, s, "hls/v0.m3u8", "").text.plain)
	var err error
	for n := 20; n < 40 && err == nil; n++ {
		err = write(4*n+1, mostSample-5) // no key frames
	}
	if !errors.Is(err, errBacklog) {
		t.Errorf("a segment of more than %d bytes: %v", mostSegment, err)
	}
}

// TestOldParts: a part that has left memory is sent from its file, without using memory again.
func TestOldParts(t *testing.T) {
	s, c := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 40)
	whole := mediaBytes(t, s, "media/id/v0/1.m4s")
	var parts []byte
	for n := range s.rows["v0"].segments[1].parts {
		path := fmt.Sprintf("media/id/v0/1.%d.m4s", n)
		if a := get(t, s, path, ""); a.file == nil || a.body != nil {
			t.Errorf("%s: %d bytes in memory", path, len(a.body))
		} else if err := a.file.Close(); err != nil {
			t.Error(err)
		}
		parts = append(parts, mediaBytes(t, s, path)...)
	}
	if !bytes.Equal(parts, whole) {
		t.Errorf("%d bytes of parts, %d of the segment", len(parts), len(whole))
	}
}

// TestSlowPictures: at one picture per second or fewer, each picture is a part, and the playlist
// announces parts of this length.
func TestSlowPictures(t *testing.T) {
	s, _ := newStream(t, t.TempDir(), time.Minute)
	if err := s.Begin(testTracks[:1]); err != nil {
		t.Fatal(err)
	}
	at := int64(0)
	for n := range 40 {
		if err := s.Write(0, Sample{Decode: at, Key: n%2 == 0, Data: []byte{0, 0, 0, 1, 5}}); err != nil {
			t.Fatal(err)
		}
		if at += 90000; n == 20 {
			at += 3 * 90000 // a gap of three seconds
		}
		a := get(t, s, "hls/v0.m3u8", "")
		if a.text == nil {
			continue
		}
		if p := rules(t, s, a.text.plain); p.PartTargetDuration != 1 {
			t.Fatalf("a part target of %v", p.PartTargetDuration)
		}
	}
}

// TestTrackEnds: a track that the publisher has ended leaves the window with the segments of its
// time.
func TestTrackEnds(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, 30*time.Second)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 10)
	next := s.rows["a0"].next
	if err := s.Begin(testTracks[:1]); err != nil {
		t.Fatal(err)
	}
	feedTracks(t, s, c, 10, 100, 1)
	if files, err := filepath.Glob(filepath.Join(dir, "a0-*")); err != nil || len(files) > 0 {
		t.Errorf("%q %v", files, err)
	}
	if a := get(t, s, "hls/a0.m3u8", ""); a.status != http.StatusNotFound {
		t.Errorf("%+v", a)
	}
	if n := strings.Count(string(get(t, s, "dash/manifest.mpd", "").text.plain), "<Period "); n != 1 {
		t.Errorf("%d periods", n)
	}
	s = openStream(t, crash(t, dir), 30*time.Second, c)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 110, 5)
	if media, discontinuity, _, ok := told(t, s, "a0"); !ok || media < next || discontinuity != 2 {
		t.Errorf("segments from %d on, discontinuity %d; want %d and 2", media, discontinuity, next)
	}
}

// TestClocksWrap: the clock of RTMP starts again after 2^32 ms, the clock of MPEG-TS after 2^33
// ticks of 90 kHz; the stream continues in the same epoch.
func TestClocksWrap(t *testing.T) {
	t.Run("RTMP", func(t *testing.T) {
		in := &intake{}
		want := int64(1<<32-100) * 90
		for n := range int64(10) {
			if got := in.unwrap(time.Duration(uint32(1<<32-100+40*n)) * time.Millisecond); got != want+40*n*90 {
				t.Fatalf("picture %d is at %d, want %d", n, got, want+40*n*90)
			}
		}
		if got := in.unwrap(0); got != want+100*90 { // a later time
			t.Errorf("a message before the last is at %d, want %d", got, want+100*90)
		}
	})
	t.Run("MPEG-TS", func(t *testing.T) {
		s, c := newStream(t, t.TempDir(), time.Minute)
		c.set(c.now().Add(time.Hour))
		out, err := exec.CommandContext(t.Context(), "ffmpeg", strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=16x16:rate=25:duration=8 -f lavfi -i sine=duration=8 -c:v libx264 -g 25 -c:a aac -output_ts_offset 95440 -f mpegts -")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		in := &intake{Stream: s, ctx: ctx}
		s.tick = func() time.Duration { // no delay
			if d, ok := in.time90k(); ok {
				return s.feed.epoch.Start + d - s.zero
			}
			return c.tick()
		}
		if err := receiveTS(bytes.NewReader(out), in); !errors.Is(err, errGone) {
			t.Fatal(err)
		}
		s.End()
		text := get(t, s, "hls/v0.m3u8", "").text.plain
		if p := rules(t, s, text); p.Count() < 4 || bytes.Contains(text, []byte("#EXT-X-DISCONTINUITY\n")) {
			t.Errorf("%s", text)
		}
	})
}

// time90k returns the time of the publisher's last picture in the epoch.
func (in *intake) time90k() (time.Duration, bool) {
	if in.Stream == nil || !in.feed.begun {
		return 0, false
	}
	return units(in.last[0], clockRate) - in.feed.zero, true
}

// TestClockFar: no publisher can make the clock overflow.
func TestClockFar(t *testing.T) {
	s, _ := newStream(t, t.TempDir(), time.Minute)
	in := &intake{Stream: s, ctx: t.Context(), pictures: &testTracks[0]}
	if err := in.begin(); err != nil {
		t.Fatal(err)
	}
	var err error
	for n := uint32(0); n < 1<<20 && err == nil; n++ { // no key frames: no epoch begins
		err = in.put(queued{Sample: Sample{Decode: in.unwrap(time.Duration(n<<30) * time.Millisecond), Data: []byte{0, 0, 0, 1, 1}}})
	}
	if !errors.Is(err, errTime) {
		t.Error(err)
	}
}

// TestWaits: a request for a part that does not come is answered 503 after three target durations
// while a publisher is connected, and with the present playlist after one target duration
// otherwise. The number of waiting requests is bounded.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newStream(t, t.TempDir(), time.Minute)
		if err := s.Begin(testTracks); err != nil {
			t.Fatal(err)
		}
		feedSeconds(t, s, c, 0, 5)
		number, part := s.rows["v0"].latest()
		query := fmt.Sprintf("_HLS_msn=%d&_HLS_part=%d", number, part+1)
		for _, path := range []string{"hls/v0.m3u8", fmt.Sprintf("media/id/v0/%d.%d.m4s", number, part+1)} {
			s.waiting = mostWaiting
			if a := get(t, s, path, query); a.status != http.StatusServiceUnavailable {
				t.Errorf("one more request that waits: %+v", a)
			}
			s.waiting = 0
		}
		began := time.Now()
		if a := get(t, s, "hls/v0.m3u8", query); a.status != http.StatusServiceUnavailable || time.Since(began) != 3*segmentMost {
			t.Errorf("after %v: %+v", time.Since(began), a)
		}
		s.End()
		number, _ = s.rows["v0"].latest()
		began = time.Now()
		if a := get(t, s, "hls/v0.m3u8", fmt.Sprintf("_HLS_msn=%d", number+1)); a.text == nil || a.keep != "no-store" || time.Since(began) != segmentMost {
			t.Errorf("after %v: %+v", time.Since(began), a)
		}
		if s.waiting != 0 {
			t.Errorf("%d requests wait", s.waiting)
		}
	})
}

// TestStuckClock: a publisher whose clock stands still or jumps to and fro is slowed down, and
// fills the stream no faster than time passes.
func TestStuckClock(t *testing.T) {
	for name, at := range map[string]func(n int64) int64{
		"stands still": func(int64) int64 { return 0 },
		"to and fro":   func(n int64) int64 { return n % 2 * clockRate * 9 / 10 },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStream(t, t.TempDir(), time.Minute)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // no waiting for publishers that are too fast
			in := &intake{Stream: s, ctx: ctx, pictures: &testTracks[0]}
			if err := in.begin(); err != nil {
				t.Fatal(err)
			}
			var err error
			for n := int64(0); n < 100_000 && err == nil; n++ {
				err = in.put(queued{Sample: Sample{Decode: at(n), Key: true, Data: []byte{0, 0, 0, 1, 5}}})
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the publisher is not slowed down: %v", err)
			}
			s.End()
			if r := s.rows["v0"]; r.next > 1 || s.endLocked() > s.clock()+2*time.Second {
				t.Errorf("%d segments, up to %v at %v", r.next, s.endLocked(), s.clock())
			}
		})
	}
}

// TestCountsInSPS: a parameter set whose counts exceed its data is refused, and takes no memory.
func TestCountsInSPS(t *testing.T) {
	s, _ := newStream(t, t.TempDir(), time.Minute)
	in := &intake{Stream: s, ctx: t.Context()}
	sps := []byte("gB\xc0\x0c\xd9AA\x9f\x83\b\x10\x00\x00\x03\x00\x10\x00\x00\x03\x03 \xf1B\x99`") // of a hypothetical decoder's buffers
	if err := in.describePictures([][]byte{sps}, [][]byte{{0x68, 0xcb, 0x83, 0xcb, 0x20}}); !errors.Is(err, errCodec) {
		t.Error(err)
	}
}
