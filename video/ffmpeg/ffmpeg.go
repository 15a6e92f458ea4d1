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

// ErrAgain reports that a decoder, encoder or graph needs more input, or has output to be taken
// first.
var ErrAgain = errors.New("more input is needed")

// Error is a failure of the libraries.
type Error struct {
	Op   string // the attempted action
	Code int    // an AVERROR
	Log  string // the libraries' messages since the last error, a few lines; may be ""
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

// mostBlock is the most bytes of an allocation by the libraries: a plane of 8192 × 4320 pixels
// with four components of 16 bits, and some slack.
const mostBlock = 320 << 20

var install = sync.OnceFunc(func() {
	C.log_install()
	C.av_max_alloc(mostBlock)
})

// failed converts a return code: from 0 on to nil, else to io.EOF, ErrAgain or an *Error.
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

// forget drops the libraries' messages.
func forget() { C.log_take(nil, 0) }

var address = regexp.MustCompile(` @ 0x[0-9a-f]+`)

// said returns the last different lines of the libraries' messages, without memory addresses.
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

// live counts the unreleased objects.
var live struct{ inputs, decoders, encoders, graphs, packets, frames, data atomic.Int64 }

// Counts holds the number of unreleased objects of each kind.
type Counts struct {
	Inputs, Decoders, Encoders, Graphs, Packets, Frames int64

	Data int64 // packets and frames with content
}

// Live returns the number of unreleased objects.
func Live() Counts {
	return Counts{
		live.inputs.Load(), live.decoders.Load(), live.encoders.Load(), live.graphs.Load(), live.packets.Load(), live.frames.Load(),
		live.data.Load(),
	}
}

// Check makes Unref overwrite memory without other references. It is for tests, which must set it
// before any other use of the package.
var Check bool

// Rational is a fraction of seconds, or a rate.
type Rational struct{ Num, Den int }

// Float returns the value, or 0 for an unknown fraction.
func (r Rational) Float() float64 {
	if r.Den == 0 {
		return 0
	}
	return float64(r.Num) / float64(r.Den)
}

func (r Rational) String() string { return fmt.Sprintf("%d/%d", r.Num, r.Den) }

func (r Rational) c() C.AVRational { return C.AVRational{num: C.int(r.Num), den: C.int(r.Den)} }

func rational(r C.AVRational) Rational { return Rational{int(r.num), int(r.den)} }

// NoTime is an unknown time stamp.
const NoTime = int64(C.AV_NOPTS_VALUE)

// Rescale converts a time stamp to another unit, rounded to the nearest value. NoTime stays
// NoTime.
func Rescale(t int64, from, to Rational) int64 {
	if t == NoTime {
		return NoTime
	}
	return int64(C.av_rescale_q_rnd(C.int64_t(t), from.c(), to.c(), C.AV_ROUND_NEAR_INF))
}

// dictionary converts options for the libraries. The caller frees the result.
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

// unknown returns the names of the options not taken by the libraries, or "".
func unknown(d *C.AVDictionary) string {
	var names []string
	empty := C.CString("")
	defer C.free(unsafe.Pointer(empty))
	for e := C.av_dict_get(d, empty, nil, C.AV_DICT_IGNORE_SUFFIX); e != nil; e = C.av_dict_get(d, empty, e, C.AV_DICT_IGNORE_SUFFIX) {
		names = append(names, C.GoString(e.key))
	}
	return strings.Join(names, ", ")
}
