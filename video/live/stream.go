package live

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fre-engine/fre/video/asset"
)

// The durations of what a stream is cut into.
const (
	// partTarget is that of a part (EXT-X-PART-INF); none is longer, but one of a single sample.
	partTarget = 500 * time.Millisecond
	// segmentTarget is from when on a segment ends with the next key frame.
	segmentTarget = 2 * time.Second
	// segmentMost ends a segment without a key frame, too (EXT-X-TARGETDURATION).
	segmentMost = 6 * time.Second
	// partsListed is how far from the end of a playlist parts are listed and in memory.
	partsListed = 3 * segmentMost
	// leastWindow is what viewers may go back at least: what the playlists of HLS need.
	leastWindow = 30 * time.Second
	// longestSample is what a sample takes at most, whenever the next one comes.
	longestSample = time.Second
)

// Limits of what an input may send.
const (
	mostSample  = 8 << 20 // bytes
	mostPart    = 16 << 20
	mostSegment = 64 << 20
	mostHeld    = 32 << 20 // of a track's parts in memory
	mostTracks  = 16
)

// Track is one track of a live input.
type Track struct {
	asset.LiveTrack
	TimeScale int64  `json:"time_scale"`
	Init      []byte `json:"init"` // initialisation segment; its track's id is 1
}

// Sample is an access unit as MP4 has it: of H.264, NAL units behind their lengths.
type Sample struct {
	Decode int64 // in the track's time scale, on the input's own clock
	Offset int64 // from there to when it is shown
	Key    bool
	Data   []byte // not to be changed afterwards
}

// Stream is a live stream. One goroutine feeds it; all others may read.
type Stream struct {
	name   string
	id     string        // in addresses of media, so that they are of this stream alone
	began  time.Time     // zero of its clock
	window time.Duration // that viewers may go back
	disk   *disk
	zero   time.Duration        // of tick, on the stream's clock
	tick   func() time.Duration // a clock that nobody sets

	feed   feed // of the goroutine that feeds it, as all up to mu
	pace   pace
	epochs int   // number of the next
	least  int64 // number that a new track's segments begin with

	mu      sync.Mutex
	rows    map[string]*row // by track
	current *epoch          // nil before the first
	flowing bool            // an input feeds it
	version uint64          // of all that playlists say
	changed chan struct{}   // closed by the next version
	closed  bool
	waiting int              // requests
	texts   map[string]*text // playlists of a version, by name
}

// resume is the stream of a directory that is opened, as it was left. The machine's clock may
// be set while the stream goes on, and between two runs of the service: it is asked once, and
// the stream's never goes back.
func resume(d *disk, name, id string, began time.Time, window time.Duration, now time.Time, tick func() time.Duration) (*Stream, error) {
	l, err := d.open(now.Sub(began))
	if err != nil {
		return nil, err
	}
	s := &Stream{
		name: name, id: id, began: began, window: window, disk: d, tick: tick, epochs: l.epochs, least: l.least,
		rows: l.rows, current: l.current, changed: make(chan struct{}), texts: map[string]*text{},
	}
	s.zero = max(now.Sub(began), s.endLocked()) - tick()
	s.unlistLocked()
	for _, r := range s.rows {
		for _, of := range r.segments[:r.listed] {
			of.unlisted = s.clock()
		}
	}
	return s, nil
}

// clock is the stream's own.
func (s *Stream) clock() time.Duration { return s.zero + s.tick() }

// row are the segments of a track, through all epochs.
type row struct {
	segments []*segment // finished ones whose files are there, the oldest first
	listed   int        // index of the first that playlists have
	open     *segment   // nil between two
	next     int64      // number of the segment that comes after all of these
}

// segment is a stretch of a track in a file of its own: its parts one after another.
type segment struct {
	number      int64 // media sequence number
	epoch       *epoch
	track       *Track
	start       int64 // on the stream's clock, in the track's time scale
	duration    int64
	size        int64
	independent bool // it begins with a key frame
	parts       []part
	unlisted    time.Duration // when it left the playlists
}

