// Package transcode makes renditions of a source: a few segments of its pictures in every rung of
// the ladder, its sound, its subtitles, its thumbnails. The package is the program in the
// sandbox, without the handling of events.
package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// MostFrames is the most frames of a chunk: the encoded chunk is in memory.
const MostFrames = 20_000

// timeScale is the units per second of times in fragments, as in MPEG-TS.
const timeScale = 90000

func checkChunk(c *media.Chunk) error {
	if g := c.Grid; min(g.Rate.Num, g.Rate.Den, g.Segment) < 1 || c.From < 0 || c.From%g.Segment != 0 || len(c.Rungs) == 0 || !bounded(c) {
		return fmt.Errorf("frames %d to %d of a grid of %+v in %d rungs", c.From, c.To, c.Grid, len(c.Rungs))
	}
	for _, r := range c.Rungs {
		if r.Width < 2 || r.Height < 2 || r.Width > MostPixels/r.Height {
			return fmt.Errorf("a rung of %d × %d pixels", r.Width, r.Height)
		}
	}
	return nil
}

// bounded reports whether the chunk's number of frames is possible. A negative To is the source's
// end, which a blank chunk has not.
func bounded(c *media.Chunk) bool {
	if c.To < 0 {
		return !c.Blank
	}
	return c.To > c.From && c.To-c.From <= MostFrames
}

// Chunk decodes part of a video once and encodes it in every rung. A rung has a key frame at the
// start of each segment and no reference to other chunks, so chunks can follow each other. The
// result holds the bytes of each rung, in memory.
func Chunk(path string, c media.Chunk) (*media.Chunked, [][]byte, error) {
	if err := checkChunk(&c); err != nil {
		return nil, nil, err
	}
	c.Rungs = slices.Clone(c.Rungs)
	for i := range c.Rungs {
		if r := &c.Rungs[i]; r.Colour == (media.Colour{}) {
			r.Colour = media.Colour{Primaries: media.Unsaid, Transfer: media.Unsaid, Matrix: media.Unsaid}.Known(c.Rungs[0].Width, c.Rungs[0].Height)
		}
	}
	e := &encoding{c: c, gridded: ffmpeg.NewFrame()}
	defer e.close()
	work := e.blank
	if !c.Blank {
		r, err := open(path, c.Stream, ffmpeg.Video, c.Offset, c.Joined)
		if err != nil {
			return nil, nil, err
		}
		defer r.close()
		e.reading, work = r, e.run
	}
	if err := e.open(); err != nil {
		return nil, nil, err
	}
	if err := work(); err != nil {
		return nil, nil, err
	}
	head := &media.Chunked{Frames: e.rungs[0].frames}
	var bodies [][]byte
	for _, r := range e.rungs {
		head.Rungs = append(head.Rungs, r.made)
		bodies = append(bodies, bytes.Join(r.parts, nil))
	}
	return head, bodies, nil
}

// encoding is a chunk being made. Pictures go through three filter graphs:
//
//	decoder → fields (of interlaced pictures) → grid → shape → an encoder for each rung
//
// A graph is made only if it is needed.
type encoding struct {
	c        media.Chunk
	*reading               // nil for a blank chunk
	fields   *ffmpeg.Graph // nil before the first interlaced picture
	fielded  look          // the look of the input of fields
	grid     *ffmpeg.Graph // nil before the first picture
	gridded  *ffmpeg.Frame // output of grid
	shape    *ffmpeg.Graph // for pictures with the look shaped
	shaped   look
	rungs    []*rung
}

// rung is a rendition of an encoding.
type rung struct {
	codec   *codec
	reorder int // most frames from decoding to showing a picture, from the encoder's header
	want    media.Rung
	encoder *ffmpeg.Encoder // nil before the first picture: SVT-AV1 1.4 never ends without a picture
	packet  *ffmpeg.Packet
	frame   *ffmpeg.Frame
	frames  int // given to the encoder
	fragments
}

func (e *encoding) close() {
	for _, r := range e.rungs {
		if r.encoder != nil {
			r.encoder.Close()
		}
		r.packet.Close()
		r.frame.Close()
	}
	for _, g := range []*ffmpeg.Graph{e.fields, e.grid, e.shape} {
		if g != nil {
			g.Close()
		}
	}
	e.gridded.Close()
}

