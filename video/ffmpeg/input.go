package ffmpeg

/*
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/pixdesc.h>

static AVStream *stream_at(AVFormatContext *c, int i) { return c->streams[i]; }

enum { eof = AVERROR_EOF };

// The display matrix of a stream, NULL where it has none.
static int32_t *matrix(AVStream *s) { return (int32_t *)av_stream_get_side_data(s, AV_PKT_DATA_DISPLAYMATRIX, NULL); }

// The best stream of a type that is not hidden and has a decoder.
static int best(AVFormatContext *c, enum AVMediaType type) {
	const AVCodec *decoder;
	return av_find_best_stream(c, type, -1, -1, &decoder, 0);
}

static void set_type(AVStream *s, enum AVMediaType type) { s->codecpar->codec_type = type; }
*/
import "C"

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// Kind is the kind of a stream.
type Kind string

// Kinds of streams.
const (
	Video    Kind = "video"
	Audio    Kind = "audio"
	Subtitle Kind = "subtitle"
	Other    Kind = "other" // data, attachments
)

// Stream describes a stream of an [Input].
type Stream struct {
	Index    int      `json:"index"`
	Kind     Kind     `json:"kind"`
	Codec    string   `json:"codec"` // the libraries' name, "none" for an unknown codec
	TimeBase Rational `json:"-"`
	Start    float64  `json:"start"`    // seconds
	Duration float64  `json:"duration"` // seconds; 0: unknown
	BitRate  int64    `json:"bit_rate,omitempty"`
	Language string   `json:"language,omitempty"` // as in the file: eng, de, und
	Title    string   `json:"title,omitempty"`
	Default  bool     `json:"default,omitempty"`
	Cover    bool     `json:"cover,omitempty"` // a picture attached to the file, no video

	Width       int      `json:"width,omitempty"` // pixels, before the rotation
	Height      int      `json:"height,omitempty"`
	Rotation    int      `json:"rotation,omitempty"` // 90, 180 or 270 degrees clockwise
	Mirrored    bool     `json:"mirrored,omitempty"` // left and right swapped, before the rotation
	SampleRatio Rational `json:"-"`                  // width to height of a pixel; 0/1: unknown
	FixedRatio  bool     `json:"-"`                  // the container states the ratio, which overrides the frames
	Interlaced  bool     `json:"interlaced,omitempty"`
	Colour      Colour   `json:"-"`
	FrameRate   Rational `json:"-"` // average
	PixelFormat string   `json:"pixel_format,omitempty"`

	SampleRate int `json:"sample_rate,omitempty"` // samples per second and channel
	Channels   int `json:"channels,omitempty"`
}

// Input is a file being read.
type Input struct {
	c       *C.AVFormatContext
	streams []Stream
}

// Formats lists the containers accepted by [Open], without formats that refer to other files and
// without scripts. All protocols except files are refused.
const Formats = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,wav,mp3,aac,flac,asf,aiff,amr,ac3,eac3,gxf,mxf,h264,hevc,m4v,mpegvideo,ivf,obu,nut,rm,dv,gif,srt,webvtt,ass,ape,au,caf,dsf,iff,mpc,mpc8,swf,libopenmpt,tak,tta,voc,w64,wv,yuv4mpegpipe"

// MostStreams is the most streams of a file. A file with more streams is refused, or the rest is
// left out. Probing a stream of H.264 takes 2 MB.
const MostStreams = 128

// mostFound is the most pixels of a picture decoded while probing a stream: 16384 × 8640.
const mostFound = "141557760"

