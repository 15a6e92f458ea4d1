package transcode_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

const srt = `1
00:00:01,000 --> 00:00:02,500
<i>Leaning</i> & {\an8}<font color="red">red</font> <3

2
00:00:03,000 --> 00:00:04,000
two --> lines
of <b>bold & <u>under</b>lined

3
00:00:04,500 --> 00:00:05,000
Zażółć 日本語
`

const fromSRT = `WEBVTT

00:00:01.000 --> 00:00:02.500
<i>Leaning</i> &amp; red &lt;3

00:00:03.000 --> 00:00:04.000
two --&gt; lines
of <b>bold &amp; <u>under</u></b><u>lined</u>

00:00:04.500 --> 00:00:05.000
Zażółć 日本語
`

const ass = `[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,16,&Hffffff,&Hffffff,&H0,&H0,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,0

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,{\p1}m 0 0 l 100 0{\p0}after, the {\bord2\b1}shape{\r}
Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,first{\i1}\Nsecond{\i0}\hthird <tag>
Dialogue: 0,0:00:05.00,0:00:06.00,Default,,0,0,0,,{\p1}m 0 0 l 100 0
`

const fromASS = `WEBVTT

00:00:01.000 --> 00:00:02.000
first<i>
second</i>` + "\u00a0" + `third &lt;tag&gt;

00:00:03.000 --> 00:00:04.000
after, the <b>shape</b>
`

const vtt = `WEBVTT with a title

STYLE
::cue { color: red }

NOTE this is left out

name
00:01.000 --> 00:02.000 line:0 position:20%,line-left region:x align:start
<v.loud Mary O'Neil>Hello &amp; <c.red.big>welcome</c> <00:01.500>now</v>

00:03.000 --> 00:04.000
<lang en-GB>colour</lang> <script>no</script> & <ruby>漢<rt>kan</rt></ruby>
`

const fromVTT = `WEBVTT

00:00:01.000 --> 00:00:02.000 line:0 position:20%,line-left align:start
<v.loud Mary O'Neil>Hello &amp; <c.red.big>welcome</c> now</v>

00:00:03.000 --> 00:00:04.000
<lang en-GB>colour</lang> &lt;script&gt;no&lt;/script&gt; &amp; <ruby>漢<rt>kan</rt></ruby>
`

