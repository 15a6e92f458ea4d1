package live

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Stream is a live stream. A single goroutine feeds the stream; all goroutines may read.
type Stream struct {
	name   string
	id     string        // makes addresses of media unique to this stream
	began  time.Time     // zero of the stream's clock
	window time.Duration // how far viewers may go back
	disk   *disk
	zero   time.Duration        // reading of the stream's clock at tick zero
	tick   func() time.Duration // a monotonic clock

	feed   feed // the feeding goroutine alone uses feed and the fields up to mu
	pace   pace
	epochs int   // number of the next epoch
	least  int64 // number of the first segment of a new track

	mu      sync.Mutex
	rows    map[string]*row // by track
	current *epoch          // nil before the first epoch
	flowing bool            // an input feeds the stream
	version uint64          // grows with each change of a playlist
	changed chan struct{}   // closed by the next version
	closed  bool
	waiting int              // blocked requests
	texts   map[string]*text // rendered playlists, by name
}

// text is a playlist as rendered for a version of the stream.
type text struct {
	version       uint64
	plain, packed []byte // packed is gzip
}

// resume opens a stream from its directory. The machine's clock may be set during and between
// runs of the service. Therefore the stream uses now only here and tick afterwards: its clock
// never goes back.
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

// clock returns the time on the stream's clock.
func (s *Stream) clock() time.Duration { return s.zero + s.tick() }

// feed is the state of the feeding goroutine.
type feed struct {
	epoch  *epoch
	tracks []*making
	leader *making         // its key frames end segments
	begun  bool            // the leader's first key frame has arrived
	zero   time.Duration   // start of the epoch on the input's clock
	cuts   []time.Duration // ends of the leader's segments, from zero, still ahead of some track
	passed int             // number of ends dropped from cuts
}

// pass drops the cuts behind all tracks.
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

// making is the state of a track in the current epoch.
type making struct {
	*Track
	row      *row
	zero     int64 // offset from the input's decoding times to the stream's
	pending  *Sample
	last     int64 // duration of the last sample
	finished int   // segments in this epoch
	fragment fragment
}

// Begin ends the current epoch and begins another with tracks, which the caller must not change
// afterwards.
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

// Write takes a sample of the track at index track. Samples before the first key frame of the
// leading track are dropped.
func (s *Stream) Write(track int, sample Sample) error {
	m := s.feed.tracks[track]
	if len(sample.Data) > mostSample {
		return fmt.Errorf("%w: a sample of %d bytes", errBacklog, len(sample.Data))
	}
	sample.Decode = m.after(sample.Decode)
	at := units(sample.Decode, m.TimeScale)
	if begun, err := s.begin(m, &sample, at); err != nil || !begun {
		return err
	}
	if m.pending == nil {
		if !s.feed.opens(m, &sample, at) {
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
	next := units(duration, m.TimeScale)
	full := units(m.fragment.duration, m.TimeScale)+next > partTarget
	var err error
	if s.cuts(m, &sample, next) {
		err = s.cut(m, at-s.feed.zero)
	} else if full {
		err = s.flush(m)
	}
	m.pending = &sample
	return err
}

// begin starts the epoch at the first key frame of the leader. It returns false before that.
func (s *Stream) begin(m *making, sample *Sample, at time.Duration) (bool, error) {
	if s.feed.begun {
		return true, nil
	}
	if m != s.feed.leader || !sample.Key {
		return false, nil
	}
	return true, s.startEpoch(at)
}

// opens reports whether a track can begin with the sample at a time: not before the leader, and with
// a key frame.
func (f *feed) opens(m *making, sample *Sample, at time.Duration) bool {
	return at >= f.zero-time.Millisecond && (m.Kind != "video" || sample.Key)
}

// cut finishes a track's segment before a sample at a time of the feed.
func (s *Stream) cut(m *making, at time.Duration) error {
	err := s.finish(m)
	if err == nil && m == s.feed.leader {
		s.feed.cuts = append(s.feed.cuts, at)
	}
	s.feed.pass()
	return err
}

// cuts reports whether the sample, which lasts next, begins a new segment of its track. The leader
// decides, and the other tracks follow at their next key frame.
func (s *Stream) cuts(m *making, sample *Sample, next time.Duration) bool {
	length := units(m.row.open.duration+m.fragment.duration, m.TimeScale)
	switch {
	case length+next > segmentMost:
		return true
	case m == s.feed.leader:
		return sample.Key && length+next/2 >= segmentTarget
	case m.finished-s.feed.passed < len(s.feed.cuts):
		at := units(sample.Decode, m.TimeScale) - s.feed.zero
		return sample.Key && at+next/2 >= s.feed.cuts[m.finished-s.feed.passed]
	}
	return false
}

// after returns a decoding time later than the last sample's. If the input's clock stands still
// or goes back a little, samples get the least duration.
func (m *making) after(decode int64) int64 {
	if m.pending != nil {
		return max(decode, m.pending.Decode+1)
	}
	return decode
}

// startEpoch begins the epoch now. at is the first sample's time on the input's clock.
func (s *Stream) startEpoch(at time.Duration) error {
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

// endLocked returns the latest end of a finished segment, over all tracks.
func (s *Stream) endLocked() (end time.Duration) {
	for _, r := range s.rows {
		if n := len(r.segments); n > 0 {
			end = max(end, r.segments[n-1].end())
		}
	}
	return end
}

// take puts the pending sample into the fragment. A sample too long for the part begins a new
// part.
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

// flush publishes the fragment as a part.
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

// part writes the fragment to the segment's file. The result is nil for an empty fragment.
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

// finish ends the open segment. Playlists get the last part and the segment's end in one step, so
// no playlist hints at a part that never comes.
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
	return s.disk.rewrite(&left{current: s.current, epochs: s.epochs, least: s.least, rows: s.rows}) // only the feeding goroutine changes these fields
}

// unlistLocked removes segments before the window from playlists. A track of the current epoch
// keeps its last segment, a former track keeps none.
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

// pruneLocked returns the segments to delete. An unlisted segment stays for as long as a client's
// playlist may list the segment (RFC 8216 section 6.2.2).
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

// End ends the epoch, if any. The samples so far become a segment, however short.
func (s *Stream) End() {
	for _, m := range s.feed.tracks {
		if m.pending != nil && s.feed.begun {
			if s.take(m, max(m.last, 1)) == nil {
				_ = s.finish(m) // fails with the disk; the next input gets the error
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
		switch { // the disk failed before the segment was finished
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

// wakeLocked wakes all waiting requests.
func (s *Stream) wakeLocked() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

// ahead returns how far a track's decoding time is ahead of the stream's clock. ok is false
// before the epoch has started.
func (s *Stream) ahead(track int, decode int64) (d time.Duration, ok bool) {
	if !s.feed.begun {
		return 0, false
	}
	m := s.feed.tracks[track]
	return units(m.after(decode)+m.zero, m.TimeScale) - s.clock(), true
}

// wake marks the stream closed and wakes all waiting requests for good. The stream must have no
// input.
func (s *Stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wakeLocked()
}
