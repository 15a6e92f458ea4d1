// Package transcode makes what the video service serves, of one source: some segments of
// its picture in every rung of the ladder, its sound, its thumbnails. It is the program
// that runs in the sandbox, less the events.
package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// MostFrames of a chunk: what is made of it is in memory.
const MostFrames = 20_000

// pixelFormat is that of what is made.
const pixelFormat = "yuv420p"

// timeScale is the units of a second in which the fragments' times are: those of MPEG-TS.
const timeScale = 90000

// Chunk decodes some of a video once and encodes it in every rung. Each rung begins with a
// key frame, has one at the beginning of each segment and refers to nothing outside, so that
// chunks can follow each other. Rungs' bytes are in memory until they are given out.
func Chunk(path string, c media.Chunk) (*media.Chunked, [][]byte, error) {
	if c.Grid.Rate.Num < 1 || c.Grid.Rate.Den < 1 || c.Grid.Segment < 1 || c.From < 0 || c.From%c.Grid.Segment != 0 || len(c.Rungs) == 0 ||
		c.To >= 0 && (c.To <= c.From || c.To-c.From > MostFrames) || c.To < 0 && c.Blank {
		return nil, nil, fmt.Errorf("frames %d to %d of a grid of %+v in %d rungs", c.From, c.To, c.Grid, len(c.Rungs))
	}
	for _, r := range c.Rungs {
		if r.Width < 2 || r.Height < 2 || r.Width > MostPixels/r.Height {
			return nil, nil, fmt.Errorf("a rung of %d × %d pixels", r.Width, r.Height)
		}
	}
	e := &encoding{c: c}
	work := e.blank
	if !c.Blank {
		r, err := open(path, c.Stream, ffmpeg.Video, c.Offset)
		if err != nil {
			return nil, nil, err
		}
		defer r.close()
		e.reading, work = r, e.run
	}
	defer e.close()
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

// encoding is a chunk being made.
type encoding struct {
	c        media.Chunk
	*reading               // nil for what is blank
	graph    *ffmpeg.Graph // nil until the first frame says what comes
	rungs    []*rung
}

// rung is one rendition of it.
type rung struct {
	codec   *codec
	encoder *ffmpeg.Encoder
	packet  *ffmpeg.Packet
	frame   *ffmpeg.Frame
	frames  int // given to the encoder
	fragments
}

func (e *encoding) close() {
	for _, r := range e.rungs {
		r.encoder.Close()
		r.packet.Close()
		r.frame.Close()
	}
	if e.graph != nil {
		e.graph.Close()
	}
}

func (e *encoding) open() error {
	rate := ffmpeg.Rational{Num: e.c.Grid.Rate.Num, Den: e.c.Grid.Rate.Den}
	for _, want := range e.c.Rungs {
		codec, err := codecOf(want.Codec)
		if err != nil {
			return err
		}
		encoder, err := ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
			Codec: codec.encoder, TimeBase: ffmpeg.Rational{Num: rate.Den, Den: rate.Num}, FrameRate: rate, Threads: e.c.Threads,
			Width: want.Width, Height: want.Height, PixelFormat: pixelFormat, SampleRatio: ffmpeg.Rational{Num: 1, Den: 1},
			Options: encoderOptions(codec, e.c, want),
		})
		if err != nil {
			return err
		}
		e.rungs = append(e.rungs, &rung{
			codec: codec, encoder: encoder, packet: ffmpeg.NewPacket(), frame: ffmpeg.NewFrame(),
			fragments: fragments{limit: mostOfRung, number: e.c.From / e.c.Grid.Segment},
		})
	}
	return nil
}

// filters are made for the frames that come: turned upright, on the grid from the chunk's
// first frame on, in every rung's size with square pixels.
func (e *encoding) filters(f *ffmpeg.Frame) error {
	grid := e.c.Grid.Rate
	start := float64(e.c.From)*float64(grid.Den)/float64(grid.Num) + e.c.Offset
	var split, scaled strings.Builder
	for i, r := range e.c.Rungs {
		fmt.Fprintf(&split, "[s%d]", i)
		fmt.Fprintf(&scaled, ";[s%d]scale=%d:%d:flags=bicubic,format=%s,setsar=1,buffersink", i, r.Width, r.Height, pixelFormat)
	}
	var err error
	e.graph, err = ffmpeg.NewGraph(fmt.Sprintf("%s,fps=fps=%d/%d:start_time=%.9f:round=near,split=%d%s%s",
		upright(f, e.stream), grid.Num, grid.Den, start, len(e.rungs), &split, &scaled), e.c.Threads)
	return err
}