func (e *encoding) open() error {
	for _, want := range e.c.Rungs {
		codec, err := codecOf(want.Codec)
		if err != nil {
			return err
		}
		e.rungs = append(e.rungs, &rung{
			codec: codec, want: want, packet: ffmpeg.NewPacket(), frame: ffmpeg.NewFrame(),
			fragments: fragments{limit: mostOfRung, number: e.c.From / e.c.Grid.Segment},
		})
	}
	return nil
}

// encoderOf opens a rung's encoder.
func (e *encoding) encoderOf(r *rung) (err error) {
	rate, c := ffmpeg.Rational{Num: e.c.Grid.Rate.Num, Den: e.c.Grid.Rate.Den}, r.want.Colour
	r.encoder, err = ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
		Codec: r.codec.encoder, TimeBase: ffmpeg.Rational{Num: rate.Den, Den: rate.Num}, FrameRate: rate, Threads: e.c.Threads,
		Width: r.want.Width, Height: r.want.Height, PixelFormat: formatOf(c), SampleRatio: ffmpeg.Rational{Num: 1, Den: 1},
		Colour:  ffmpeg.Colour{Primaries: c.Primaries, Transfer: c.Transfer, Matrix: c.Matrix},
		Options: encoderOptions(r.codec, r.want, e.c.Preset, e.c.Grid.Segment, e.c.From == 0),
	})
	return err
}

// base returns the unit of time before the grid: half of the stream's unit, since each field has
// its own time.
func (e *encoding) base() ffmpeg.Rational {
	if b := e.stream.TimeBase; b.Den <= 1<<30 {
		return ffmpeg.Rational{Num: b.Num, Den: 2 * b.Den}
	}
	return e.stream.TimeBase
}

// halved converts a time of the stream to units of base.
func (e *encoding) halved(t int64) int64 { return ffmpeg.Rescale(t, e.stream.TimeBase, e.base()) }

// onGrid makes the filter for the grid: it places pictures on the grid, from the chunk's first
// frame on.
func (e *encoding) onGrid(l look) (err error) {
	rate := e.c.Grid.Rate
	start := float64(e.c.From)*float64(rate.Den)/float64(rate.Num) + e.c.Offset
	e.grid, err = ffmpeg.NewGraph(fmt.Sprintf("%s,fps=fps=%d/%d:start_time=%.9f:round=near,buffersink", l.source(e.base()), rate.Num, rate.Den, start), 1)
	return err
}

// shapes makes the filters for pictures of a look: upright, with square pixels, in the size and
// colours of each rung. zscale converts once for all rungs that need it.
func (e *encoding) shapes(l look, peak float64) error {
	if e.shape != nil {
		e.shape.Close()
		e.shape = nil
	}
	from := colourOf(l, e.stream, peak)
	w, h := shown(e.stream, l.width, l.height, l.ratio)
	var split, made strings.Builder
	var common *media.Rung // the first rung to be converted by zscale
	shared, ways := 0, 0
	for i := range e.c.Rungs {
		r := &e.c.Rungs[i]
		switch {
		case plain(from, r.Colour):
			fmt.Fprintf(&split, "[s%d]", i)
			ways++
		case common == nil:
			common = r
			split.WriteString("[c]")
			ways++
			fallthrough
		default:
			shared++
		}
	}
	if common != nil {
		inner, high := fit(w, h, common.Width, common.Height)
		fmt.Fprintf(&made, ";[c]%s,split=%d", converted(from, common.Colour, inner, high), shared)
		for i, r := range e.c.Rungs {
			if !plain(from, r.Colour) {
				fmt.Fprintf(&made, "[s%d]", i)
			}
		}
	}
	for i, r := range e.c.Rungs {
		of := from
		if !plain(from, r.Colour) {
			of = common.Colour
		}
		fmt.Fprintf(&made, ";[s%d]%s,buffersink", i, scaled(w, h, of, target{r.Width, r.Height, formatOf(r.Colour), r.Colour}))
	}
	var err error
	e.shape, err = ffmpeg.NewGraph(fmt.Sprintf("%s%s,split=%d%s%s", l.source(e.base()), upright(e.stream), ways, &split, &made), e.c.Threads)
	e.shaped = l
	return err
}

