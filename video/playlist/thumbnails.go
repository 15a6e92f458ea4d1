package playlist

import (
	"bytes"
	"fmt"

	"github.com/fre-engine/fre/video/asset"
)

// Thumbnails returns a WebVTT file with a cue for each thumbnail: its sheet, and its position as
// a media fragment (xywh). The asset must have thumbnails.
func Thumbnails(a *asset.Asset) []byte {
	t := a.Thumbnails
	var b bytes.Buffer
	b.WriteString("WEBVTT\n")
	for n := range t.Count {
		from, to := float64(n)*t.Interval, float64(n+1)*t.Interval
		if n == t.Count-1 {
			to = max(to, a.Duration)
		}
		on := n % (t.Columns * t.Rows)
		fmt.Fprintf(&b, "\n%s --> %s\nthumbs/%d.jpg#xywh=%d,%d,%d,%d\n", clock(from), clock(to),
			n/(t.Columns*t.Rows), on%t.Columns*t.Width, on/t.Columns*t.Height, t.Width, t.Height)
	}
	return b.Bytes()
}

// clock formats a time for WebVTT.
func clock(seconds float64) string {
	ms := int64(1000*seconds + 0.5)
	return fmt.Sprintf("%02d:%02d:%02d.%03d", ms/3600000, ms/60000%60, ms/1000%60, ms%1000)
}
