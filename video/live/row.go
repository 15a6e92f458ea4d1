package live

import (
	"math"
	"time"
)

// Durations of parts, segments and windows.
const (
	// partTarget is the length of a part (EXT-X-PART-INF). Only a part of a single sample may be
	// longer.
	partTarget = 500 * time.Millisecond
	// segmentTarget is the length after which a segment ends at the next key frame.
	segmentTarget = 2 * time.Second
	// segmentMost is the longest segment, with or without a key frame (EXT-X-TARGETDURATION).
	segmentMost = 6 * time.Second
	// partsListed is the distance from a playlist's end within which parts are listed and held in
	// memory.
	partsListed = 3 * segmentMost
	// leastWindow is the shortest window, for the needs of HLS playlists.
	leastWindow = 30 * time.Second
	// longestSample is the longest duration of a sample, even if the next sample comes later.
	longestSample = time.Second
)

// row holds a track's segments, through all epochs.
type row struct {
	segments []*segment // finished segments with a file, the oldest first
	listed   int        // index of the first segment in playlists
	open     *segment   // the unfinished segment; nil between two segments
	next     int64      // number of the next new segment
}

// segment is a stretch of a track in its own file: a sequence of parts.
type segment struct {
	number      int64 // media sequence number
	epoch       *epoch
	track       *Track
	start       int64 // on the stream's clock, in the track's time scale
	duration    int64
	size        int64
	independent bool // begins with a key frame
	parts       []part
	unlisted    time.Duration // time of leaving the playlists
}

// part is a fragment (moof, mdat).
type part struct {
	offset, size int64
	duration     int64
	independent  bool
	body         []byte // nil once the part is unlisted
}

func (s *segment) begin() time.Duration { return units(s.start, s.track.TimeScale) }

func (s *segment) end() time.Duration { return units(s.start+s.duration, s.track.TimeScale) }

func (s *segment) seconds() float64 { return float64(s.duration) / float64(s.track.TimeScale) }

// units converts n units of a time scale to a duration.
func units(n, scale int64) time.Duration {
	return time.Duration(n/scale)*time.Second + time.Duration(n%scale)*time.Second/time.Duration(scale)
}

// inUnits is the inverse of units.
func inUnits(d time.Duration, scale int64) int64 {
	return int64(d/time.Second)*scale + int64(math.Round(float64(d%time.Second)*float64(scale)/float64(time.Second)))
}

func (s *segment) add(p *part) {
	s.parts = append(s.parts, *p)
	s.size += p.size
	s.duration += p.duration
}

// trim drops the bodies of unlisted parts, and of parts before the last mostHeld bytes, from
// memory. The files still have the data.
func (r *row) trim() {
	held, end := int64(0), time.Duration(0)
	of := r.open
	for i := len(r.segments); ; {
		if of != nil {
			if len(of.parts) == 0 && of != r.open {
				return // made by an earlier run of the service
			}
			end = max(end, of.end())
			for n := len(of.parts) - 1; n >= 0; n-- {
				p := &of.parts[n]
				if p.body == nil {
					return // all earlier parts have none either
				}
				if held += p.size; held > mostHeld || end-of.end() > partsListed {
					p.body = nil
				}
			}
		}
		if i--; i < 0 {
			return
		}
		of = r.segments[i]
	}
}

// latest returns the number of the last part and of its segment. part is -1 without any part.
func (r *row) latest() (number int64, part int) {
	if r.open != nil && len(r.open.parts) > 0 {
		return r.open.number, len(r.open.parts) - 1
	}
	if n := len(r.segments); n > 0 {
		return r.segments[n-1].number, len(r.segments[n-1].parts) - 1
	}
	return r.next - 1, -1
}

// partsAhead is the number of parts beyond the last part for which a client may ask (Advance Part
// Limit, RFC 8216bis section 6.2.5.2).
const partsAhead = int(3 * time.Second / partTarget)

// far reports whether a segment is farther ahead than a client may ask for. If part is not
// negative, far answers for this part of the segment.
func (r *row) far(number int64, part int) bool {
	latest, last := r.latest()
	most := latest + 2
	if r.open == nil || len(r.open.parts) == 0 { // the last segment is whole: the next part belongs to its successor
		latest, last = latest+1, -1
	}
	if number > latest {
		last = -1
	}
	return number > most || number >= latest && part > last+partsAhead
}

// reached reports whether the playlist has a segment or, if part is not negative, this part of
// the segment. A part number beyond a segment's last part means the first part of the next
// segment (RFC 8216bis section 6.2.5.2).
func (r *row) reached(number int64, part int) bool {
	open := r.open != nil && len(r.open.parts) > 0
	if n := len(r.segments); n > 0 && r.segments[n-1].number >= number {
		last := r.segments[n-1]
		return number < last.number || part < len(last.parts) || part < 0 || open
	}
	return part >= 0 && open && r.open.number == number && len(r.open.parts) > part
}

// segment returns the finished segment of a number, or nil.
func (r *row) segment(number int64) *segment {
	if len(r.segments) == 0 {
		return nil
	}
	i := number - r.segments[0].number
	if i < 0 || i >= int64(len(r.segments)) {
		return nil
	}
	return r.segments[i]
}

// playable reports whether a playlist can list a finished segment.
func (r *row) playable() bool { return r != nil && r.listed < len(r.segments) }