// run decodes from the key frame before the chunk until every rung is complete.
func (e *encoding) run() error {
	rate := e.c.Grid.Rate
	step := float64(rate.Den) / float64(rate.Num)
	e.step = e.units(step)
	if e.c.From > 0 {
		e.wanted = e.units(float64(e.c.From)*step + e.offset)
		if e.stream.Interlaced {
			e.wanted -= 3 * e.step // a field's picture depends on the fields before
		}
		if err := e.seek((float64(e.c.From) + .5) * step); err != nil { // the grid rounds times to the nearest frame
			return err
		}
	}
	err := e.decode(ffmpeg.DecoderOptions{Threads: e.c.Threads}, e.whole, e.filter)
	if e.grid == nil && e.c.From > 0 {
		return nil // the source has ended before, or its rest cannot be decoded
	}
	if err == nil && e.grid == nil {
		err = errNoPicture
	}
	if err != nil {
		return err
	}
	return e.drain()
}

// drain encodes the pictures that the filters hold, and ends the encoders.
func (e *encoding) drain() error {
	if err := e.endFields(); err != nil {
		return err
	}
	if err := e.grid.End(e.halved(e.end)); err != nil {
		return err
	}
	if err := e.pull(); err != nil {
		return err
	}
	for _, r := range e.rungs {
		if err := e.finish(r); err != nil {
			return err
		}
	}
	if e.c.From == 0 && e.rungs[0].frames == 0 {
		return errNoPicture
	}
	return nil
}

// blank encodes black pictures.
func (e *encoding) blank() error {
	for i, r := range e.rungs {
		black, err := ffmpeg.NewPicture(e.c.Rungs[i].Width, e.c.Rungs[i].Height, formatOf(r.want.Colour))
		if err != nil {
			return err
		}
		defer black.Close()
		if err := black.Blacken(); err != nil {
			return err
		}
		for r.frames < e.c.To-e.c.From {
			if err := e.give(r, black); err != nil {
				return err
			}
		}
		if err := e.finish(r); err != nil {
			return err
		}
	}
	return nil
}

// whole reports whether each rung has all of its frames.
func (e *encoding) whole() bool {
	return e.c.To >= 0 && e.rungs[len(e.rungs)-1].frames == e.c.To-e.c.From
}

// filter sends a picture through the filters and encodes the output. After the first interlaced
// picture, all pictures of the same look go through the filter of fields, which passes
// progressive pictures on.
func (e *encoding) filter(f *ffmpeg.Frame) error {
	l := lookOf(f)
	if e.fields != nil && l != e.fielded {
		if err := e.endFields(); err != nil {
			return err
		}
	}
	const least = 3 // lines and columns; the filter's minimum
	if e.fields == nil && f.Interlaced() && l.width >= least && l.height >= least {
		if err := e.openFields(l); err != nil {
			return err
		}
	}
	if e.fields == nil {
		f.SetPTS(e.halved(f.PTS()))
		return e.place(f)
	}
	if err := e.fields.Send(f); err != nil {
		return err
	}
	return e.pullFields(f)
}

// openFields makes the filter of fields for pictures of a look.
func (e *encoding) openFields(l look) (err error) {
	sampled := "" // colour must be subsampled field by field, so before fields become pictures
	if l.colour.Matrix != media.RGB {
		sampled = ",scale=interl=1,format=yuv420p|yuvj420p|yuv420p10le"
	}
	e.fields, err = ffmpeg.NewGraph(l.source(e.stream.TimeBase)+sampled+",bwdif=mode=send_field:parity=auto:deint=interlaced,buffersink", e.c.Threads)
	e.fielded = l
	return err
}

// pullFields encodes the output of the filter of fields. f is scratch space.
func (e *encoding) pullFields(f *ffmpeg.Frame) error {
	for {
		err := e.fields.Receive(0, f)
		if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.SetPTS(ffmpeg.Rescale(f.PTS(), e.fields.TimeBase(0), e.base()))
		if err := e.place(f); err != nil {
			return err
		}
	}
}

// endFields drains and closes the filter of fields.
func (e *encoding) endFields() error {
	if e.fields == nil {
		return nil
	}
	f := ffmpeg.NewFrame()
	defer f.Close()
	err := e.fields.End(e.end)
	if err == nil {
		err = e.pullFields(f)
	}
	e.fields.Close()
	e.fields = nil
	return err
}

// place sends a picture to the grid and encodes the grid's output.
func (e *encoding) place(f *ffmpeg.Frame) error {
	if e.grid == nil {
		if err := e.onGrid(lookOf(f)); err != nil {
			return err
		}
	}
	if err := e.grid.Send(f); err != nil {
		return err
	}
	return e.pull()
}

