package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// mostSheet is the most pixels of a sheet, mostSide the longest side: JPEG's limit.
const (
	mostSheet = 64 << 20
	mostSide  = 65500
)

// Thumbs draws small pictures of a video at 0, 1, 2, … intervals on sheets, at most
// [media.MostThumbs] pictures. They are upright with square pixels. The height is even and at
// most four times the width, whatever shape a file states.
//
// If every picture has a key frame within 0.6 of an interval, Thumbs takes the nearest key frames
// and decodes no other frame: this is 10 to 50 times cheaper. Else each picture is the frame
// shown at its time, or a frame it refers to.
func Thumbs(path string, t media.Thumbs) (*media.Sheets, [][]byte, error) {
	if !drawable(t) {
		return nil, nil, fmt.Errorf("pictures of %d pixels each %v seconds on sheets of %d × %d", t.Width, t.Interval, t.Columns, t.Rows)
	}
	s := &survey{}
	if err := s.run(path, t); err != nil {
		return nil, nil, err
	}
	d := &drawing{t: t, scaled: ffmpeg.NewFrame(), packet: ffmpeg.NewPacket(), last: ffmpeg.NewFrame()}
	defer d.close()
	if err := d.open(s); err != nil {
		return nil, nil, err
	}
	if err := d.keys(path, s.nearest(d.head.Interval, d.head.Count)); err != nil {
		return nil, nil, err
	}
	if !d.any { // no key frames near enough, or none can be decoded
		if err := d.allFrames(path); err != nil {
			return nil, nil, err
		}
	}
	if err := d.end(); err != nil {
		return nil, nil, err
	}
	return &d.head, d.sheets, nil
}

// drawable reports whether the sizes and the interval are in their limits.
func drawable(t media.Thumbs) bool {
	return t.Interval >= 0.01 && t.Interval <= MostSeconds && t.Width >= 2 && t.Width <= mostSide && t.Width%2 == 0 && t.Columns >= 1 && t.Rows >= 1 &&
		t.Columns <= mostSide/t.Width
}

// survey is the contents of a stream according to its packets, without decoding.
type survey struct {
	stream ffmpeg.Stream
	keys   []keyFrame
	end    float64 // of the last frame, in seconds
}

// keyFrame is a key frame.
type keyFrame struct {
	at     float64 // seconds
	packet int     // number of the stream's packet, from 0
}

// mostKeys is the most key frames of a survey. At this number every second key frame is dropped.
const mostKeys = 1 << 20

func (s *survey) run(path string, t media.Thumbs) error {
	r, err := open(path, t.Stream, ffmpeg.Video, t.Offset, t.Joined)
	if err != nil {
		return err
	}
	defer r.close()
	r.upTo(t.Most)
	s.stream = r.stream
	second := r.stream.TimeBase.Float()
	for n := 0; ; n++ {
		if err := r.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		at, ok := r.at()
		if !ok {
			at = s.end
		}
		if at > r.most {
			continue
		}
		s.end = max(s.end, min(at+float64(max(r.packet.Duration(), r.step))*second, r.most))
		if r.packet.Key() {
			s.keys = append(s.keys, keyFrame{at, n})
		}
		if len(s.keys) == mostKeys {
			for i := range mostKeys / 2 {
				s.keys[i] = s.keys[2*i]
			}
			s.keys = s.keys[:mostKeys/2]
		}
	}
}

