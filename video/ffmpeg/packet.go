package ffmpeg

/*
#include <libavcodec/avcodec.h>
#include <libavutil/frame.h>
#include <libavutil/channel_layout.h>
#include <libavutil/imgutils.h>
#include <libavutil/mastering_display_metadata.h>
#include <libavutil/pixdesc.h>
#include <libavutil/samplefmt.h>

// The brightest that a picture says it has, in candelas per square metre; 0 where it does not.
static double peak(const AVFrame *f) {
	const AVFrameSideData *d = av_frame_get_side_data(f, AV_FRAME_DATA_CONTENT_LIGHT_LEVEL);
	if (d && ((AVContentLightMetadata *)d->data)->MaxCLL)
		return ((AVContentLightMetadata *)d->data)->MaxCLL;
	d = av_frame_get_side_data(f, AV_FRAME_DATA_MASTERING_DISPLAY_METADATA);
	if (d && ((AVMasteringDisplayMetadata *)d->data)->has_luminance)
		return av_q2d(((AVMasteringDisplayMetadata *)d->data)->max_luminance);
	return 0;
}

static int is_rgb(int format) {
	const AVPixFmtDescriptor *d = av_pix_fmt_desc_get(format);
	return d && d->flags & (AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL);
}

static int is_full(int format) {
	return format == AV_PIX_FMT_YUVJ420P || format == AV_PIX_FMT_YUVJ422P || format == AV_PIX_FMT_YUVJ444P || format == AV_PIX_FMT_YUVJ440P || format == AV_PIX_FMT_YUVJ411P;
}

static int alone(AVBufferRef *b) { return b && av_buffer_is_writable(b); }
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// poison is the byte [Check] writes over released memory.
const poison = 0xdb

// Packet is encoded data of a stream: a frame, or a number of samples of sound.
type Packet struct {
	c    *C.AVPacket
	full bool
}

// NewPacket returns an empty packet.
func NewPacket() *Packet {
	live.packets.Add(1)
	return &Packet{c: must(C.av_packet_alloc())}
}

// must panics if an allocation of a few bytes fails. Go's own runtime would not survive either.
func must[T any](p *T) *T {
	if p == nil {
		panic("ffmpeg: out of memory")
	}
	return p
}

// filled records that the packet has content.
func (p *Packet) filled() {
	if !p.full {
		live.data.Add(1)
	}
	p.full = true
}

// Data returns the packet's bytes, valid until Unref. It panics if the packet is empty.
func (p *Packet) Data() []byte {
	if !p.full {
		panic("ffmpeg: use of a packet after Unref")
	}
	return unsafe.Slice((*byte)(p.c.data), int(p.c.size))
}

// Stream returns the index of the packet's stream in its [Input].
func (p *Packet) Stream() int { return int(p.c.stream_index) }

// PTS returns the presentation time, in the time base of the stream or encoder, or [NoTime].
func (p *Packet) PTS() int64 { return int64(p.c.pts) }

// DTS returns the decoding time, in the time base of the stream or encoder, or [NoTime].
func (p *Packet) DTS() int64 { return int64(p.c.dts) }

// Shift adds units to the packet's times.
func (p *Packet) Shift(units int64) {
	if p.c.pts != C.AV_NOPTS_VALUE {
		p.c.pts += C.int64_t(units)
	}
	if p.c.dts != C.AV_NOPTS_VALUE {
		p.c.dts += C.int64_t(units)
	}
}

// Duration returns the duration, or 0 if unknown.
func (p *Packet) Duration() int64 { return int64(p.c.duration) }

// Key reports whether decoding can start at this packet.
func (p *Packet) Key() bool { return p.c.flags&C.AV_PKT_FLAG_KEY != 0 }

// Settings returns the settings of a WebVTT cue, or "".
func (p *Packet) Settings() string {
	var size C.size_t
	b := C.av_packet_get_side_data(p.c, C.AV_PKT_DATA_WEBVTT_SETTINGS, &size)
	if b == nil {
		return ""
	}
	return string(unsafe.Slice((*byte)(b), size))
}

// Unref releases the packet's content, if any.
func (p *Packet) Unref() {
	if !p.full {
		return
	}
	if Check && C.alone(p.c.buf) != 0 {
		fill(unsafe.Pointer(p.c.buf.data), int(p.c.buf.size))
	}
	C.av_packet_unref(p.c)
	p.full = false
	live.data.Add(-1)
}

// Close releases the packet. It may be called again.
func (p *Packet) Close() {
	if p.c == nil {
		return
	}
	p.Unref()
	C.av_packet_free(&p.c)
	live.packets.Add(-1)
}

func fill(p unsafe.Pointer, n int) {
	b := unsafe.Slice((*byte)(p), n)
	for i := range b {
		b[i] = poison
	}
}

// Frame is a decoded picture, or a number of samples of sound.
type Frame struct {
	c    *C.AVFrame
	full bool
}

// NewFrame returns an empty frame.
func NewFrame() *Frame {
	live.frames.Add(1)
	return &Frame{c: must(C.av_frame_alloc())}
}

// NewPicture returns a picture of a size in pixels and a pixel format such as yuv420p, with
// undefined content.
func NewPicture(width, height int, format string) (*Frame, error) {
	f := NewFrame()
	name := C.CString(format)
	defer C.free(unsafe.Pointer(name))
	f.c.width, f.c.height, f.c.format = C.int(width), C.int(height), C.int(C.av_get_pix_fmt(name))
	if err := failed(fmt.Sprintf("make a picture of %d × %d", width, height), C.av_frame_get_buffer(f.c, 0)); err != nil {
		f.Close()
		return nil, err
	}
	f.filled()
	return f, nil
}

// Blacken makes a picture black.
func (f *Frame) Blacken() error {
	var lines [4]C.ptrdiff_t
	for i := range lines {
		lines[i] = C.ptrdiff_t(f.c.linesize[i])
	}
	return failed("make a picture black", C.av_image_fill_black(&f.c.data[0], &lines[0], int32(f.c.format), C.AVCOL_RANGE_UNSPECIFIED, f.c.width, f.c.height))
}

func (f *Frame) filled() {
	if !f.full {
		live.data.Add(1)
	}
	f.full = true
}

// moved records that another owner has taken the frame's content.
func (f *Frame) moved() {
	if f.full {
		f.full = false
		live.data.Add(-1)
	}
}

// NewSilence returns n samples of silence in the format of another frame.
func NewSilence(like *Frame, n int) (*Frame, error) {
	f := NewFrame()
	f.c.format, f.c.sample_rate, f.c.nb_samples = like.c.format, like.c.sample_rate, C.int(n)
	code := C.av_channel_layout_copy(&f.c.ch_layout, &like.c.ch_layout)
	if code >= 0 {
		code = C.av_frame_get_buffer(f.c, 0)
	}
	if code >= 0 {
		code = C.av_samples_set_silence(f.c.extended_data, 0, f.c.nb_samples, f.c.ch_layout.nb_channels, int32(f.c.format))
	}
	if err := failed(fmt.Sprintf("make %d samples of silence", n), code); err != nil {
		f.Close()
		return nil, err
	}
	f.filled()
	return f, nil
}

// Take moves from's content to f.
func (f *Frame) Take(from *Frame) {
	f.Unref()
	C.av_frame_move_ref(f.c, from.c)
	if from.full {
		from.moved()
		f.filled()
	}
}

// Plane returns a plane of a picture, all lines with their padding, or a plane of sound, with the
// samples of one or all channels. The slice is valid until Unref. Plane panics if the frame is
// empty or lacks the plane.
func (f *Frame) Plane(i int) []byte {
	if !f.full {
		panic("ffmpeg: use of a frame after Unref")
	}
	if i < 0 || i >= len(f.c.data) || f.c.data[i] == nil {
		panic(fmt.Sprintf("ffmpeg: plane %d of a frame that has none", i))
	}
	size := int(f.c.linesize[0])
	if f.c.width > 0 {
		var sizes [4]C.size_t
		var lines [4]C.ptrdiff_t
		for j := range lines {
			lines[j] = C.ptrdiff_t(f.c.linesize[j])
		}
		if C.av_image_fill_plane_sizes(&sizes[0], int32(f.c.format), f.c.height, &lines[0]) < 0 {
			panic("ffmpeg: a frame of unknown layout")
		}
		size = int(sizes[i])
	}
	return unsafe.Slice((*byte)(f.c.data[i]), size)
}

// Stride returns the distance between the lines of a plane, in bytes.
func (f *Frame) Stride(i int) int { return int(f.c.linesize[i]) }

// Width returns a picture's width in pixels.
func (f *Frame) Width() int { return int(f.c.width) }

// Height returns a picture's height in pixels.
func (f *Frame) Height() int { return int(f.c.height) }

// Samples returns the number of samples per channel.
func (f *Frame) Samples() int { return int(f.c.nb_samples) }

// PTS returns the presentation time by the decoder's best knowledge, or [NoTime].
func (f *Frame) PTS() int64 {
	if f.c.pts != C.AV_NOPTS_VALUE {
		return int64(f.c.pts)
	}
	return int64(f.c.best_effort_timestamp)
}

// Guessed reports whether PTS is a guess based on decoding times.
func (f *Frame) Guessed() bool { return f.c.pts == C.AV_NOPTS_VALUE }

// Duration returns the duration, or 0 if unknown.
func (f *Frame) Duration() int64 { return int64(f.c.pkt_duration) }

// SetPTS sets the presentation time.
func (f *Frame) SetPTS(t int64) { f.c.pts = C.int64_t(t) }

// ForceKey makes an encoder encode this frame as a key frame, or leaves the choice to the
// encoder.
func (f *Frame) ForceKey(key bool) {
	f.c.pict_type = C.AV_PICTURE_TYPE_NONE
	if key {
		f.c.pict_type = C.AV_PICTURE_TYPE_I
	}
}

// Colour tells how to interpret pixel values, in code points of ITU-T H.273.
type Colour struct {
	Primaries, Transfer, Matrix int // 2: unspecified
	Full                        bool
}

func colour(primaries, transfer, matrix, colourRange uint32, format C.int) Colour {
	c := Colour{Primaries: int(primaries), Transfer: int(transfer), Matrix: int(matrix), Full: colourRange == C.AVCOL_RANGE_JPEG || C.is_full(format) != 0}
	if C.is_rgb(format) != 0 {
		c.Matrix = C.AVCOL_SPC_RGB
	} else if c.Matrix == C.AVCOL_SPC_RGB {
		c.Matrix = C.AVCOL_SPC_UNSPECIFIED
	}
	return c
}

// Colour returns a picture's colours.
func (f *Frame) Colour() Colour {
	return colour(f.c.color_primaries, f.c.color_trc, f.c.colorspace, f.c.color_range, f.c.format)
}

// Peak returns the stated peak brightness in candelas per square metre, or 0.
func (f *Frame) Peak() float64 { return float64(C.peak(f.c)) }

// Interlaced reports whether a picture holds two: its odd and its even lines.
func (f *Frame) Interlaced() bool { return f.c.interlaced_frame != 0 }

// Unref releases the frame's content, if any.
func (f *Frame) Unref() {
	if !f.full {
		return
	}
	if Check {
		for _, b := range f.c.buf {
			if C.alone(b) != 0 {
				fill(unsafe.Pointer(b.data), int(b.size))
			}
		}
	}
	C.av_frame_unref(f.c)
	f.full = false
	live.data.Add(-1)
}

// Close releases the frame. It may be called again.
func (f *Frame) Close() {
	if f.c == nil {
		return
	}
	f.Unref()
	C.av_frame_free(&f.c)
	live.frames.Add(-1)
}

// Format returns the libraries' number of the pixel or sample format.
func (f *Frame) Format() int { return int(f.c.format) }

// SampleRatio returns the ratio of a pixel's width to its height, or 0/1 if unknown.
func (f *Frame) SampleRatio() Rational { return rational(f.c.sample_aspect_ratio) }

// SampleRate returns the samples per second.
func (f *Frame) SampleRate() int { return int(f.c.sample_rate) }

// SampleFormat returns the libraries' name of the sample format.
func (f *Frame) SampleFormat() string { return C.GoString(C.av_get_sample_fmt_name(int32(f.c.format))) }

// Layout returns the libraries' name of the channel layout: stereo, 5.1. If the source states no
// layout, Layout chooses the usual layout for the number of channels.
func (f *Frame) Layout() string {
	if f.c.ch_layout.order == C.AV_CHANNEL_ORDER_UNSPEC {
		C.av_channel_layout_default(&f.c.ch_layout, f.c.ch_layout.nb_channels)
	}
	var name [4096]C.char
	C.av_channel_layout_describe(&f.c.ch_layout, &name[0], C.size_t(len(name)))
	return C.GoString(&name[0])
}