// pull encodes the grid's output, frame by frame in all rungs. The grid repeats a long-lasting
// picture only as frames are pulled.
func (e *encoding) pull() error {
	for !e.whole() {
		err := e.grid.Receive(0, e.gridded)
		if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.giveAll(); err != nil {
			return err
		}
	}
	return nil
}

// giveAll encodes the picture of the grid in all rungs.
func (e *encoding) giveAll() error {
	if l := lookOf(e.gridded); e.shape == nil || l != e.shaped {
		if err := e.shapes(l, e.gridded.Peak()); err != nil {
			return err
		}
	}
	if err := e.shape.Send(e.gridded); err != nil {
		return err
	}
	for i, r := range e.rungs {
		if err := e.shape.Receive(i, r.frame); err != nil {
			return err
		}
		if err := e.give(r, r.frame); err != nil {
			return err
		}
	}
	return nil
}

// give encodes a rung's next picture.
func (e *encoding) give(r *rung, f *ffmpeg.Frame) error {
	if r.frames == MostFrames {
		return fmt.Errorf("the chunk has more than %d frames", MostFrames)
	}
	if r.encoder == nil {
		if err := e.encoderOf(r); err != nil {
			return err
		}
	}
	f.SetPTS(int64(e.c.From + r.frames))
	f.ForceKey(r.frames%e.c.Grid.Segment == 0)
	r.frames++
	if err := r.encoder.Send(f); err != nil {
		return err
	}
	return e.packets(r)
}

// finish drains a rung's encoder.
func (e *encoding) finish(r *rung) error {
	if r.frames == 0 {
		return nil
	}
	if err := r.encoder.Send(nil); err != nil {
		return err
	}
	if err := e.packets(r); err != nil {
		return err
	}
	return r.cut()
}

// packets reads the encoder's packets.
func (e *encoding) packets(r *rung) error {
	for {
		err := r.encoder.Receive(r.packet)
		if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if r.packet.Key() && len(r.open) > 0 {
			if err := r.cut(); err != nil {
				return err
			}
		}
		if len(r.parts) == 0 {
			if err := e.describe(r); err != nil {
				return err
			}
		}
		n := e.c.From + len(r.made.Segments)*e.c.Grid.Segment + len(r.open) // in decoding order
		from, to := e.time(n), e.time(n+1)
		flags := mp4.NonSyncSampleFlags
		if r.packet.Key() {
			flags = mp4.SyncSampleFlags
		}
		data := r.codec.sample(r.packet.Data())
		r.open = append(r.open, mp4.FullSample{
			Sample:     mp4.NewSample(flags, uint32(to-from), uint32(len(data)), int32(max(0, e.time(int(r.packet.PTS()))+e.lead(r)-from))),
			DecodeTime: uint64(from), Data: data,
		})
	}
}

// lead returns the time from the decoding to the showing of a rung's first picture, in units of
// timeScale. With it no picture is shown before it is decoded. The edit list subtracts it.
func (e *encoding) lead(r *rung) int64 { return e.time(r.reorder) }

// time returns the time of a frame of the grid, in units of timeScale.
func (e *encoding) time(frame int) int64 {
	return int64(math.Round(float64(frame) * float64(e.c.Grid.Rate.Den) * timeScale / float64(e.c.Grid.Rate.Num)))
}

// describe writes a rung's initialisation segment.
func (e *encoding) describe(r *rung) (err error) {
	init := mp4.CreateEmptyInit()
	track := init.AddEmptyTrack(timeScale, "video", "und")
	if r.reorder, err = r.codec.describe(track, r.want, r.encoder.Header()); err != nil {
		return fmt.Errorf("describe the video: %w", err)
	}
	if n := e.lead(r); n > 0 {
		shifted(track, n)
	}
	if entry, ok := track.Mdia.Minf.Stbl.Stsd.Children[0].(*mp4.VisualSampleEntryBox); ok {
		c := r.want.Colour
		entry.AddChild(&mp4.ColrBox{ColorType: "nclx", ColorPrimaries: uint16(c.Primaries), TransferCharacteristics: uint16(c.Transfer), MatrixCoefficients: uint16(c.Matrix)})
	}
	return r.begin(init)
}