// run decodes from the key frame before the chunk until every rung is whole.
func (e *encoding) run() error {
	rate := e.c.Grid.Rate
	step := float64(rate.Den) / float64(rate.Num)
	e.step = e.units(step)
	if e.c.From > 0 {
		e.wanted = e.units(float64(e.c.From)*step + e.offset)
		if err := e.seek((float64(e.c.From) + .5) * step); err != nil { // frames are rounded to the nearest of the grid
			return err
		}
	}
	err := e.decode(ffmpeg.DecoderOptions{Threads: e.c.Threads}, e.whole, e.filter)
	if e.graph == nil && e.c.From > 0 {
		return nil // the source has ended before, or what is left cannot be decoded
	}
	if err == nil && e.graph == nil {
		err = errNoPicture
	}
	if err != nil {
		return err
	}
	if err := e.graph.End(e.end); err != nil {
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
	return nil
}

// blank encodes black pictures.
func (e *encoding) blank() error {
	for i, r := range e.rungs {
		black, err := ffmpeg.NewPicture(e.c.Rungs[i].Width, e.c.Rungs[i].Height, pixelFormat)
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

// whole says that each rung has all of its frames.
func (e *encoding) whole() bool {
	return e.c.To >= 0 && e.rungs[len(e.rungs)-1].frames == e.c.To-e.c.From
}

// filter sends a picture through the filters and encodes what comes out.
func (e *encoding) filter(f *ffmpeg.Frame) error {
	if e.graph == nil {
		if err := e.filters(f); err != nil {
			return err
		}
	}
	if err := e.graph.Send(f); err != nil {
		return err
	}
	return e.pull()
}

// pull encodes what has come out of the filters, a frame of each rung in turn: where a
// picture is to be shown for long, they make many of it, but only when they are asked.
func (e *encoding) pull() error {
	for !e.whole() {
		for i, r := range e.rungs {
			err := e.graph.Receive(i, r.frame)
			if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := e.give(r, r.frame); err != nil {
				return err
			}
		}
	}
	return nil
}

// give encodes a rung's next picture.
func (e *encoding) give(r *rung, f *ffmpeg.Frame) error {
	if r.frames == MostFrames {
		return fmt.Errorf("the chunk has more than %d frames", MostFrames)
	}
	f.SetPTS(int64(e.c.From + r.frames))
	f.ForceKey(r.frames%e.c.Grid.Segment == 0)
	r.frames++
	if err := r.encoder.Send(f); err != nil {
		return err
	}
	return e.packets(r)
}

// finish takes what an encoder holds back.
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

// packets takes what an encoder has made.
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
		n := e.c.From + len(r.made.Segments)*e.c.Grid.Segment + len(r.open) // in the order of decoding
		from, to := e.time(n), e.time(n+1)
		flags := mp4.NonSyncSampleFlags
		if r.packet.Key() {
			flags = mp4.SyncSampleFlags
		}
		data := r.codec.sample(r.packet.Data())
		r.open = append(r.open, mp4.FullSample{
			Sample:     mp4.NewSample(flags, uint32(to-from), uint32(len(data)), int32(e.time(int(r.packet.PTS()))-from)),
			DecodeTime: uint64(from), Data: data,
		})
	}
}

// time of a frame of the grid, in units of timeScale.
func (e *encoding) time(frame int) int64 {
	return int64(math.Round(float64(frame) * float64(e.c.Grid.Rate.Den) * timeScale / float64(e.c.Grid.Rate.Num)))
}

// describe writes a rung's initialisation segment.
func (e *encoding) describe(r *rung) error {
	init := mp4.CreateEmptyInit()
	track := init.AddEmptyTrack(timeScale, "video", "und")
	if err := r.codec.describe(track, r, r.encoder.Header()); err != nil {
		return fmt.Errorf("describe the video: %w", err)
	}
	return r.begin(init)
}
