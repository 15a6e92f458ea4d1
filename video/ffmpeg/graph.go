package ffmpeg

/*
#include <libavfilter/avfilter.h>
#include <libavfilter/buffersink.h>
#include <libavfilter/buffersrc.h>

static AVFilterContext *filter_at(AVFilterGraph *g, int i) { return g->filters[i]; }
enum { einval = AVERROR(EINVAL) };
*/
import "C"

import (
	"strings"
	"unsafe"
)

// Graph is a graph of filters with one source and one or more sinks.
type Graph struct {
	c    *C.AVFilterGraph
	in   *C.AVFilterContext
	outs []*C.AVFilterContext
}

// NewGraph builds the graph of a description in the libraries' language: from a source (buffer or
// abuffer, with options for the format of the input) to sinks (buffersink or abuffersink),
// numbered in order of appearance. The caller closes the graph.
func NewGraph(description string, threads int) (*Graph, error) {
	install()
	g := &Graph{c: must(C.avfilter_graph_alloc())}
	live.graphs.Add(1)
	g.c.nb_threads = C.int(threads)
	text := C.CString(description)
	defer C.free(unsafe.Pointer(text))
	var ins, outs *C.AVFilterInOut
	err := failed("make the filters "+description, C.avfilter_graph_parse2(g.c, text, &ins, &outs))
	C.avfilter_inout_free(&ins)
	C.avfilter_inout_free(&outs)
	if err == nil {
		err = failed("connect the filters "+description, C.avfilter_graph_config(g.c, nil))
	}
	for i := 0; err == nil && i < int(g.c.nb_filters); i++ {
		f := C.filter_at(g.c, C.int(i))
		switch name := C.GoString(f.filter.name); {
		case strings.HasSuffix(name, "buffersink"):
			g.outs = append(g.outs, f)
		case name == "buffer", name == "abuffer":
			g.in = f
		}
	}
	if err == nil && (g.in == nil || len(g.outs) == 0) {
		err = &Error{Op: "make the filters " + description + ": a source and a sink are needed", Code: int(C.einval)}
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// End marks the end of the input. pts is the end of the last frame.
func (g *Graph) End(pts int64) error {
	return failed("filter", C.av_buffersrc_close(g.in, C.int64_t(pts), 0))
}

// Send moves a frame into the source. Afterwards f is empty.
func (g *Graph) Send(f *Frame) error {
	err := failed("filter", C.av_buffersrc_add_frame_flags(g.in, f.c, 0))
	if err == nil {
		f.moved()
	}
	return err
}

// Receive stores the next frame of a sink in f. ErrAgain asks for more input. io.EOF follows the
// last frame.
func (g *Graph) Receive(sink int, f *Frame) error {
	f.Unref()
	if err := failed("filter", C.av_buffersink_get_frame(g.outs[sink], f.c)); err != nil {
		return err
	}
	f.filled()
	return nil
}

// TimeBase returns the time base of a sink's frames.
func (g *Graph) TimeBase(sink int) Rational {
	return rational(C.av_buffersink_get_time_base(g.outs[sink]))
}

// FrameSize makes a sink return frames of n samples of sound. The last frame may be shorter.
func (g *Graph) FrameSize(sink, n int) { C.av_buffersink_set_frame_size(g.outs[sink], C.uint(n)) }

// Close releases the filters. It may be called again.
func (g *Graph) Close() {
	if g.c == nil {
		return
	}
	C.avfilter_graph_free(&g.c)
	live.graphs.Add(-1)
}
