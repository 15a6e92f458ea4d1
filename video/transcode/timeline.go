package transcode

import (
	"github.com/fre-engine/fre/video/ffmpeg"
)

// timeline joins the parts of a source whose times jump: of recordings that were put one behind
// the other, or whose sender began anew. It sees all packets of pictures and sound from the
// source's begin on, in their order. Like the ffmpeg program (ts_discontinuity_process in
// fftools/ffmpeg.c) it moves what follows a jump, all streams alike, to where the stream's
// next packet is due; unlike it, it takes no time for a jump up to which another stream goes
// on. What it counts in are microseconds.
type timeline struct {
	restarts bool          // the container's times may begin anew
	shift    int64         // what was added to times last
	due      map[int]*beat // by stream
	latest   int64         // when all ends that has come
	packets  int64
	kept     int64 // of longer gaps, together
	joins    int
}

// beat is where a stream is. Its shift is that of all streams, unless what comes of it is still
// from before the last jump.
type beat struct{ last, due, shift int64 }

// Times jump where they go back, or ahead by a gap. A container whose times may begin anew is
// believed no longer gap than the ffmpeg program does; another is, but not for ever: its
// pictures would be made for as long as it likes. A minute for each packet is believed, and
// no gap of more than ten.
const (
	second      = 1_000_000
	backRestart = second / 10
	backElse    = second
	gapRestart  = 10 * second
	gapElse     = 600 * second
	gapPacket   = 60 * second

	mostMicro = 1 << 58 // what a time may be, so that nothing that is computed with it overflows
)

// micro is the unit of a timeline.
var micro = ffmpeg.Rational{Num: 1, Den: second}

func newTimeline(in *ffmpeg.Input) *timeline {
	return &timeline{restarts: in.Restarts(), due: map[int]*beat{}}
}

// set moves a packet of a stream to its time.
func (c *timeline) set(p *ffmpeg.Packet, s ffmpeg.Stream) {
	shift := c.shift
	if (s.Kind == ffmpeg.Video || s.Kind == ffmpeg.Audio) && !s.Cover {
		b := c.due[s.Index]
		switch {
		case p.DTS() != ffmpeg.NoTime:
			b = c.see(s, p.DTS(), p.Duration())
		case b != nil: // it comes when it is due
			c.note(b, b.due, length(s, p.Duration()))
		}
		if b != nil {
			shift = b.shift
		}
	}
	p.Shift(ffmpeg.Rescale(shift, micro, s.TimeBase))
}

// length returns the duration of a packet: the packet's own, in the stream's units, or the
// one that the frame rate gives, and at most the longest gap.
func length(s ffmpeg.Stream, duration int64) int64 {
	if rate := s.FrameRate.Float(); duration <= 0 && rate > 0 {
		return int64(second / rate)
	}
	return min(max(0, ffmpeg.Rescale(duration, s.TimeBase, micro)), gapElse)
}

// note notes a packet of a time.
func (c *timeline) note(b *beat, at, length int64) {
	c.packets++
	b.last, b.due = at, at+length
	c.latest = max(c.latest, b.due)
}

// see notes a packet of which the file says the time, and whether times jump there.
func (c *timeline) see(s ffmpeg.Stream, dts, duration int64) *beat {
	raw := min(max(ffmpeg.Rescale(dts, s.TimeBase, micro), -mostMicro), mostMicro)
	b := c.due[s.Index]
	if b == nil {
		at := raw + c.shift
		b = &beat{last: at, due: at, shift: c.shift}
		c.due[s.Index] = b
		switch {
		case c.packets == 0:
			c.latest = at
		case c.jumps(at-c.latest) || c.restarts && c.latest-at > gapRestart:
			b.due = c.latest
			c.join(raw, b)
		}
	} else {
		far := func(shift int64) int64 { return max(raw+shift-b.due, b.due-raw-shift) }
		if far(c.shift) < far(b.shift) {
			b.shift = c.shift
		}
		at := raw + b.shift
		if back := b.last - at; back > backElse || c.restarts && back > backRestart || c.jumps(at-max(b.due, c.latest)) {
			c.join(raw, b)
		}
	}
	c.note(b, raw+b.shift, length(s, duration))
	return b
}

// jumps says whether a gap is none but a jump.
func (c *timeline) jumps(gap int64) bool {
	switch {
	case gap <= gapRestart:
		return false
	case c.restarts || gap > gapElse || c.kept+gap > gapElse+c.packets*gapPacket:
		return true
	}
	c.kept += gap
	return false
}

// join moves all that comes from a packet on, so that it comes when it is due.
func (c *timeline) join(raw int64, b *beat) {
	c.shift = b.due - raw
	b.shift = c.shift
	c.joins++
}
