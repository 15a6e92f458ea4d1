package transcode

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzPayload: a packet of subtitles with any content gives the text of one WebVTT cue: no empty
// line, no arrow, bounded length, known and closed tags.
func FuzzPayload(f *testing.F) {
	for _, s := range []string{
		"<i>a</b> & <b>b</i> --> <u", "<v.loud Mary><c.a>x</v>&lt;&amp", "0,0,Default,,0,0,0,,{\\i1\\p1}m 0{\\p0}x\\N{\\r}y{", "\x00\x03a<b\x00\x00\x00\x16styl\x00\x01\x00\x00\x00\x02\x00\x01\x03\x10\xff\xff\xff\xff",
		"\xff\xfea\x00\n\x00\n\x00b\x00", "\xe9\x80<ruby>x<rt>y", "a\u2028\u2028b\r\n\r\nc", strings.Repeat("<b>&", 3000), "<lang a>x</lang><00:01.000>y", "<C00000>x",
	} {
		for kind := range byte(5) {
			f.Add(kind, []byte(s))
		}
	}
	tag := regexp.MustCompile(`<(/?)(b|i|u|ruby|rt|v|c|lang)((?:\.[^ <>&\n]*)?(?: [^<>&\n]*)?)>`)
	entity := regexp.MustCompile(`&(amp|lt|gt);`)
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		p := &payload{}
		switch b := head(b); kind % 5 {
		case 0:
			p.html(b, false)
		case 1:
			p.html(b, true)
		case 2:
			p.ass(b)
		case 3:
			p.timed(b)
		case 4:
			p.text(utf8Of(b))
		}
		got := p.finish()
		var open []string
		rest := tag.ReplaceAllStringFunc(got, func(s string) string {
			m := tag.FindStringSubmatch(s)
			switch {
			case m[1] == "":
				open = append(open, m[2])
			case len(open) == 0 || open[len(open)-1] != m[2]:
				t.Errorf("%q closes %s, open are %v", got, m[2], open)
			default:
				open = open[:len(open)-1]
			}
			return ""
		})
		plain := entity.ReplaceAllString(rest, "")
		if len(open) > 0 || strings.ContainsAny(plain, "<>&\r\x00") || strings.Contains("\n"+got+"\n", "\n\n") && got != "" || !utf8.ValidString(got) || len(got) > 16*mostCue {
			t.Errorf("%q becomes %q, open %v", b, got, open)
		}
	})
}

// FuzzWebVTT: the WebVTT file made from a WebVTT file converts to itself.
func FuzzWebVTT(f *testing.F) {
	for _, s := range []string{
		"WEBVTT\n\n00:01.000 --> 00:02.000 line:0\na\n", "00:00:01,5 --> 100:00:02.000 align:start x\r\n<v M>a\r\nb\r\n\r\n", "x\n-->\n00:01.000-->00:02.000\n00:03.000 --> 00:04.000\nx",
		"00:03.000 --> 00:04.000\nb\n\n00:01.000 --> 99999999:00.000\na &lt;", "00:01.000 --> 00:01.0001\na", "1:2 --> .:1\nx", "00:01.000 --> 00:02.000\n" + strings.Repeat("<b>&</b>", 2000),
	} {
		f.Add([]byte(s))
	}
	made := func(t *testing.T, b []byte) string {
		t.Helper()
		var c cues
		if err := c.parse(utf8Of(b), 0); err != nil {
			return "WEBVTT\n" // there is too much of it
		}
		return string(c.webVTT())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		once := made(t, b)
		if twice := made(t, []byte(once)); twice != once {
			t.Errorf("%q becomes %q, then %q", b, once, twice)
		}
	})
}