// Open opens a file and probes its streams. The caller closes the input. A file in another format
// than [Formats], or too broken, is an *Error.
func Open(path string) (*Input, error) {
	install()
	forget()
	options := dictionary(map[string]string{"protocol_whitelist": "file", "format_whitelist": Formats, "max_streams": strconv.Itoa(MostStreams)})
	defer C.av_dict_free(&options)
	name := C.CString("file:" + path) // the prefix keeps a name from being read as a URL
	defer C.free(unsafe.Pointer(name))
	in := &Input{}
	if err := failed("open the file", C.avformat_open_input(&in.c, name, nil, &options)); err != nil {
		if e := (*Error)(nil); errors.As(err, &e) {
			e.Log = strings.ReplaceAll(e.Log, "Format not on whitelist '"+Formats+"'", "files of this format are not read")
		}
		return nil, endIsError("open the file", err)
	}
	live.inputs.Add(1)
	each := make([]*C.AVDictionary, in.c.nb_streams)
	for i := range each {
		each[i] = dictionary(map[string]string{"max_pixels": mostFound})
		defer C.av_dict_free(&each[i])
	}
	if err := failed("look at the file's streams", C.avformat_find_stream_info(in.c, unsafe.SliceData(each))); err != nil {
		in.Close()
		return nil, endIsError("look at the file's streams", err)
	}
	for i := range int(in.c.nb_streams) {
		in.streams = append(in.streams, in.stream(i))
	}
	return in, nil
}

// endIsError makes an *Error of err. It is for calls that treat the end of a file as any other
// failure.
func endIsError(op string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return &Error{Op: op, Code: int(C.eof), Log: err.Error()}
}

func (in *Input) stream(i int) Stream {
	st := C.stream_at(in.c, C.int(i))
	p := st.codecpar
	s := Stream{
		Index: i, Kind: Other, Codec: C.GoString(C.avcodec_get_name(p.codec_id)), TimeBase: rational(st.time_base), BitRate: int64(p.bit_rate),
		Language: tag(st.metadata, "language"), Title: tag(st.metadata, "title"),
		Default: st.disposition&C.AV_DISPOSITION_DEFAULT != 0, Cover: st.disposition&C.AV_DISPOSITION_ATTACHED_PIC != 0,
	}
	if st.start_time != C.AV_NOPTS_VALUE {
		s.Start = float64(st.start_time) * s.TimeBase.Float()
	}
	if st.duration != C.AV_NOPTS_VALUE {
		s.Duration = float64(st.duration) * s.TimeBase.Float()
	}
	switch p.codec_type {
	case C.AVMEDIA_TYPE_VIDEO:
		s.Kind, s.Width, s.Height = Video, int(p.width), int(p.height)
		s.SampleRatio = rational(C.av_guess_sample_aspect_ratio(in.c, st, nil))
		s.FrameRate = rational(C.av_guess_frame_rate(in.c, st, nil))
		s.FixedRatio = st.sample_aspect_ratio.num != 0
		s.Interlaced = p.field_order > C.AV_FIELD_PROGRESSIVE
		s.Colour = colour(p.color_primaries, p.color_trc, p.color_space, p.color_range, p.format)
		if m := C.matrix(st); m != nil {
			m := unsafe.Slice((*int32)(m), 9)
			s.Rotation, s.Mirrored = orientation(m[0], m[1], m[3], m[4])
		}
		if name := C.av_get_pix_fmt_name(int32(p.format)); name != nil {
			s.PixelFormat = C.GoString(name)
		}
	case C.AVMEDIA_TYPE_AUDIO:
		s.Kind, s.SampleRate, s.Channels = Audio, int(p.sample_rate), int(p.ch_layout.nb_channels)
	case C.AVMEDIA_TYPE_SUBTITLE:
		s.Kind = Subtitle
	}
	return s
}

// orientation returns the nearest of the eight orientations to a display matrix (ISO/IEC
// 14496-12, 6.2.2). The matrix shows the pixel at x, y at
//
//	a·x + c·y, b·x + d·y
//
// with y downwards. The picture is first mirrored (left and right swapped), then turned
// clockwise.
func orientation(a, b, c, d int32) (degrees int, mirrored bool) {
	size := func(v int32) int64 { return max(int64(v), -int64(v)) }
	switch {
	case a == 0 && b == 0 && c == 0 && d == 0: // no matrix
	case size(a)+size(d) >= size(b)+size(c) && d >= 0:
		return 0, a < 0
	case size(a)+size(d) >= size(b)+size(c):
		return 180, a > 0
	case c < 0:
		return 90, b < 0
	default:
		return 270, b > 0
	}
	return 0, false
}

