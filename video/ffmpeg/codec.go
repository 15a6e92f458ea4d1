package ffmpeg

/*
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>

static AVCodecParameters *parameters(AVFormatContext *c, int i) { return c->streams[i]->codecpar; }
static AVRational time_base(AVFormatContext *c, int i) { return c->streams[i]->time_base; }
enum { einval = AVERROR(EINVAL), nodecoder = AVERROR_DECODER_NOT_FOUND, noencoder = AVERROR_ENCODER_NOT_FOUND };
*/
import "C"

import "unsafe"

// Decoder makes frames of one stream's packets.
type Decoder struct{ c *C.AVCodecContext }

// Skip is which frames a decoder leaves out.
type Skip int

// What there is to leave out.
const (
	SkipNone   Skip = C.AVDISCARD_DEFAULT
	SkipNonRef Skip = C.AVDISCARD_NONREF // what no other frame needs
	SkipNonKey Skip = C.AVDISCARD_NONKEY // what needs another frame
)

// DecoderOptions are what there is to choose.
type DecoderOptions struct {
	Threads  int // 0: as many as there are CPUs
	Skip     Skip
	MostSize int // pixels of a picture; 0 for as many as the libraries take
}

// NewDecoder is a decoder for a stream of in.
func NewDecoder(in *Input, stream int, o DecoderOptions) (*Decoder, error) {
	p := C.parameters(in.c, C.int(stream))
	codec := C.avcodec_find_decoder(p.codec_id)
	if codec == nil {
		return nil, &Error{Op: "find a decoder for " + in.streams[stream].Codec, Code: int(C.nodecoder)}
	}
	d := &Decoder{c: must(C.avcodec_alloc_context3(codec))}
	live.decoders.Add(1)
	if err := failed("set up the decoder", C.avcodec_parameters_to_context(d.c, p)); err != nil {
		d.Close()
		return nil, err
	}
	d.c.pkt_timebase = C.time_base(in.c, C.int(stream))
	d.c.thread_count = C.int(o.Threads)
	d.c.skip_frame = int32(o.Skip)
	if o.MostSize > 0 {
		d.c.max_pixels = C.int64_t(o.MostSize)
	}
	if err := failed("open the decoder "+C.GoString(codec.name), C.avcodec_open2(d.c, codec, nil)); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Skip has the decoder leave out others from the next packet on.
func (d *Decoder) Skip(s Skip) { d.c.skip_frame = int32(s) }

// Send gives the decoder a packet, which stays the caller's; nil for the end. ErrAgain: its
// frames have to be taken before.
func (d *Decoder) Send(p *Packet) error {
	if p == nil {
		return failed("decode", C.avcodec_send_packet(d.c, nil))
	}
	return failed("decode", C.avcodec_send_packet(d.c, p.c))
}

// Receive takes the next frame. ErrAgain: it needs another packet. io.EOF after the last.
func (d *Decoder) Receive(f *Frame) error {
	f.Unref()
	if err := failed("decode", C.avcodec_receive_frame(d.c, f.c)); err != nil {
		return err
	}
	f.filled()
	return nil
}

// Late is how many frames later than what it is shown after a frame is decoded, at most.
func (d *Decoder) Late() int { return int(d.c.has_b_frames) }

// Flush forgets what came before: after [Input.Seek].
func (d *Decoder) Flush() { C.avcodec_flush_buffers(d.c) }

// Close releases the decoder.
func (d *Decoder) Close() {
	if d.c == nil {
		return
	}
	C.avcodec_free_context(&d.c)
	live.decoders.Add(-1)
}

// Encoder makes packets of frames.
type Encoder struct{ c *C.AVCodecContext }

// EncoderOptions are what is common to encoders; the rest goes by its name.
type EncoderOptions struct {
	Codec    string   // an encoder's name: libx264, aac
	TimeBase Rational // of frames and packets
	BitRate  int64    // bits each second, 0 for the encoder's choice
	Threads  int      // 0: as many as there are CPUs

	Width, Height int
	PixelFormat   string
	FrameRate     Rational
	SampleRatio   Rational
	Colour        Colour

	SampleRate, Channels int    // of sound
	SampleFormat         string // such as fltp

	Options map[string]string // of the encoder: preset, profile, crf, g, …
}

// NewEncoder opens an encoder. An *Error names an option that it does not have.
func NewEncoder(o EncoderOptions) (*Encoder, error) {
	install()
	name := C.CString(o.Codec)
	defer C.free(unsafe.Pointer(name))
	codec := C.avcodec_find_encoder_by_name(name)
	if codec == nil {
		return nil, &Error{Op: "find the encoder " + o.Codec, Code: int(C.noencoder)}
	}
	e := &Encoder{c: must(C.avcodec_alloc_context3(codec))}
	live.encoders.Add(1)
	e.c.time_base = o.TimeBase.c()
	e.c.bit_rate = C.int64_t(o.BitRate)
	e.c.thread_count = C.int(o.Threads)
	e.c.flags |= C.AV_CODEC_FLAG_GLOBAL_HEADER
	if o.Width > 0 {
		e.c.width, e.c.height = C.int(o.Width), C.int(o.Height)
		e.c.framerate, e.c.sample_aspect_ratio = o.FrameRate.c(), o.SampleRatio.c()
		e.c.color_primaries, e.c.color_trc, e.c.colorspace = uint32(o.Colour.Primaries), uint32(o.Colour.Transfer), uint32(o.Colour.Matrix)
		e.c.color_range = C.AVCOL_RANGE_MPEG
		if o.Colour.Full {
			e.c.color_range = C.AVCOL_RANGE_JPEG
		}
		format := C.CString(o.PixelFormat)
		e.c.pix_fmt = C.av_get_pix_fmt(format)
		C.free(unsafe.Pointer(format))
	}
	if o.SampleRate > 0 {
		e.c.sample_rate = C.int(o.SampleRate)
		C.av_channel_layout_default(&e.c.ch_layout, C.int(o.Channels))
		format := C.CString(o.SampleFormat)
		e.c.sample_fmt = C.av_get_sample_fmt(format)
		C.free(unsafe.Pointer(format))
	}
	options := dictionary(o.Options)
	defer C.av_dict_free(&options)
	err := failed("open the encoder "+o.Codec, C.avcodec_open2(e.c, codec, &options))
	if left := unknown(options); err == nil && left != "" {
		err = &Error{Op: "open the encoder " + o.Codec + ": it has no option " + left, Code: int(C.einval)}
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Header is what a decoder needs before the first packet (avcC, AudioSpecificConfig), a
// view that is valid until Close.
func (e *Encoder) Header() []byte {
	return unsafe.Slice((*byte)(e.c.extradata), int(e.c.extradata_size))
}

// Size of the pictures in pixels.
func (e *Encoder) Size() (width, height int) { return int(e.c.width), int(e.c.height) }

// FrameSize is how many samples each frame of sound is to have; 0 for any number.
func (e *Encoder) FrameSize() int { return int(e.c.frame_size) }

// Delay is how many samples of sound come before the first that was given.
func (e *Encoder) Delay() int { return int(e.c.initial_padding) }

// Send gives the encoder a frame, which stays the caller's; nil for the end. ErrAgain: its
// packets have to be taken before.
func (e *Encoder) Send(f *Frame) error {
	if f == nil {
		return failed("encode", C.avcodec_send_frame(e.c, nil))
	}
	return failed("encode", C.avcodec_send_frame(e.c, f.c))
}

// Receive takes the next packet. ErrAgain: it needs another frame. io.EOF after the last.
func (e *Encoder) Receive(p *Packet) error {
	p.Unref()
	if err := failed("encode", C.avcodec_receive_packet(e.c, p.c)); err != nil {
		return err
	}
	p.filled()
	return nil
}

// Close releases the encoder.
func (e *Encoder) Close() {
	if e.c == nil {
		return
	}
	C.avcodec_free_context(&e.c)
	live.encoders.Add(-1)
}
