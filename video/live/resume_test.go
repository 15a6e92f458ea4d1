package live

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// told returns the sequence numbers of a track's playlist and the addresses of its segments; ok is
// false without a playlist.
func told(t *testing.T, s *Stream, track string) (media, discontinuity int64, segments []string, ok bool) {
	t.Helper()
	a := get(t, s, "hls/"+track+".m3u8", "")
	if a.text == nil {
		return 0, 0, nil, false
	}
	for line := range strings.Lines(string(a.text.plain)) {
		switch {
		case strings.HasPrefix(line, "#EXT-X-MEDIA-SEQUENCE:"):
			_, _ = fmt.Sscanf(line, "#EXT-X-MEDIA-SEQUENCE:%d", &media)
		case strings.HasPrefix(line, "#EXT-X-DISCONTINUITY-SEQUENCE:"):
			_, _ = fmt.Sscanf(line, "#EXT-X-DISCONTINUITY-SEQUENCE:%d", &discontinuity)
		case strings.HasPrefix(line, "../media/"):
			segments = append(segments, strings.TrimSpace(line))
		}
	}
	return media, discontinuity, segments, true
}

// crash returns a copy of a directory as a crash leaves it.
func crash(t *testing.T, dir string) string {
	t.Helper()
	again := t.TempDir()
	if err := os.CopyFS(again, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return again
}

// damages are changes to a stream's directory; losing says whether viewers may lose segments.
var damages = []struct {
	name   string
	do     func(dir string, log []byte, files []string, random *rand.Rand) error
	losing bool
}{
	{"none", func(string, []byte, []string, *rand.Rand) error { return nil }, false},
	{"a line torn at the end", func(dir string, log []byte, _ []string, _ *rand.Rand) error {
		return os.WriteFile(filepath.Join(dir, "log"), append(log, `{"t":"v0","n":99,`...), 0o600)
	}, false},
	{"a line torn in the middle", func(dir string, log []byte, _ []string, random *rand.Rand) error {
		return os.WriteFile(filepath.Join(dir, "log"), torn(log, random), 0o600)
	}, false},
	{"the last lines lost", func(dir string, log []byte, _ []string, random *rand.Rand) error {
		lines := bytes.SplitAfter(log, []byte("\n"))
		for n := 1 + random.IntN(3); n > 0 && len(lines) > 1 && bytes.HasPrefix(lines[len(lines)-2], []byte(`{"t"`)); n-- {
			lines = append(lines[:len(lines)-2], nil)
		}
		return os.WriteFile(filepath.Join(dir, "log"), bytes.Join(lines, nil), 0o600)
	}, false},
	{"a segment lost", func(_ string, _ []byte, files []string, random *rand.Rand) error {
		return os.Remove(files[random.IntN(len(files))])
	}, true},
	{"a segment cut short", func(_ string, _ []byte, files []string, random *rand.Rand) error {
		return os.Truncate(files[random.IntN(len(files))], int64(random.IntN(100)))
	}, true},
	{"all segments lost", func(_ string, _ []byte, files []string, _ *rand.Rand) (err error) {
		for _, name := range files {
			err = errors.Join(err, os.Remove(name))
		}
		return err
	}, true},
	{"the log lost", func(dir string, _ []byte, _ []string, _ *rand.Rand) error {
		return os.Remove(filepath.Join(dir, "log"))
	}, true},
}

// torn returns a log with a torn segment line in the middle.
func torn(log []byte, random *rand.Rand) []byte {
	lines := bytes.SplitAfter(log, []byte("\n"))
	var segments []int
	for i, line := range lines {
		if bytes.Contains(line, []byte(`"b":`)) {
			segments = append(segments, i)
		}
	}
	if len(segments) > 0 {
		i := segments[random.IntN(len(segments))]
		lines[i] = lines[i][:random.IntN(len(lines[i]))]
	}
	return bytes.Join(lines, nil)
}

// TestNumbersOutlive: after a crash with any damage to the directory, media and discontinuity
// sequence numbers never fall (RFC 8216 section 6.2.2), no address gets another segment, and the
// window keeps all segments whose files exist.
func TestNumbersOutlive(t *testing.T) {
	random := fretest.Rand(t)
	dir := t.TempDir()
	s, c := newStream(t, dir, 30*time.Second)
	type numbers struct{ media, discontinuity int64 }
	last := map[string]numbers{}
	bodies := map[string][]byte{} // by address
	check := func(when string) {
		t.Helper()
		for _, track := range []string{"v0", "a0"} {
			media, discontinuity, segments, ok := told(t, s, track)
			if !ok {
				continue
			}
			if was := last[track]; media < was.media || discontinuity < was.discontinuity {
				t.Fatalf("%s: %s from segment %d and discontinuity %d on, before %+v", when, track, media, discontinuity, was)
			}
			last[track] = numbers{media, discontinuity}
			for _, at := range segments {
				b := mediaBytes(t, s, at)
				if was, ok := bodies[at]; ok && !bytes.HasPrefix(b, was) {
					t.Fatalf("%s: %s is another segment", when, at)
				}
				bodies[at] = b
			}
		}
	}
	decode := 0
	for range 25 {
		damage := damages[random.IntN(len(damages))]
		tracks := testTracks[:1+random.IntN(2)]
		if err := s.Begin(tracks); err != nil {
			t.Fatal(err)
		}
		for range random.IntN(40) {
			if feedTracks(t, s, c, decode, 1, len(tracks)); random.IntN(4) == 0 {
				check("published")
			}
			decode++
		}
		check("published")
		_, _, before, _ := told(t, s, "v0")
		dir = crash(t, dir)
		log, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.m4s"))
		if err != nil || len(files) == 0 {
			continue
		}
		if err := damage.do(dir, log, files, random); err != nil {
			t.Fatal(err)
		}
		c.set(c.now().Add(time.Duration(random.IntN(10)) * time.Second))
		s = openStream(t, dir, 30*time.Second, c)
		check(damage.name)
		_, _, after, _ := told(t, s, "v0")
		if kept := before[max(0, len(before)-5):]; !damage.losing && !strings.Contains(strings.Join(after, "\n"), strings.Join(kept, "\n")) {
			t.Fatalf("%s: %q is left of %q", damage.name, after, before)
		}
	}
}

// TestRestartKeepsWindow: a restart does not bring expired segments back into the playlists, and
// removes their files on time.
func TestRestartKeepsWindow(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, 30*time.Second)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 80)
	media, _, before, _ := told(t, s, "v0")
	dir = crash(t, dir)
	s = openStream(t, dir, 30*time.Second, c)
	again, _, after, _ := told(t, s, "v0")
	// The last segment was incomplete and is complete now.
	if again < media || again > media+1 || len(after) < len(before) {
		t.Errorf("segments from %d on, %d, before from %d on, %d", again, len(after), media, len(before))
	}
	files := func() int {
		all, err := filepath.Glob(filepath.Join(dir, "*.m4s"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := files(); n < 60 {
		t.Errorf("%d files: players with an older playlist find nothing", n)
	}
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 80, 40)
	if n := files(); n > 2*(15+15+3+4) {
		t.Errorf("%d files", n)
	}
}

// TestExpired: sequence numbers continue over two restarts even if all files of a track are gone.
func TestExpired(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, 30*time.Second)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 20)
	want := s.rows["v0"].next
	dir = crash(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "*.m4s"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		openStream(t, dir, 30*time.Second, c)
		dir = crash(t, dir)
	}
	s = openStream(t, dir, 30*time.Second, c)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 20, 10)
	// The last segment had published parts, but no line.
	if media, discontinuity, _, ok := told(t, s, "v0"); !ok || media < want-1 || discontinuity != 1 {
		t.Errorf("segments from %d on, discontinuity %d, want %d and 1", media, discontinuity, want)
	}
}