func tag(d *C.AVDictionary, name string) string {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))
	if e := C.av_dict_get(d, key, nil, 0); e != nil {
		return C.GoString(e.value)
	}
	return ""
}

// Streams returns the file's streams, by index.
func (in *Input) Streams() []Stream { return in.streams }

// Best returns the streams of a kind with a decoder, without covers, in the ffmpeg program's
// order of preference (av_find_best_stream): streams for everybody before streams for the hearing
// or visually impaired, then the file's default, then streams with frames, then the highest bit
// rate.
func (in *Input) Best(kind Kind) []int {
	kinds := map[Kind]int32{Video: C.AVMEDIA_TYPE_VIDEO, Audio: C.AVMEDIA_TYPE_AUDIO}
	var best, hidden []int
	hide := func(i int) {
		C.set_type(C.stream_at(in.c, C.int(i)), C.AVMEDIA_TYPE_DATA)
		hidden = append(hidden, i)
	}
	for _, s := range in.streams {
		if s.Kind == kind && s.Cover {
			hide(s.Index)
		}
	}
	for {
		i := int(C.best(in.c, kinds[kind]))
		if i < 0 {
			break
		}
		best = append(best, i)
		hide(i)
	}
	for _, i := range hidden {
		C.set_type(C.stream_at(in.c, C.int(i)), kinds[kind])
	}
	return best
}

// Format returns the libraries' name of the container, possibly several names: mov,mp4,m4a,…
func (in *Input) Format() string { return C.GoString(in.c.iformat.name) }

// Duration returns the duration in seconds stated by the container or else by its streams, or 0.
func (in *Input) Duration() float64 {
	if in.c.duration == C.AV_NOPTS_VALUE {
		return 0
	}
	return float64(in.c.duration) / C.AV_TIME_BASE
}

// Promised returns Duration if a header or an index states it, so a truncated file may be
// shorter. It returns 0 if the libraries estimated the duration from the packets.
func (in *Input) Promised() float64 {
	if in.c.duration_estimation_method != C.AVFMT_DURATION_FROM_STREAM {
		return 0
	}
	return in.Duration()
}

// BitRate returns the total bits per second, or 0 if unknown.
func (in *Input) BitRate() int64 { return int64(in.c.bit_rate) }

// Restarts reports whether times may restart within a file of this container.
func (in *Input) Restarts() bool { return in.c.iformat.flags&C.AVFMT_TS_DISCONT != 0 }

// Only drops the packets of all other streams while reading.
func (in *Input) Only(streams ...int) {
	for i := range in.streams {
		C.stream_at(in.c, C.int(i)).discard = C.AVDISCARD_ALL
	}
	for _, i := range streams {
		C.stream_at(in.c, C.int(i)).discard = C.AVDISCARD_DEFAULT
	}
}

// Seek goes to the last point, not after t seconds, from which a stream can be decoded.
func (in *Input) Seek(stream int, t float64) error {
	base := in.streams[stream].TimeBase
	at := int64(math.Floor(t / base.Float()))
	return failed("seek", C.av_seek_frame(in.c, C.int(stream), C.int64_t(at), C.AVSEEK_FLAG_BACKWARD))
}

// Read reads the next packet of any stream into p. The error at the end is io.EOF.
func (in *Input) Read(p *Packet) error {
	p.Unref()
	if err := failed("read", C.av_read_frame(in.c, p.c)); err != nil {
		return err
	}
	p.filled()
	return nil
}

// Fault reports whether reading the file failed, in contrast to broken content.
func (in *Input) Fault() bool { return in.c.pb != nil && in.c.pb.error < 0 && in.c.pb.error != C.eof }

// Close closes the file. It may be called again.
func (in *Input) Close() {
	if in.c == nil {
		return
	}
	C.avformat_close_input(&in.c)
	live.inputs.Add(-1)
}