// nearest returns the key frames to decode for n pictures, in packet order. The result is nil if
// any picture has no key frame near enough. The last picture may have one within an interval.
func (s *survey) nearest(interval float64, n int) []keyFrame {
	slices.SortStableFunc(s.keys, func(a, b keyFrame) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	var chosen []keyFrame
	i := 0
	for p := range n {
		at := float64(p) * interval
		for i+1 < len(s.keys) && math.Abs(s.keys[i+1].at-at) <= math.Abs(s.keys[i].at-at) {
			i++
		}
		far := 0.6 * interval
		if p == n-1 {
			far = interval
		}
		if i == len(s.keys) || math.Abs(s.keys[i].at-at) > far {
			return nil
		}
		if len(chosen) == 0 || chosen[len(chosen)-1] != s.keys[i] {
			chosen = append(chosen, s.keys[i])
		}
	}
	slices.SortFunc(chosen, func(a, b keyFrame) int { return a.packet - b.packet })
	return chosen
}

// drawing is a set of sheets being made.
type drawing struct {
	t      media.Thumbs
	stream ffmpeg.Stream

	graph *ffmpeg.Graph // for pictures with the size and format in look
	look  look

	any    bool          // a picture was decoded
	last   *ffmpeg.Frame // the last decoded picture
	at     float64       // its time, in seconds
	placed int           // number of pictures on sheets

	scaled  *ffmpeg.Frame
	sheet   *ffmpeg.Frame // nil between two sheets
	encoder *ffmpeg.Encoder
	packet  *ffmpeg.Packet // encoded
	head    media.Sheets
	sheets  [][]byte
}

func (d *drawing) close() {
	d.last.Close()
	d.scaled.Close()
	d.packet.Close()
	if d.sheet != nil {
		d.sheet.Close()
	}
	if d.graph != nil {
		d.graph.Close()
	}
	if d.encoder != nil {
		d.encoder.Close()
	}
}

// open computes the interval, the count and the size of the pictures.
func (d *drawing) open(s *survey) (err error) {
	d.stream = s.stream
	interval := d.t.Interval
	if n := math.Ceil(s.end / interval); n > media.MostThumbs {
		interval *= math.Ceil(n / media.MostThumbs)
	}
	d.head.Interval, d.head.Count = interval, max(1, int(math.Ceil(s.end/interval-1e-9)))
	d.head.Width, d.head.Height = d.t.Width, d.t.Width
	if w, h := shown(d.stream, d.stream.Width, d.stream.Height, ffmpeg.Rational{}); w > 0 && h > 0 {
		d.head.Height = int(math.Round(float64(d.t.Width)*float64(h)/float64(w)/2)) * 2
	}
	d.head.Height = min(max(d.head.Height, 2), 4*d.t.Width)
	if d.t.Rows > mostSide/d.head.Height || d.t.Columns*d.t.Width*d.t.Rows*d.head.Height > mostSheet {
		return fmt.Errorf("sheets of %d × %d pictures of %d × %d pixels are too large", d.t.Columns, d.t.Rows, d.head.Width, d.head.Height)
	}
	d.encoder, err = ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
		Codec: "mjpeg", TimeBase: ffmpeg.Rational{Num: 1, Den: 1}, FrameRate: ffmpeg.Rational{Num: 1, Den: 1}, Threads: 1,
		Width: d.t.Columns * d.head.Width, Height: d.t.Rows * d.head.Height, PixelFormat: "yuvj420p", SampleRatio: ffmpeg.Rational{Num: 1, Den: 1},
		Options: map[string]string{"qmin": "4", "qmax": "4"},
	})
	return err
}

// keys draws key frames, each decoded on its own.
func (d *drawing) keys(path string, keys []keyFrame) error {
	if len(keys) == 0 {
		return nil
	}
	r, err := open(path, d.t.Stream, ffmpeg.Video, d.t.Offset, d.t.Joined)
	if err != nil {
		return err
	}
	defer r.close()
	decoder, err := ffmpeg.NewDecoder(r.in, d.t.Stream, ffmpeg.DecoderOptions{Threads: 1, Skip: ffmpeg.SkipNonKey, MostSize: MostPixels})
	if err != nil {
		return err
	}
	defer decoder.Close()
	frame := ffmpeg.NewFrame()
	defer frame.Close()
	for n := 0; len(keys) > 0; n++ {
		if err := r.next(); err != nil {
			return err
		}
		if n != keys[0].packet {
			continue
		}
		if decoder.Send(r.packet) == nil && decoder.Send(nil) == nil && decoder.Receive(frame) == nil {
			if err := d.take(frame, keys[0].at, (d.at+keys[0].at)/2); err != nil {
				return err
			}
		}
		decoder.Flush()
		keys = keys[1:]
	}
	return nil
}

// allFrames decodes the whole video and draws the frame shown at each time.
func (d *drawing) allFrames(path string) error {
	r, err := open(path, d.t.Stream, ffmpeg.Video, d.t.Offset, d.t.Joined)
	if err != nil {
		return err
	}
	defer r.close()
	err = r.decode(ffmpeg.DecoderOptions{Skip: ffmpeg.SkipNonRef}, func() bool { return d.placed == d.head.Count }, func(f *ffmpeg.Frame) error {
		at := r.seconds(f.PTS())
		return d.take(f, at, at-1e-6)
	})
	if err == nil && !d.any {
		return errNoPicture
	}
	return err
}