// TestDiskFull: a line that is torn by a full disk spoils none of the lines behind it.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 10)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := s.disk.lines
	s.disk.lines = full
	err = nil
	for n := 250; n < 400 && err == nil; n++ {
		err = s.Write(0, Sample{Decode: int64(n) * 3600, Key: n%25 == 0, Data: []byte{0, 0, 0, 1, byte(n)}})
	}
	if err == nil {
		t.Fatal("a full disk goes unnoticed")
	}
	s.End()
	if _, err := lines.WriteString(`{"t":"v0","n":`); err != nil { // as much as there was room for
		t.Fatal(err)
	}
	s.disk.lines = lines
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 400, 10)
	for _, track := range []string{"v0", "a0"} {
		rules(t, s, get(t, s, "hls/"+track+".m3u8", "").text.plain)
	}
	_, _, before, _ := told(t, s, "v0")
	s = openStream(t, crash(t, dir), time.Minute, c)
	if _, _, after, _ := told(t, s, "v0"); !strings.HasPrefix(strings.Join(after, "\n"), strings.Join(before, "\n")) {
		t.Errorf("%q is left of %q", after, before)
	}
}

// TestRoom: a part without room on the disk is not written, and the publisher receives the reason.
// The stream's segments stay available. Once there is room, the stream continues.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	s, c := newStream(t, dir, time.Minute)
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 0, 10)
	_, _, before, _ := told(t, s, "v0")
	size := func() (all int64) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, "*.m4s"))
		for _, f := range files {
			info, failed := os.Stat(f)
			if err = errors.Join(err, failed); failed == nil {
				all += info.Size()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	stored := size()
	s.disk.room = func(bytes int64) error {
		if bytes <= 0 {
			t.Errorf("room for %d bytes is asked for", bytes)
		}
		return unix.ENOSPC
	}
	var err error
	for n := 250; n < 400 && err == nil; n++ {
		err = s.Write(0, Sample{Decode: int64(n) * 3600, Key: n%25 == 0, Data: []byte{0, 0, 0, 1, byte(n)}})
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("without room: %v", err)
	}
	s.End()
	if now := size(); now != stored {
		t.Errorf("%d bytes were written", now-stored)
	}
	if _, _, after, _ := told(t, s, "v0"); !strings.HasPrefix(strings.Join(after, "\n"), strings.Join(before, "\n")) {
		t.Errorf("%q is left of %q", after, before)
	}
	s.disk.room = anyRoom
	if err := s.Begin(testTracks); err != nil {
		t.Fatal(err)
	}
	feedSeconds(t, s, c, 400, 10)
	for _, track := range []string{"v0", "a0"} {
		rules(t, s, get(t, s, "hls/"+track+".m3u8", "").text.plain)
	}
}

// TestClockSet: setting the machine's clock during a stream or between two runs disturbs neither
// publisher nor window, and the dates of the playlist continue.
func TestClockSet(t *testing.T) {
	for _, step := range []time.Duration{-24 * time.Hour, -time.Minute, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			dir := t.TempDir()
			s, c := newStream(t, dir, 30*time.Second)
			if err := s.Begin(testTracks); err != nil {
				t.Fatal(err)
			}
			feedSeconds(t, s, c, 0, 20)
			c.step = step
			feedSeconds(t, s, c, 20, 20)
			if d, ok := s.ahead(0, 40*90000); !ok || d < -time.Second || d > time.Second {
				t.Errorf("the publisher is %v ahead", d)
			}
			dir = crash(t, dir)
			before := s.clock()
			s = openStream(t, dir, 30*time.Second, c)
			if now := s.clock(); now < before-time.Second {
				t.Errorf("the stream's clock shows %v, before %v", now, before)
			}
			media, _, _, _ := told(t, s, "v0")
			if err := s.Begin(testTracks); err != nil {
				t.Fatal(err)
			}
			feedSeconds(t, s, c, 40, 80)
			if d, ok := s.ahead(0, 120*90000); !ok || d < -time.Second || d > time.Second {
				t.Errorf("the publisher is %v ahead after the restart", d)
			}
			p := get(t, s, "hls/v0.m3u8", "").text.plain
			rules(t, s, p)
			all := dates(t, p)
			for i := range all[1:] {
				if gap := all[i+1].Sub(all[i]); gap < time.Second && i < len(all)-2 || gap > 3*time.Second {
					t.Errorf("a segment is %v behind the one before", gap)
				}
			}
			if again, _, _, _ := told(t, s, "v0"); again < media+30 {
				t.Errorf("segments from %d on, before the restart from %d: the window does not move", again, media)
			}
			if files, err := filepath.Glob(filepath.Join(dir, "*.m4s")); err != nil || len(files) > 2*(15+15+3+4) {
				t.Errorf("%d files, %v", len(files), err)
			}
			now := string(get(t, s, "time", "").body)
			if at, err := time.Parse(time.RFC3339, now); err != nil || at.Sub(all[len(all)-1]) > 10*time.Second || at.Before(all[len(all)-1]) {
				t.Errorf("the clock for DASH shows %s, the last segment begins at %v, %v", now, all[len(all)-1], err)
			}
		})
	}
}