// part is a fragment (moof, mdat).
type part struct {
	offset, size int64
	duration     int64
	independent  bool
	body         []byte // nil once it is no longer listed
}

func (s *segment) begin() time.Duration { return units(s.start, s.track.TimeScale) }
func (s *segment) end() time.Duration   { return units(s.start+s.duration, s.track.TimeScale) }
func (s *segment) seconds() float64     { return float64(s.duration) / float64(s.track.TimeScale) }

// units is a time of so many units of a second.
func units(n, scale int64) time.Duration {
	return time.Duration(n/scale)*time.Second + time.Duration(n%scale)*time.Second/time.Duration(scale)
}

// inUnits is the reverse of units.
func inUnits(d time.Duration, scale int64) int64 {
	return int64(d/time.Second)*scale + int64(math.Round(float64(d%time.Second)*float64(scale)/float64(time.Second)))
}

// Errors of an input.
var (
	errClosed  = errors.New("the stream is closed")
	errTracks  = errors.New("the tracks are not what can be served")
	errBacklog = errors.New("a part has more bytes than allowed")
)

// feed is what the goroutine knows that feeds a stream.
type feed struct {
	epoch  *epoch
	tracks []*making
	leader *making         // whose key frames end segments
	begun  bool            // the leader's first key frame has come
	zero   time.Duration   // of the input's clock, where the epoch starts
	cuts   []time.Duration // since then, where the leader's segments have ended, as far as another track comes there yet
	passed int             // how many there were before these
}

// pass forgets where all tracks have been.
func (f *feed) pass() {
	gone := f.passed + len(f.cuts)
	for _, m := range f.tracks {
		if m != f.leader {
			gone = min(gone, m.finished)
		}
	}
	f.cuts = slices.Delete(f.cuts, 0, gone-f.passed)
	f.passed = gone
}

// making is what is made of a track.
type making struct {
	*Track
	row      *row
	zero     int64 // what is added to times of decoding
	pending  *Sample
	last     int64 // duration of the sample before
	finished int   // segments of this epoch
	fragment fragment
}

// Begin begins an epoch of an input with these tracks, which are not changed afterwards.
func (s *Stream) Begin(tracks []Track) error {
	e := &epoch{Tracks: tracks, Number: s.epochs}
	if err := e.check(); err != nil {
		return err
	}
	s.End()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.current != nil {
		e.share(s.current)
	}
	s.feed = feed{epoch: e}
	for i := range tracks {
		t := &tracks[i]
		r := s.rows[t.Name]
		if r == nil {
			r = &row{next: s.least}
			s.rows[t.Name] = r
		}
		m := &making{Track: t, row: r}
		s.feed.tracks = append(s.feed.tracks, m)
		if s.feed.leader == nil || s.feed.leader.Kind != "video" && t.Kind == "video" {
			s.feed.leader = m
		}
	}
	return nil
}

// Write takes a sample of the track of an index in. Those before the first key frame of the
// picture are left out.
func (s *Stream) Write(track int, sample Sample) error {
	m := s.feed.tracks[track]
	if len(sample.Data) > mostSample {
		return fmt.Errorf("%w: a sample of %d bytes", errBacklog, len(sample.Data))
	}
	sample.Decode = m.after(sample.Decode)
	at := units(sample.Decode, m.TimeScale)
	if !s.feed.begun {
		if m != s.feed.leader || !sample.Key {
			return nil
		}
		if err := s.start(at); err != nil {
			return err
		}
	}
	if m.pending == nil {
		if at < s.feed.zero-time.Millisecond || m.Kind == "video" && !sample.Key {
			return nil
		}
		m.pending = &sample
		return nil
	}
	duration := sample.Decode - m.pending.Decode
	if units(duration, m.TimeScale) > longestSample {
		duration = max(m.last, 1)
	}
	if err := s.take(m, duration); err != nil {
		return err
	}
	segment, open := at-s.feed.zero, m.row.open
	length := units(open.duration+m.fragment.duration, m.TimeScale)
	next := units(duration, m.TimeScale)
	var cut bool
	switch {
	case length+next > segmentMost:
		cut = true
	case m == s.feed.leader:
		cut = sample.Key && length+next/2 >= segmentTarget
	case m.finished-s.feed.passed < len(s.feed.cuts):
		cut = sample.Key && segment+next/2 >= s.feed.cuts[m.finished-s.feed.passed]
	}
	full := units(m.fragment.duration, m.TimeScale)+next > partTarget
	var err error
	if cut {
		if err = s.finish(m); err == nil && m == s.feed.leader {
			s.feed.cuts = append(s.feed.cuts, segment)
		}
		s.feed.pass()
	} else if full {
		err = s.flush(m)
	}
	m.pending = &sample
	return err
}

