package ffmpeg

/*
#cgo pkg-config: libavformat libavcodec libavfilter libavutil
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/log.h>

// The last errors that the libraries have told, oldest first, for who asks why.
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[4096];
static size_t log_len;

static void keep_log(void *ctx, int level, const char *format, va_list args) {
	char line[512];
	int prefix = 1;
	if (level > AV_LOG_ERROR)
		return;
	int n = av_log_format_line2(ctx, level, format, args, line, sizeof line, &prefix);
	if (n <= 0)
		return;
	size_t len = (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
	pthread_mutex_lock(&log_lock);
	if (log_len + len > sizeof log_text) { // the oldest half goes
		size_t half = log_len / 2;
		memmove(log_text, log_text + log_len - half, half);
		log_len = half;
	}
	if (log_len + len <= sizeof log_text) {
		memcpy(log_text + log_len, line, len);
		log_len += len;
	}
	pthread_mutex_unlock(&log_lock);
}

static void log_install(void) { av_log_set_callback(keep_log); }

static size_t log_take(char *to, size_t size) {
	pthread_mutex_lock(&log_lock);
	size_t n = log_len < size ? log_len : size;
	if (n > 0)
		memcpy(to, log_text, n);
	log_len = 0;
	pthread_mutex_unlock(&log_lock);
	return n;
}

enum { eagain = AVERROR(EAGAIN), eof = AVERROR_EOF };
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ErrAgain says that a decoder, encoder or graph wants input before it has output.
var ErrAgain = errors.New("more input is needed")

// Error is what a function of the libraries has refused.
type Error struct {
	Op   string // what was tried
	Code int    // an AVERROR
	Log  string // what the libraries said since the last error; a few lines, "" for nothing
}

func (e *Error) Error() string {
	var text [C.AV_ERROR_MAX_STRING_SIZE]C.char
	C.av_strerror(C.int(e.Code), &text[0], C.AV_ERROR_MAX_STRING_SIZE)
	s := e.Op + ": " + C.GoString(&text[0])
	if e.Log != "" {
		s += " (" + strings.ReplaceAll(e.Log, "\n", "; ") + ")"
	}
	return s
}

// mostBlock is how many bytes the libraries may allocate at once: a plane of a picture of
// 16 bits for each of 4 components in 8192 × 4320 pixels, and a little.
const mostBlock = 320 << 20

var install = sync.OnceFunc(func() {
	C.log_install()
	C.av_max_alloc(mostBlock)
})

// failed is the error of a return code: nil from 0 on, io.EOF, ErrAgain or an *Error.
func failed(op string, code C.int) error {
	switch {
	case code >= 0:
		return nil
	case code == C.eof:
		return io.EOF
	case code == C.eagain:
		return ErrAgain
	}
	var text [4096]C.char
	n := C.log_take(&text[0], C.size_t(len(text)))
	return &Error{Op: op, Code: int(code), Log: said(C.GoStringN(&text[0], C.int(n)))}
}

// forget drops what the libraries have said.
func forget() { C.log_take(nil, 0) }

var address = regexp.MustCompile(` @ 0x[0-9a-f]+`)

// said are the last different lines of what the libraries have said, without addresses in
// memory.
func said(text string) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(text, "\ufffd")) {
		line = strings.TrimSpace(address.ReplaceAllString(line, ""))
		if line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-6):], "\n")
}

// live counts what has not been released.
var live struct{ inputs, decoders, encoders, graphs, packets, frames, data atomic.Int64 }

// Counts is how many there are of each kind.
type Counts struct {
	Inputs, Decoders, Encoders, Graphs, Packets, Frames int64

	Data int64 // packets and frames that hold memory
}

// Live counts what has not been released.
func Live() Counts {
	return Counts{
		live.inputs.Load(), live.decoders.Load(), live.encoders.Load(), live.graphs.Load(), live.packets.Load(), live.frames.Load(),
		live.data.Load(),
	}
}

// Check has Unref overwrite what nobody else refers to. For tests: set it before anything
// else is used.
var Check bool

// Rational is a fraction of seconds, or a rate.
type Rational struct{ Num, Den int }

// Float is 0 where the fraction is not known.
func (r Rational) Float() float64 {
	if r.Den == 0 {
		return 0
	}
	return float64(r.Num) / float64(r.Den)
}

func (r Rational) String() string { return fmt.Sprintf("%d/%d", r.Num, r.Den) }

func (r Rational) c() C.AVRational { return C.AVRational{num: C.int(r.Num), den: C.int(r.Den)} }

func rational(r C.AVRational) Rational { return Rational{int(r.num), int(r.den)} }

// NoTime is a time stamp that is not known.
const NoTime = int64(C.AV_NOPTS_VALUE)

// Rescale is a time stamp in another unit, rounded to the nearest.
func Rescale(t int64, from, to Rational) int64 {
	if t == NoTime {
		return NoTime
	}
	return int64(C.av_rescale_q_rnd(C.int64_t(t), from.c(), to.c(), C.AV_ROUND_NEAR_INF))
}

// dictionary is options as the libraries take them. The caller frees it.
func dictionary(options map[string]string) *C.AVDictionary {
	var d *C.AVDictionary
	for k, v := range options {
		ck, cv := C.CString(k), C.CString(v)
		C.av_dict_set(&d, ck, cv, 0)
		C.free(unsafe.Pointer(ck))
		C.free(unsafe.Pointer(cv))
	}
	return d
}

// unknown names the options that were not taken, "" for none.
func unknown(d *C.AVDictionary) string {
	var names []string
	empty := C.CString("")
	defer C.free(unsafe.Pointer(empty))
	for e := C.av_dict_get(d, empty, nil, C.AV_DICT_IGNORE_SUFFIX); e != nil; e = C.av_dict_get(d, empty, e, C.AV_DICT_IGNORE_SUFFIX) {
		names = append(names, C.GoString(e.key))
	}
	return strings.Join(names, ", ")
}
