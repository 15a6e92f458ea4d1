package transcode

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// Limits of a track of subtitles.
const (
	mostCue    = 4 << 10  // bytes of a cue's text; the rest is dropped
	mostText   = 16 << 20 // bytes of all cues, plus 64 for each
	openEnded  = 5000     // milliseconds for which a cue without an end is shown, at most
	mostMillis = MostSeconds * 1000
)

var errTooMuchText = fmt.Errorf("the subtitles have more than %d bytes", mostText)

// Text converts a track of subtitles to WebVTT (https://www.w3.org/TR/webvtt1/): SubRip, ASS,
// MP4's timed text, WebVTT or plain text, within a film or as a file. Bold, italic and underlined
// text stays, and of WebVTT also voices, classes and positions. Times count from the start of the
// source; a cue that ends before is dropped. Text that is not UTF-8 is read as Windows-1252.
func Text(path string, t media.Text) ([]byte, error) {
	r, err := open(path, t.Stream, ffmpeg.Subtitle, t.Offset, t.Joined)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var read func(*payload, []byte)
	switch r.stream.Codec {
	case "subrip", "srt":
		read = func(p *payload, b []byte) { p.html(b, false) }
	case "webvtt":
		read = func(p *payload, b []byte) { p.html(b, true) }
	case "ass", "ssa":
		read = (*payload).ass
	case "mov_text":
		read = (*payload).timed
	case "text":
		read = func(p *payload, b []byte) { p.text(utf8Of(b)) }
	case "dvd_subtitle", "dvb_subtitle", "hdmv_pgs_subtitle", "xsub":
		return nil, fmt.Errorf("the subtitles of stream %d are pictures (%s), not text", t.Stream, r.stream.Codec)
	default:
		return nil, fmt.Errorf("subtitles in %s cannot be read", r.stream.Codec)
	}
	var list cues
	if r.in.Format() == "webvtt" {
		err = list.file(path, t.Offset)
	} else {
		err = list.packets(r, read)
	}
	if err != nil {
		return nil, err
	}
	return list.webVTT(), nil
}

// cue is a text with its time, in milliseconds.
type cue struct {
	begin, end int64 // end 0: unknown
	settings   string
	text       string
}

// cues holds the cues of a track.
type cues struct {
	all  []cue
	size int // bytes of all texts, plus overhead
}

// packets reads the cues of a stream.
func (c *cues) packets(r *reading, read func(*payload, []byte)) error {
	for {
		err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		at, ok := r.at()
		if !ok {
			continue
		}
		p := &payload{}
		read(p, head(r.packet.Data()))
		if err := c.add(at, float64(r.packet.Duration())*r.stream.TimeBase.Float(), r.packet.Settings(), p.finish()); err != nil {
			return err
		}
	}
}

// head returns the start of a text that is too long for a cue.
func head(b []byte) []byte {
	if len(b) <= 8*mostCue {
		return b
	}
	b = b[:8*mostCue]
	for len(b) > 0 && b[len(b)-1] >= utf8.RuneSelf { // the cut may be within a character
		b = b[:len(b)-1]
	}
	return b
}

// file reads the cues of a WebVTT file. FFmpeg's libraries stop at the first style.
func (c *cues) file(path string, offset float64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostText+1))
	if err != nil {
		return err
	}
	if len(b) > mostText {
		return errTooMuchText
	}
	return c.parse(utf8Of(b), offset)
}

func (c *cues) parse(text string, offset float64) error {
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text), "\n")
	for i := 0; i < len(lines); i++ {
		from, to, ok := strings.Cut(lines[i], "-->")
		if !ok {
			continue
		}
		until, settings, _ := strings.Cut(strings.TrimSpace(to), " ")
		begin, end := seconds(strings.TrimSpace(from)), seconds(until)
		first := i + 1
		for i+1 < len(lines) && lines[i+1] != "" && !strings.Contains(lines[i+1], "-->") {
			i++
		}
		if math.IsNaN(begin) || math.IsNaN(end) || end <= begin {
			continue
		}
		p := &payload{}
		p.html(head([]byte(strings.Join(lines[first:i+1], "\n"))), true)
		if err := c.add(begin-offset, end-begin, settings, p.finish()); err != nil {
			return err
		}
	}
	return nil
}

// seconds parses a time such as 01:02:03.456 or 02:03.456; NaN if it is invalid.
func seconds(clock string) float64 {
	parts := strings.Split(clock, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return math.NaN()
	}
	t := 0.0
	for _, p := range parts {
		v, err := strconv.ParseFloat(strings.Replace(p, ",", ".", 1), 64)
		if err != nil || strings.Trim(p, "0123456789.,") != "" {
			return math.NaN()
		}
		t = 60*t + v
	}
	return t
}

// add adds a cue, unless it is invisible. A length of 0 or less means unknown.
func (c *cues) add(begin, length float64, how, text string) error {
	n := cue{begin: millis(begin), settings: settings(how), text: text}
	if length > 0 {
		n.end = millis(begin + length)
		if n.end <= n.begin {
			return nil
		}
	}
	if text == "" || begin < 0 && length <= 0 || begin > MostSeconds {
		return nil
	}
	if c.size += len(text) + 64; c.size > mostText {
		return errTooMuchText
	}
	c.all = append(c.all, n)
	return nil
}

// millis converts seconds to milliseconds, within 0 and mostMillis.
func millis(s float64) int64 { return int64(math.Round(min(max(s*1000, 0), mostMillis))) }

// settings keeps the cue settings of WebVTT that every player knows.
func settings(s string) string {
	var kept []string
	for f := range strings.FieldsSeq(s) {
		name, value, _ := strings.Cut(f, ":")
		odd := func(r rune) bool { return !strings.ContainsRune("0123456789.%,-abcdefghijklmnopqrstuvwxyz", r) }
		if slices.Contains([]string{"vertical", "line", "position", "size", "align"}, name) && value != "" && !strings.ContainsFunc(value, odd) && len(f) < 64 {
			kept = append(kept, f)
		}
	}
	return strings.Join(kept, " ")
}

// webVTT writes the cues, sorted by time.
func (c *cues) webVTT() []byte {
	cues := c.all
	slices.SortStableFunc(cues, func(a, b cue) int { return cmp.Compare(a.begin, b.begin) })
	var later int64 // beginning of the next later cue
	for i := len(cues) - 1; i >= 0; i-- {
		if i+1 < len(cues) && cues[i+1].begin > cues[i].begin {
			later = cues[i+1].begin
		}
		if c := &cues[i]; c.end == 0 {
			if c.end = c.begin + openEnded; later > 0 {
				c.end = min(c.end, later)
			}
		}
	}
	var b bytes.Buffer
	b.WriteString("WEBVTT\n")
	for _, c := range cues {
		fmt.Fprintf(&b, "\n%s --> %s", clock(c.begin), clock(c.end))
		if c.settings != "" {
			b.WriteString(" " + c.settings)
		}
		b.WriteString("\n" + c.text + "\n")
	}
	return b.Bytes()
}

func clock(ms int64) string {
	return fmt.Sprintf("%02d:%02d:%02d.%03d", ms/3_600_000, ms/60_000%60, ms/1000%60, ms%1000)
}