// after is a time of decoding that is behind the last one: a clock that stands still, or goes
// back for less than an epoch, makes no more of a stream than its samples' least durations.
func (m *making) after(decode int64) int64 {
	if m.pending != nil {
		return max(decode, m.pending.Decode+1)
	}
	return decode
}

// start has the epoch start now, at a time of the input's clock.
func (s *Stream) start(at time.Duration) error {
	f := &s.feed
	now := s.clock()
	if err := s.pace.take(now); err != nil {
		return err
	}
	f.begun, f.zero = true, at
	s.mu.Lock()
	defer s.mu.Unlock()
	f.epoch.Start = now.Truncate(time.Millisecond)
	if end := s.endLocked(); end > 0 { // the last input may have been ahead
		f.epoch.Start = max(f.epoch.Start, (end + time.Millisecond).Truncate(time.Millisecond))
	}
	for _, m := range f.tracks {
		m.zero = inUnits(f.epoch.Start, m.TimeScale) - inUnits(at, m.TimeScale)
	}
	if err := s.disk.log(entry{Epoch: f.epoch}); err != nil {
		return err
	}
	s.current, s.flowing = f.epoch, true
	s.epochs++
	return nil
}

// endLocked is where the last of the finished segments ends, of all tracks.
func (s *Stream) endLocked() (end time.Duration) {
	for _, r := range s.rows {
		if n := len(r.segments); n > 0 {
			end = max(end, r.segments[n-1].end())
		}
	}
	return end
}

// take puts the pending sample into the fragment that is being made. Where it does not fit
// into the part, that ends before it.
func (s *Stream) take(m *making, duration int64) error {
	if m.fragment.duration > 0 && units(m.fragment.duration+duration, m.TimeScale) > partTarget {
		if err := s.flush(m); err != nil {
			return err
		}
	}
	p := m.pending
	decode := max(p.Decode+m.zero, 0)
	if m.row.open == nil {
		s.mu.Lock()
		m.row.open = &segment{number: m.row.next, epoch: s.feed.epoch, track: m.Track, start: decode, independent: p.Key}
		m.row.next++
		s.mu.Unlock()
	}
	if m.fragment.bytes+len(p.Data) > mostPart {
		return fmt.Errorf("%w: %d", errBacklog, mostPart)
	}
	m.last = duration
	m.fragment.add(p, decode, duration)
	return nil
}

// flush makes a part of the fragment.
func (s *Stream) flush(m *making) error {
	p, err := s.part(m)
	if err != nil || p == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.row.open.add(p)
	m.row.trim()
	s.wakeLocked()
	return nil
}

// part writes the fragment to the segment's file; it is nil where there is nothing in it.
func (s *Stream) part(m *making) (*part, error) {
	if m.fragment.duration == 0 {
		return nil, nil
	}
	open := m.row.open
	p := &part{offset: open.size, duration: m.fragment.duration, independent: m.fragment.independent}
	var err error
	if p.body, err = m.fragment.encode(); err != nil {
		return nil, err
	}
	p.size = int64(len(p.body))
	if open.size+p.size > mostSegment {
		return nil, fmt.Errorf("%w: a segment of %d", errBacklog, mostSegment)
	}
	return p, s.disk.write(m.Name, open.number, p.offset, p.body)
}