// take takes the picture shown from at seconds on. The picture before is drawn for all times
// before until.
func (d *drawing) take(f *ffmpeg.Frame, at, until float64) error {
	if d.any {
		if at <= d.at {
			return nil
		}
		if err := d.draw(until); err != nil {
			return err
		}
	}
	d.any, d.at = true, at
	d.last.Take(f)
	return nil
}

// end draws the last picture for all remaining times and ends the last sheet.
func (d *drawing) end() error {
	if err := d.draw(math.Inf(1)); err != nil {
		return err
	}
	if d.sheet != nil {
		return d.encode()
	}
	return nil
}

// draw draws the last decoded picture for every thumbnail with a time before until.
func (d *drawing) draw(until float64) error {
	wanted := func() bool { return d.placed < d.head.Count && float64(d.placed)*d.head.Interval < until }
	if !wanted() {
		return nil
	}
	if err := d.scale(); err != nil {
		return err
	}
	for ; wanted(); d.placed++ {
		if err := d.place(); err != nil {
			return err
		}
	}
	return nil
}

// scale scales d.last into d.scaled.
func (d *drawing) scale() error {
	f := d.last
	if l := lookOf(f); d.graph == nil || l != d.look {
		if d.graph != nil {
			d.graph.Close()
		}
		var err error
		d.graph, err = ffmpeg.NewGraph(l.source(d.stream.TimeBase)+upright(d.stream)+","+d.small(l, f.Peak())+",buffersink", 1)
		if err != nil {
			return err
		}
		d.look = l
	}
	if err := d.graph.Send(f); err != nil {
		return err
	}
	return d.graph.Receive(0, d.scaled)
}

// small returns the filters for small pictures of a look, in JPEG's colours (T.871).
func (d *drawing) small(l look, peak float64) string {
	from := colourOf(l, d.stream, peak)
	to := from.Plain()
	jpeg := target{d.head.Width, d.head.Height, "yuvj420p", media.Colour{Primaries: to.Primaries, Transfer: to.Transfer, Matrix: media.BT470BG, Full: true}}
	w, h := shown(d.stream, l.width, l.height, l.ratio)
	if plain(from, jpeg.colour) {
		return scaled(w, h, from, jpeg)
	}
	inner, high := fit(w, h, d.head.Width, d.head.Height)
	return converted(from, to, inner, high) + "," + scaled(w, h, to, jpeg)
}

// place copies d.scaled to the next position on the sheet.
func (d *drawing) place() error {
	each := d.t.Columns * d.t.Rows
	n := d.placed % each
	if n == 0 {
		if err := d.blank(); err != nil {
			return err
		}
	}
	left, top := n%d.t.Columns*d.head.Width, n/d.t.Columns*d.head.Height
	for i := range 3 {
		shift := min(i, 1) // the planes of colour have half the width and height
		from, to := d.scaled.Plane(i), d.sheet.Plane(i)
		for y := range d.head.Height >> shift {
			line := from[y*d.scaled.Stride(i):][:d.head.Width>>shift]
			copy(to[(top>>shift+y)*d.sheet.Stride(i)+left>>shift:], line)
		}
	}
	if n == each-1 {
		return d.encode()
	}
	return nil
}

// blank starts a black sheet.
func (d *drawing) blank() (err error) {
	if d.sheet, err = ffmpeg.NewPicture(d.t.Columns*d.head.Width, d.t.Rows*d.head.Height, "yuvj420p"); err != nil {
		return err
	}
	for i, value := range []byte{0, 128, 128} {
		p := d.sheet.Plane(i)
		for j := range p {
			p[j] = value
		}
	}
	d.sheet.SetPTS(int64(len(d.sheets)))
	return nil
}

// encode encodes and ends a sheet.
func (d *drawing) encode() error {
	err := d.encoder.Send(d.sheet)
	d.sheet.Close()
	d.sheet = nil
	if err != nil {
		return err
	}
	if err := d.encoder.Receive(d.packet); err != nil {
		return err
	}
	d.sheets = append(d.sheets, bytes.Clone(d.packet.Data()))
	d.head.Sheets = append(d.head.Sheets, len(d.packet.Data()))
	return nil
}