// write makes a file.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestText: subtitles of every kind come out as WebVTT, alone and within a film.
func TestText(t *testing.T) {
	checkLeaks(t)
	wide := []byte("\xff\xfe")
	for _, r := range srt {
		wide = binary.LittleEndian.AppendUint16(wide, uint16(r))
	}
	within := func(name, from, content string) string {
		return clip(t, name, "-f", "lavfi", "-i", "testsrc=size=64x64:duration=7", "-i", write(t, from, content), "-map", "0", "-map", "1", "-c:v", "libvpx", "-c:s", "copy", "-metadata:s:1", "language=pol")
	}
	alone := func(name, content string) string { return write(t, name, content) }
	for _, tt := range []struct {
		name, path string
		ask        media.Text
		want       string
	}{
		{"srt", alone("a.srt", srt), media.Text{}, fromSRT},
		{"srt with carriage returns", alone("a.srt", "\ufeff"+strings.ReplaceAll(srt, "\n", "\r\n")), media.Text{}, fromSRT},
		{"srt in UTF-16", alone("a.srt", string(wide)), media.Text{}, fromSRT},
		{"srt in Windows-1252", alone("a.srt", "1\n00:00:01,000 --> 00:00:02,000\n\x93caf\xe9\x94 10\x80 \xe9\n"), media.Text{}, "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\n“café” 10€ é\n"},
		{"ass", alone("a.ass", ass), media.Text{}, fromASS},
		{"vtt", alone("a.vtt", vtt), media.Text{}, fromVTT},
		{"srt in matroska", within("a.mkv", "a.srt", srt), media.Text{Stream: 1}, fromSRT},
		{"ass in matroska", within("a.mkv", "a.ass", ass), media.Text{Stream: 1}, fromASS},
		{"vtt in webm", within("a.webm", "a.vtt", strings.Replace(vtt, "STYLE", "NOTE", 1)), media.Text{Stream: 1}, fromVTT},
		{"late", alone("a.srt", srt), media.Text{Offset: 3.25}, `WEBVTT

00:00:00.000 --> 00:00:00.750
two --&gt; lines
of <b>bold &amp; <u>under</u></b><u>lined</u>

00:00:01.250 --> 00:00:01.750
Zażółć 日本語
`},
		{"mov_text", func() string {
			return clip(t, "a.mp4", "-i", write(t, "a.srt", "1\n00:00:01,000 --> 00:00:02,500\n<i>Leaning</i> & no, <b>ż</b> & <u>x</u>\n\n2\n00:00:03,000 --> 00:00:04,000\nend\n"), "-c:s", "mov_text")
		}(), media.Text{}, `WEBVTT

00:00:01.000 --> 00:00:02.500
<i>Leaning</i> &amp; no, <b>ż</b> &amp; <u>x</u>

00:00:03.000 --> 00:00:04.000
end
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			source, err := transcode.Probe(tt.path, 0)
			if err != nil || source.Streams[tt.ask.Stream].Kind != "subtitle" || tt.ask.Stream == 1 && source.Streams[1].Language != "pl" {
				t.Fatalf("%+v, %v", source, err)
			}
			got, err := transcode.Text(tt.path, tt.ask)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, string(got)); d != "" {
				t.Error(d)
			}
			// The program must read all cues.
			out, err := exec.Command("ffprobe", "-v", "error", "-show_entries", "packet=pts_time", write(t, "out.vtt", string(got))).CombinedOutput()
			if n := strings.Count(tt.want, " --> "); err != nil || bytes.Count(out, []byte("pts_time=")) != n {
				t.Errorf("%v, %s; want %d cues", err, out, n)
			}
		})
	}
}

// TestTextOdd: absurd cues are dropped or reduced to their sensible part.
func TestTextOdd(t *testing.T) {
	checkLeaks(t)
	var many strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&many, "%d\n00:00:01,000 --> 00:00:02,000\nx%[1]d\n\n", i+1)
	}
	long := strings.Repeat("<b>long & ", 100_000)
	for _, tt := range []struct{ name, srt, want string }{
		{"negative", "1\n00:00:03,000 --> 00:00:02,000\nback\n\n2\n00:00:04,000 --> 00:00:05,000\nok\n", "WEBVTT\n\n00:00:03.000 --> 00:00:04.000\nback\n\n00:00:04.000 --> 00:00:05.000\nok\n"},
		{"out of order", "1\n00:00:04,000 --> 00:00:05,000\nb\n\n2\n00:00:01,000 --> 00:00:09,000\na\n", "WEBVTT\n\n00:00:01.000 --> 00:00:09.000\na\n\n00:00:04.000 --> 00:00:05.000\nb\n"},
		{"endless", "1\n00:00:04,000 --> 100:00:00,000\nb\n", "WEBVTT\n\n00:00:04.000 --> 48:00:00.000\nb\n"},
		{"never", "1\n00:00:04,000 --> 00:00:05,000\na\n\n2\n999999:00:04,000 --> 999999:00:05,000\nb\n", "WEBVTT\n\n00:00:04.000 --> 00:00:05.000\na\n"},
		{"nothing", "1\n00:00:04,000 --> 00:00:05,000\n<i> </i>\n\n2\n00:00:05,000 --> 00:00:06,000\nab\x07\n", "WEBVTT\n\n00:00:05.000 --> 00:00:06.000\nab\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := transcode.Text(write(t, "a.srt", tt.srt), media.Text{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, string(got)); d != "" {
				t.Error(d)
			}
		})
	}
	got, err := transcode.Text(write(t, "a.srt", "1\n00:00:01,000 --> 00:00:02,000\n"+long), media.Text{})
	if err != nil || len(got) < 4<<10 || len(got) > 12<<10 || !bytes.HasSuffix(got, []byte("</b>\n")) {
		t.Errorf("of a long cue %d bytes, %v", len(got), err)
	}
	if got, err := transcode.Text(write(t, "a.srt", many.String()), media.Text{}); err == nil {
		t.Errorf("of too many cues %d bytes", len(got))
	}
}

// TestTextRefused: subtitles made of pictures are refused, and so are films.
func TestTextRefused(t *testing.T) {
	checkLeaks(t)
	path := clip(t, "a.mkv", "-f", "lavfi", "-i", "testsrc=size=64x64:duration=1", "-i", write(t, "a.srt", srt))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pictures := write(t, "b.mkv", string(bytes.ReplaceAll(b, []byte("S_TEXT/ASS"), []byte("S_HDMV/PGS"))))
	for _, tt := range []struct {
		path   string
		stream int
		want   string
	}{
		{pictures, 1, "pictures (hdmv_pgs_subtitle)"},
		{path, 0, "no subtitle"},
		{path, 2, "no subtitle"},
		{path, -1, "no subtitle"},
	} {
		if got, err := transcode.Text(tt.path, media.Text{Stream: tt.stream}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q, %v; want %s", got, err, tt.want)
		}
	}
}
