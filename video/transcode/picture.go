package transcode

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// MostPixels is the most pixels of a decoded picture: 8192 × 4320.
const MostPixels = 8192 * 4320

var errNoPicture = errors.New("no picture of the video could be decoded")

// look is the format for which filters are made. If the look changes within a stream, new filters
// are made.
type look struct {
	width, height, format int
	ratio                 ffmpeg.Rational // width to height of a pixel; 0/1: unknown
	colour                ffmpeg.Colour
}

func lookOf(f *ffmpeg.Frame) look {
	return look{f.Width(), f.Height(), f.Format(), f.SampleRatio(), f.Colour()}
}

// source returns the input filter for pictures of the look, with times in units of base.
func (l look) source(base ffmpeg.Rational) string {
	return fmt.Sprintf("buffer=video_size=%dx%d:pix_fmt=%d:time_base=%s:pixel_aspect=%d/%d", l.width, l.height, l.format, base, l.ratio.Num, max(l.ratio.Den, 1))
}

// upright returns the filters to turn and mirror a stream's pictures by its display matrix. Each
// filter begins with a comma.
func upright(s ffmpeg.Stream) string {
	turn := map[int]string{90: ",transpose=clock", 180: ",hflip,vflip", 270: ",transpose=cclock"}[s.Rotation]
	if s.Mirrored {
		return ",hflip" + turn
	}
	return turn
}

// mostStretched is the largest ratio between the sides of a pixel. A larger ratio in a source is
// ignored.
const mostStretched = 16

// shown returns the size of a stream's pictures in pixels, upright and with square pixels.
func shown(s ffmpeg.Stream, width, height int, ratio ffmpeg.Rational) (w, h int) {
	if s.FixedRatio || ratio.Num == 0 {
		ratio = s.SampleRatio
	}
	if r := ratio.Float(); r >= 1./mostStretched && r <= mostStretched {
		width = int(math.Round(float64(width) * r))
	}
	if s.Rotation%180 != 0 {
		width, height = height, width
	}
	return width, height
}

// fit returns the size of a w × h picture scaled into an area with its shape kept. If less than a
// fiftieth would stay free, the picture fills the area.
func fit(w, h, width, height int) (int, int) {
	scale := min(float64(width)/float64(w), float64(height)/float64(h))
	even := func(v float64, most int) int { return min(max(2, int(math.Round(v/2))*2), most) }
	in, high := even(float64(w)*scale, width), even(float64(h)*scale, height)
	if 50*(width-in) < width && 50*(height-high) < height {
		return width, height
	}
	return in, high
}

// target is the format of a rendition's pictures.
type target struct {
	width, height int
	format        string
	colour        media.Colour
}

// matrices maps matrices to their names in the filter scale.
var matrices = map[int]string{1: "bt709", 4: "fcc", 5: "bt470", 6: "smpte170m", 7: "smpte240m", 9: "bt2020", 10: "bt2020"}

// plain reports whether the filter scale can convert the colours: it knows matrices and ranges.
// All else needs zscale, at ten times the cost.
func plain(from, to media.Colour) bool {
	return from.Primaries == to.Primaries && from.Transfer == to.Transfer && (from.Matrix == to.Matrix || from.Matrix == media.RGB || matrices[from.Matrix] != "")
}

// scaled returns the filters from pictures of the shown size w × h to a target. [plain] must
// hold. The shape stays, with black bars at the sides or above and below.
func scaled(w, h int, from media.Colour, to target) string {
	inner, high := fit(w, h, to.width, to.height)
	var b strings.Builder
	fmt.Fprintf(&b, "scale=%d:%d:flags=bicubic", inner, high)
	switch {
	case from.Matrix == media.RGB:
		fmt.Fprintf(&b, ":out_color_matrix=%s", matrices[to.colour.Matrix])
	case from.Matrix != to.colour.Matrix:
		fmt.Fprintf(&b, ":in_color_matrix=%s:out_color_matrix=%s", matrices[from.Matrix], matrices[to.colour.Matrix])
	}
	if from.Full && from.Matrix != media.RGB {
		b.WriteString(":in_range=full")
	}
	if to.colour.Full {
		b.WriteString(":out_range=full")
	} else {
		b.WriteString(":out_range=limited")
	}
	fmt.Fprintf(&b, ",format=%s,setsar=1", to.format)
	if inner != to.width || high != to.height {
		fmt.Fprintf(&b, ",pad=%d:%d:(ow-iw)/2:(oh-ih)/2", to.width, to.height)
	}
	return b.String()
}

// white is the luminance of HDR's reference white (BT.2408), usualTop the assumed peak of a
// source without a stated peak, in candelas per square metre.
const (
	white    = 203
	usualTop = 1000
)

// converted returns the filters for colours beyond [plain], in a size. HDR is mapped to the range
// of every screen, with the midtones kept.
func converted(from, to media.Colour, width, height int) string {
	into := "limited"
	if from.Full {
		into = "full"
	}
	transfer := from.Transfer
	if transfer == 7 { // zscale has no name for SMPTE 240M's, which is nearly BT.709's
		transfer = media.BT709
	}
	in := fmt.Sprintf("crop=trunc(iw/2)*2:trunc(ih/2)*2,zscale=w=%d:h=%d:filter=bicubic:pin=%d:tin=%d:rin=%s", width, height, from.Primaries, transfer, into)
	if from.Matrix != media.RGB {
		in += fmt.Sprintf(":min=%d", from.Matrix)
	}
	out := fmt.Sprintf("p=%d:t=%d:m=%d:r=limited", to.Primaries, to.Transfer, to.Matrix)
	if !from.HDR() || to.HDR() {
		return in + ":" + out + ",format=" + formatOf(to)
	}
	top := from.Peak
	if top <= 0 || from.Transfer == media.HLG {
		top = usualTop
	}
	return fmt.Sprintf("%s:t=linear:npl=%d,format=gbrpf32le,zscale=p=%d,tonemap=mobius:desat=0:peak=%.3f,zscale=%s,format=%s",
		in, white, to.Primaries, min(max(top, 1.5*white), 10_000)/white, out, formatOf(to))
}

// formatOf returns the pixel format of a rendition with colours c.
func formatOf(c media.Colour) string {
	if c.HDR() {
		return "yuv420p10le"
	}
	return pixelFormat
}

// colourOf returns a picture's colours. Unstated values come from the stream, or else from the
// picture's size.
func colourOf(l look, s ffmpeg.Stream, peak float64) media.Colour {
	c := media.Colour{Primaries: l.colour.Primaries, Transfer: l.colour.Transfer, Matrix: l.colour.Matrix, Full: l.colour.Full || s.Colour.Full, Peak: peak}
	for _, v := range []struct {
		to   *int
		from int
	}{{&c.Primaries, s.Colour.Primaries}, {&c.Transfer, s.Colour.Transfer}, {&c.Matrix, s.Colour.Matrix}} {
		if *v.to == media.Unsaid {
			*v.to = v.from
		}
	}
	if c.Matrix == media.RGB && l.colour.Matrix != media.RGB {
		c.Matrix = media.Unsaid
	}
	return c.Known(s.Width, s.Height)
}

// pixelFormat is the pixel format of renditions without HDR.
const pixelFormat = "yuv420p"
