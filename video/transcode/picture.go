package transcode

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// MostPixels of a picture, decoded: 8192 × 4320.
const MostPixels = 8192 * 4320

var errNoPicture = errors.New("no picture of the video could be decoded")

// look is what filters are made for, and rely on: others are made where it changes within a
// stream.
type look struct {
	width, height, format int
	ratio                 ffmpeg.Rational // width to height of a pixel; 0/1 if it is not said
	colour                ffmpeg.Colour
}

func lookOf(f *ffmpeg.Frame) look {
	return look{f.Width(), f.Height(), f.Format(), f.SampleRatio(), f.Colour()}
}

// source is the filter that takes in such pictures, whose times are in a unit.
func (l look) source(base ffmpeg.Rational) string {
	return fmt.Sprintf("buffer=video_size=%dx%d:pix_fmt=%d:time_base=%s:pixel_aspect=%d/%d", l.width, l.height, l.format, base, l.ratio.Num, max(l.ratio.Den, 1))
}

// upright are the filters that turn and mirror pictures of a stream as its display matrix
// says; each begins with a comma.
func upright(s ffmpeg.Stream) string {
	turn := map[int]string{90: ",transpose=clock", 180: ",hflip,vflip", 270: ",transpose=cclock"}[s.Rotation]
	if s.Mirrored {
		return ",hflip" + turn
	}
	return turn
}

// mostStretched is how much wider or higher than a square a pixel may be; what says more
// is not believed.
const mostStretched = 16

// shown is the size in pixels of pictures of a stream when they are upright, and pixels
// square.
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

// fit is the size of pictures of w × h within an area, whose shape they keep: all of it where
// less than a fiftieth would stay free.
func fit(w, h, width, height int) (int, int) {
	scale := min(float64(width)/float64(w), float64(height)/float64(h))
	even := func(v float64, most int) int { return min(max(2, int(math.Round(v/2))*2), most) }
	in, high := even(float64(w)*scale, width), even(float64(h)*scale, height)
	if 50*(width-in) < width && 50*(height-high) < height {
		return width, height
	}
	return in, high
}

// target is what pictures are made into.
type target struct {
	width, height int
	format        string
	colour        media.Colour
}

// matrices are the names that the filter scale has for those that it knows.
var matrices = map[int]string{1: "bt709", 4: "fcc", 5: "bt470", 6: "smpte170m", 7: "smpte240m", 9: "bt2020", 10: "bt2020"}

// plain says whether the filter scale, which knows matrices and ranges, makes the colours; for
// others zscale is needed, which takes ten times as long.
func plain(from, to media.Colour) bool {
	return from.Primaries == to.Primaries && from.Transfer == to.Transfer && (from.Matrix == to.Matrix || from.Matrix == media.RGB || matrices[from.Matrix] != "")
}

// scaled are the filters that make pictures of a size as they are shown, in colours for which
// [plain] does, into a target: in their own shape, with black beside it or above it.
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

// Of HDR, white is as bright as BT.2408 has it, and what says nothing of its brightest is made
// for screens of so many candelas per square metre.
const (
	white    = 203
	usualTop = 1000
)

// converted are the filters that make colours of others that [plain] does not do for, in a
// size; HDR is mapped to what every screen can show, midtones as they are.
func converted(from, to media.Colour, width, height int) string {
	into := "limited"
	if from.Full {
		into = "full"
	}
	transfer := from.Transfer
	if transfer == 7 { // zscale has no name for that of SMPTE 240M, which is nearly BT.709's
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

// formatOf is the pixel format of what is made in colours.
func formatOf(c media.Colour) string {
	if c.HDR() {
		return "yuv420p10le"
	}
	return pixelFormat
}

// colourOf is what a picture's colours are: what it does not say, its stream does, or its
// size.
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
