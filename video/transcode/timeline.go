package transcode

import (
	"github.com/fre-engine/fre/video/ffmpeg"
)

// timeline joins the parts of a source whose times jump: concatenated recordings, or a sender
// that was restarted. It sees all packets of pictures and sound in order, from the start of the
// source. After a jump it shifts the times of all streams, so that the stream's next packet
// follows the packet before, as the ffmpeg program does (ts_discontinuity_process in
// fftools/ffmpeg.c). Unlike ffmpeg, a timeline does not count a distance as a jump if another
// stream has packets up to its end. Its unit is the microsecond.
type timeline struct {
	restarts bool          // the container allows times to restart
	shift    int64         // current shift of all times
	due      map[int]*beat // by stream
	latest   int64         // end of all packets so far
	packets  int64
	kept     int64 // longer gaps accepted so far, in total
	joins    int
}

// beat is the position of a stream. Its shift is the shift of all streams, except while its
// packets are still from before the last jump.
type beat struct{ last, due, shift int64 }

// Times jump if they go back, or ahead by too much. In a container with restarting times the
// limits are those of the ffmpeg program. In any other container a gap may be real, up to ten
// minutes. All such gaps together are limited to ten minutes plus a minute for each packet,
// because the transcoder makes pictures for the whole gap.
const (
	second      = 1_000_000
	backRestart = second / 10
	backElse    = second
	gapRestart  = 10 * second
	gapElse     = 600 * second
	gapPacket   = 60 * second

	mostMicro = 1 << 58 // limit of a time: computations do not overflow
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
		case b != nil: // a packet without a time follows the packet before
			c.note(b, b.due, length(s, p.Duration()))
		}
		if b != nil {
			shift = b.shift
		}
	}
	p.Shift(ffmpeg.Rescale(shift, micro, s.TimeBase))
}

// length returns a packet's duration in microseconds: its own duration, or else by the frame
// rate, limited to the longest gap.
func length(s ffmpeg.Stream, duration int64) int64 {
	if rate := s.FrameRate.Float(); duration <= 0 && rate > 0 {
		return int64(second / rate)
	}
	return min(max(0, ffmpeg.Rescale(duration, s.TimeBase, micro)), gapElse)
}

// note records a packet with its time.
func (c *timeline) note(b *beat, at, length int64) {
	c.packets++
	b.last, b.due = at, at+length
	c.latest = max(c.latest, b.due)
}

// see records a packet with its time in the file and detects a jump.
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

// jumps reports whether a gap is a jump.
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

// join shifts all times so that the packet follows the packet before in its stream.
func (c *timeline) join(raw int64, b *beat) {
	c.shift = b.due - raw
	b.shift = c.shift
	c.joins++
}
