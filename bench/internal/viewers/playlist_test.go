package viewers

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var base = &url.URL{Scheme: "http", Host: "h:1", Path: "/a/hls/master.m3u8"}

const masterText = `#EXTM3U
#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="s",NAME="en",URI="en.m3u8"
#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="s",NAME="de",DEFAULT=YES,URI="de.m3u8"
#EXT-X-STREAM-INF:BANDWIDTH=3000000,RESOLUTION=1280x720,AUDIO="s"
high.m3u8?a=b
#EXT-X-STREAM-INF:BANDWIDTH=500000,RESOLUTION=640x360
http://other/low.m3u8
#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=1000,URI="keys.m3u8"
`

const mediaText = `#EXTM3U
#EXT-X-VERSION:7
#EXT-X-TARGETDURATION:4
#EXT-X-MAP:URI="../one/init.mp4",BYTERANGE="700"
#EXTINF:4.0,
#EXT-X-BYTERANGE:1000@700
../one/all.mp4
#EXTINF:2.5,
#EXT-X-BYTERANGE:50
../one/all.mp4
#EXT-X-MAP:URI="../two/init.mp4"
#EXTINF:3,
../two/1.m4s
#EXT-X-ENDLIST
`

func TestMaster(t *testing.T) {
	got, err := parseMaster(base, []byte(masterText))
	if err != nil {
		t.Fatal(err)
	}
	want := []rung{
		{bandwidth: 500_000, name: "640x360", media: address{"http://other", "/low.m3u8"}},
		{bandwidth: 3_000_000, name: "1280x720", media: address{"http://h:1", "/a/hls/high.m3u8?a=b"}, sound: address{"http://h:1", "/a/hls/de.m3u8"}},
	}
	if diff := cmp.Diff(want, got.rungs, cmp.AllowUnexported(rung{}, address{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMedia(t *testing.T) {
	got, err := parseMedia(base, []byte(mediaText))
	if err != nil {
		t.Fatal(err)
	}
	at := func(path string) address { return address{"http://h:1", path} }
	one, two := part{at("/a/one/init.mp4"), 0, 700}, part{at("/a/two/init.mp4"), 0, 0}
	want := []segment{
		{part{at("/a/one/all.mp4"), 700, 1000}, 0, 4 * time.Second, one},
		{part{at("/a/one/all.mp4"), 1700, 50}, 4 * time.Second, 2500 * time.Millisecond, one},
		{part{at("/a/two/1.m4s"), 0, 0}, 6500 * time.Millisecond, 3 * time.Second, two},
	}
	if diff := cmp.Diff(want, got.segments, cmp.AllowUnexported(segment{}, part{}, address{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for second, want := range map[float64]int{0: 0, 3.9: 0, 3.97: 1, 4: 1, 4.03: 1, 6.4: 1, 6.5: 2, 9.4: 2, 9.46: -1, 9.5: -1, 20: -1} {
		if i := got.at(time.Duration(second * float64(time.Second))); i != want {
			t.Errorf("at %v s segment %d is played, want %d", second, i, want)
		}
	}
}

func TestBadPlaylists(t *testing.T) {
	change := func(text, old, by string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not there", old)
		}
		return strings.ReplaceAll(text, old, by)
	}
	for name, text := range map[string]string{
		"empty": "", "a page": "<!doctype html>", "nothing": "#EXTM3U\n", "a media playlist": mediaText,
		"no bandwidth": change(masterText, "BANDWIDTH=500000,", ""),
		"no HTTP":      change(masterText, "http://other", "file:"),
		"no address":   change(masterText, "http://other", "http://%zz"),
		"keys alone":   "#EXTM3U\n#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=1000,URI=\"keys.m3u8\"\n",
	} {
		if _, err := parseMaster(base, []byte(text)); !errors.Is(err, errPlaylist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"a master playlist": masterText, "live": change(mediaText, "#EXT-X-ENDLIST\n", ""), "no segments": "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-ENDLIST\n",
		"negative": change(mediaText, "4.0", "-4"), "endless": change(mediaText, "4.0", "1e300"), "not a number": change(mediaText, "4.0", "NaN"),
		"no time": change(change(change(mediaText, "4.0", "0"), "2.5", "0"), "EXTINF:3", "EXTINF:0"),
	} {
		if _, err := parseMedia(base, []byte(text)); !errors.Is(err, errPlaylist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A playlist with unchanged text is not parsed again.
func TestIntake(t *testing.T) {
	var in intake
	a := address{"http://h:1", "/a/hls/x.m3u8"}
	first, err := in.read(a, []byte(mediaText), false)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := in.read(a, []byte(mediaText), false); err != nil || again != first {
		t.Error("the same text is parsed again", err)
	}
	other, err := in.read(a, []byte(strings.ReplaceAll(mediaText, "2.5", "1.5")), false)
	if err != nil || other == first || other.media.total != 8500*time.Millisecond {
		t.Errorf("%+v, %v", other, err)
	}
	if _, err := in.read(a, []byte(mediaText), true); !errors.Is(err, errPlaylist) {
		t.Error(err)
	}
}

// For any text of a server, a parsed playlist can be played.
func FuzzPlaylist(f *testing.F) {
	f.Add([]byte(masterText))
	f.Add([]byte(mediaText))
	f.Add([]byte("#EXTM3U\n#EXT-X-MEDIA:0")) // the decoder panics
	f.Add([]byte("#EXTM3U\n#EXTINF:\n\n#EXT-X-BYTERANGE:9223372036854775807@9223372036854775807\nx y\n#EXT-X-ENDLIST"))
	f.Fuzz(func(t *testing.T, text []byte) {
		check := func(a address) {
			if !strings.HasPrefix(a.server, "http") || !strings.HasPrefix(a.path, "/") && !strings.HasPrefix(a.path, "?") || strings.ContainsAny(a.String(), " \r\n") {
				t.Errorf("address %q %q", a.server, a.path)
			}
		}
		if m, err := parseMaster(base, text); err == nil {
			last := int64(1)
			for _, r := range m.rungs {
				if r.bandwidth < last {
					t.Errorf("%d bits a second behind %d", r.bandwidth, last)
				}
				last = r.bandwidth
				check(r.media)
				if r.sound != (address{}) {
					check(r.sound)
				}
			}
		}
		m, err := parseMedia(base, text)
		if err != nil {
			return
		}
		total := time.Duration(0)
		for _, s := range m.segments {
			if s.start != total || s.duration < 0 || s.offset < 0 || s.size < 0 || s.head.offset < 0 || s.head.size < 0 {
				t.Errorf("%+v at %v", s, total)
			}
			total += s.duration
			check(s.address)
			if s.head != (part{}) {
				check(s.head.address)
			}
		}
		if m.total != total || total <= 0 {
			t.Errorf("%v in all, segments of %v", m.total, total)
		}
		// Playing reaches the end.
		for at := time.Duration(0); ; {
			i := m.at(at)
			if i < 0 {
				if total-at > 60*time.Millisecond {
					t.Errorf("nothing is played at %v of %v", at, total)
				}
				return
			}
			end := m.segments[i].start + m.segments[i].duration
			if end <= at {
				t.Fatalf("segment %d ends at %v, at %v", i, end, at)
			}
			at = end
		}
	})
}
