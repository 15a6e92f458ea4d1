package transcode

import (
	"errors"
	"fmt"
	"math"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// MostPixels of a picture, decoded: 8192 × 4320.
const MostPixels = 8192 * 4320

var errNoPicture = errors.New("no picture of the video could be decoded")

// upright are the filters that pictures of a stream go through first, from their source on:
// they turn them upright. What comes may change within a stream; it is made as f is, the
// first, for other filters rely on that.
func upright(f *ffmpeg.Frame, s ffmpeg.Stream) string {
	sar := f.SampleRatio()
	d := fmt.Sprintf("buffer=video_size=%dx%d:pix_fmt=%d:time_base=%s:pixel_aspect=%d/%d,scale=%[1]d:%[2]d:flags=bicubic",
		f.Width(), f.Height(), f.Format(), s.TimeBase, sar.Num, max(sar.Den, 1))
	if s.Mirrored {
		d += ",hflip"
	}
	switch s.Rotation {
	case 90:
		d += ",transpose=clock"
	case 180:
		d += ",hflip,vflip"
	case 270:
		d += ",transpose=cclock"
	}
	return d
}

// mostStretched is how much wider or higher than a square a pixel may be; what says more
// is not believed.
const mostStretched = 16

// shown is the size in pixels of a stream's pictures when they are upright, and pixels
// square.
func shown(s ffmpeg.Stream) (width, height int) {
	width, height = s.Width, s.Height
	if r := s.SampleRatio.Float(); r >= 1./mostStretched && r <= mostStretched {
		width = int(math.Round(float64(width) * r))
	}
	if s.Rotation%180 != 0 {
		width, height = height, width
	}
	return width, height
}
