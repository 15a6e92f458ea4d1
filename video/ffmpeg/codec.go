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

import (
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Decoder decodes the packets of a stream to frames.
type Decoder struct{ c *C.AVCodecContext }

// Skip selects the frames a decoder skips.
type Skip int

// Values of Skip.
const (
	SkipNone   Skip = C.AVDISCARD_DEFAULT
	SkipNonRef Skip = C.AVDISCARD_NONREF // frames without references from other frames
	SkipNonKey Skip = C.AVDISCARD_NONKEY // frames that refer to other frames
)

// DecoderOptions configures a Decoder.
type DecoderOptions struct {
	Threads  int // 0: the number of CPUs
	Skip     Skip
	MostSize int // most pixels of a picture; 0: the libraries' limit
}

// NewDecoder returns a decoder for a stream of in. The caller closes it.
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

// Skip changes the skipped frames from the next packet on.
func (d *Decoder) Skip(s Skip) { d.c.skip_frame = int32(s) }

// Send passes a packet to the decoder. The packet stays the caller's. A nil packet marks the end
// of the stream. After ErrAgain, the caller must first Receive frames.
func (d *Decoder) Send(p *Packet) error {
	if p == nil {
		return failed("decode", C.avcodec_send_packet(d.c, nil))
	}
	return failed("decode", C.avcodec_send_packet(d.c, p.c))
}

// Receive stores the next frame in f. ErrAgain asks for another packet. io.EOF follows the last
// frame.
func (d *Decoder) Receive(f *Frame) error {
	f.Unref()
	if err := failed("decode", C.avcodec_receive_frame(d.c, f.c)); err != nil {
		return err
	}
	f.filled()
	return nil
}

// Late returns the decoder's reordering delay, in frames.
func (d *Decoder) Late() int { return int(d.c.has_b_frames) }

// Flush resets the decoder, for use after [Input.Seek].
func (d *Decoder) Flush() { C.avcodec_flush_buffers(d.c) }

// Close releases the decoder. It may be called again.
func (d *Decoder) Close() {
	if d.c == nil {
		return
	}
	C.avcodec_free_context(&d.c)
	live.decoders.Add(-1)
}

// Encoder encodes frames to packets.
type Encoder struct{ c *C.AVCodecContext }

// EncoderOptions configures an Encoder. Options holds an encoder's own options by name.
type EncoderOptions struct {
	Codec    string   // name of an encoder: libx264, aac
	TimeBase Rational // of frames and packets
	BitRate  int64    // bits per second; 0: the encoder's choice
	Threads  int      // 0: the number of CPUs

	Width, Height int
	PixelFormat   string
	FrameRate     Rational
	SampleRatio   Rational
	Colour        Colour

	SampleRate, Channels int    // of sound
	SampleFormat         string // such as fltp

	Options map[string]string // of the encoder: preset, profile, crf, g, …
}

// NewEncoder opens an encoder. The caller closes it. For an unknown option the *Error names the
// option.
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
	var err error
	open := func() { err = failed("open the encoder "+o.Codec, C.avcodec_open2(e.c, codec, &options)) }
	if o.Codec == "libsvtav1" && os.Geteuid() == 0 {
		keepScheduling(open)
	} else {
		open()
	}
	if left := unknown(options); err == nil && left != "" {
		err = &Error{Op: "open the encoder " + o.Codec + ": it has no option " + left, Code: int(C.einval)}
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// keepScheduling calls open and then gives every thread of the process the scheduling policy that
// open's thread had. For root, SVT-AV1 makes its threads, and the thread that opens the encoder,
// real-time threads of the highest priority (svt_create_thread in its EbThreads.c). They starve the
// machine, and programs that the process starts later inherit the policy.
func keepScheduling(open func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	policy, err := unix.SchedGetAttr(0, 0)
	open()
	threads, dirErr := os.ReadDir("/proc/self/task")
	if err != nil || dirErr != nil {
		return // the encoder works with any policy
	}
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.SchedSetAttr(tid, policy, 0) // the thread may have ended
		}
	}
}

// Header returns the data a decoder needs before the first packet (avcC, AudioSpecificConfig).
// The slice is valid until Close.
func (e *Encoder) Header() []byte {
	return unsafe.Slice((*byte)(e.c.extradata), int(e.c.extradata_size))
}

// FrameSize returns the required number of samples in a frame of sound, or 0 for any number.
func (e *Encoder) FrameSize() int { return int(e.c.frame_size) }

// Delay returns the number of priming samples before the first sample of sound.
func (e *Encoder) Delay() int { return int(e.c.initial_padding) }

// Send passes a frame to the encoder. The frame stays the caller's. A nil frame marks the end.
// After ErrAgain, the caller must first Receive packets.
func (e *Encoder) Send(f *Frame) error {
	if f == nil {
		return failed("encode", C.avcodec_send_frame(e.c, nil))
	}
	return failed("encode", C.avcodec_send_frame(e.c, f.c))
}

// Receive stores the next packet in p. ErrAgain asks for another frame. io.EOF follows the last
// packet.
func (e *Encoder) Receive(p *Packet) error {
	p.Unref()
	if err := failed("encode", C.avcodec_receive_packet(e.c, p.c)); err != nil {
		return err
	}
	p.filled()
	return nil
}

// Close releases the encoder. It may be called again.
func (e *Encoder) Close() {
	if e.c == nil {
		return
	}
	C.avcodec_free_context(&e.c)
	live.encoders.Add(-1)
}