// FuzzLog: a stream opens with any content of its directory, and its new state outlives another
// restart.
func FuzzLog(f *testing.F) {
	dir := f.TempDir()
	s, c := newStream(f, dir, time.Minute)
	if err := s.Begin(testTracks); err != nil {
		f.Fatal(err)
	}
	feedSeconds(f, s, c, 0, 7)
	var segment []byte
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err == nil {
		segment, err = os.ReadFile(s.disk.path("v0", 1))
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Add(log, segment, []byte{})
	f.Add([]byte{}, segment, segment)
	f.Add([]byte(`{"epochs":7}`+"\n"+`{"t":"v0","next":9,"first":3}`+"\n"+`{"epoch":{"epoch":6,"start":1,"tracks":[{"name":"v0","kind":"video","time_scale":1}]}}`+"\n"+`{"t":"v0","n":2,"of":6,"s":1,"d":1,"b":1}`), segment, []byte("x"))
	f.Fuzz(func(t *testing.T, log, one, two []byte) {
		dir, err := os.MkdirTemp("/dev/shm", "fre-live-") //nolint:usetesting // in memory: streams are synced
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}()
		c := &clock{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		var s *Stream
		for name, b := range map[string][]byte{"log": log, "v0-1.m4s": one, "v0-2.m4s": two, "a0-1.m4s": two} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ask := func() (all []string) {
			for _, path := range []string{"hls/master.m3u8", "hls/v0.m3u8", "hls/a0.m3u8", "dash/manifest.mpd"} {
				get(t, s, path, "")
			}
			for _, track := range []string{"v0", "a0"} {
				media, discontinuity, segments, _ := told(t, s, track)
				all = append(all, fmt.Sprint(media, discontinuity, segments))
			}
			return all
		}
		reopen := func() {
			t.Helper()
			if s, err = resume(&disk{dir: dir, room: anyRoom}, "x", "id", c.now().Add(-5*time.Second), time.Minute, c.wall(), c.tick); err != nil {
				t.Fatal(err)
			}
		}
		reopen()
		first := ask()
		if err := s.disk.close(); err != nil {
			t.Fatal(err)
		}
		reopen()
		if again := ask(); fmt.Sprint(again) != fmt.Sprint(first) {
			t.Fatalf("%q, then %q", first, again)
		}
		v0, _, _, _ := told(t, s, "v0")
		if err := s.Begin(testTracks); err != nil {
			t.Fatal(err)
		}
		feedSeconds(t, s, c, 0, 6)
		ask()
		if again, _, segments, ok := told(t, s, "v0"); !ok || again < v0 || len(segments) < 2 {
			t.Errorf("segments from %d on, %d; before from %d on", again, len(segments), v0)
		}
		s.End()
		if err := s.disk.close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
	})
}