func (s *segment) add(p *part) {
	s.parts = append(s.parts, *p)
	s.size += p.size
	s.duration += p.duration
}

// finish ends the segment that is being made. Its last part and its end are told of at once:
// no playlist hints at a part that does not come.
func (s *Stream) finish(m *making) error {
	last, err := s.part(m)
	if err != nil || m.row.open == nil {
		return err
	}
	whole := *m.row.open
	if last != nil {
		whole.add(last)
	}
	if err := s.disk.finish(&whole); err != nil {
		return err
	}
	m.finished++
	s.mu.Lock()
	m.row.segments = append(m.row.segments, &whole)
	m.row.open = nil
	gone := s.pruneLocked()
	m.row.trim()
	s.wakeLocked()
	all := 0
	for _, r := range s.rows {
		all += len(r.segments)
	}
	s.mu.Unlock()
	if err := s.disk.remove(gone); err != nil || s.disk.count < 4*all+1000 {
		return err
	}
	return s.disk.rewrite(&left{current: s.current, epochs: s.epochs, least: s.least, rows: s.rows}) // nobody else changes them
}

// unlistLocked takes from the playlists what is before the window. The tracks of the epoch
// keep their last segment, those that the stream has no more keep nothing.
func (s *Stream) unlistLocked() {
	now, end := s.clock(), s.endLocked()
	for name, r := range s.rows {
		least := 0
		if s.current != nil && s.current.track(name) != nil {
			least = 1
		}
		for r.listed < len(r.segments)-least && end-r.segments[r.listed].end() >= s.window {
			r.segments[r.listed].unlisted = now
			r.listed++
		}
	}
}

// pruneLocked returns what nobody is to ask for any more: a segment stays as long again as a
// playlist may have had it (RFC 8216 section 6.2.2).
func (s *Stream) pruneLocked() (gone []*segment) {
	s.unlistLocked()
	now := s.clock()
	for _, r := range s.rows {
		keep := 0
		for keep < r.listed && now-r.segments[keep].unlisted > s.window+segmentMost {
			keep++
		}
		if keep > 0 {
			gone = append(gone, r.segments[:keep]...)
			r.segments = append([]*segment(nil), r.segments[keep:]...)
			r.listed -= keep
		}
	}
	return gone
}

// trim lets go of the parts in memory that are no longer listed, and of those before the last
// mostHeld bytes: the files have them.
func (r *row) trim() {
	held, end := int64(0), time.Duration(0)
	of := r.open
	for i := len(r.segments); ; {
		if of != nil {
			if len(of.parts) == 0 && of != r.open {
				return // it was made before the service began
			}
			end = max(end, of.end())
			for n := len(of.parts) - 1; n >= 0; n-- {
				p := &of.parts[n]
				if p.body == nil {
					return // nor has one before it
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

// End ends the epoch, if there is one: what has come of it is a segment, however short.
func (s *Stream) End() {
	for _, m := range s.feed.tracks {
		if m.pending != nil && s.feed.begun {
			if s.take(m, max(m.last, 1)) == nil {
				_ = s.finish(m) // as it fails with the disk, which the next input is told of
			}
		}
	}
	s.feed = feed{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.flowing {
		return
	}
	for _, r := range s.rows {
		switch { // it could not be finished, as the disk failed
		case r.open == nil:
		case len(r.open.parts) > 0:
			r.segments = append(r.segments, r.open)
		default:
			r.next--
		}
		r.open = nil
	}
	s.flowing = false
	s.wakeLocked()
}

// wakeLocked has those look again who wait for something.
func (s *Stream) wakeLocked() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

// ahead is how far a time of a track's is ahead of the clock; ok is false before the epoch
// has started.
func (s *Stream) ahead(track int, decode int64) (d time.Duration, ok bool) {
	if !s.feed.begun {
		return 0, false
	}
	m := s.feed.tracks[track]
	return units(m.after(decode)+m.zero, m.TimeScale) - s.clock(), true
}

// wake has nobody wait for a stream any more that is fed by nobody.
func (s *Stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wakeLocked()
}
