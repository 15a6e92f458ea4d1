package viewers

import (
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/load"
)

// digits is the precision of histograms in decimal digits. Steps of the time line have a digit
// less.
const digits = 3

// steps is the most steps of the time line. A step lasts at least a second.
const steps = 100

// stats collects the measurements of all viewers during a run.
type stats struct {
	config *Config
	clock  clock
	cpu    time.Duration // of the process before the run
	rec    *load.Recorder

	mu         sync.Mutex
	counts     Report // the fields counted directly
	segments   *hdrhistogram.Histogram
	firstBytes *hdrhistogram.Histogram
	startUps   *hdrhistogram.Histogram
	seeks      *hdrhistogram.Histogram
	started    []bool // by index of viewer
	stalled    []bool
	rungs      map[Rung]time.Duration // playing time of the loaded segments
	bits       float64                // of loaded segments
	plays      time.Duration          // playing time of loaded segments
	bins       []bin
	width      time.Duration // duration of a bin
}

// bin is a step of the time line.
type bin struct {
	requests, errors uint64
	bytes            int64
	bits             float64       // of segments
	picture          time.Duration // playing time of picture segments
	there, stalled   time.Duration // total of all viewers
	latency          *hdrhistogram.Histogram
}

func newStats(c *Config, k clock) *stats {
	s := &stats{
		config: c, clock: k, cpu: processTime(),
		rec:      load.NewRecorder(c.URLs[0], c.Viewers, k.time(0), c.Duration),
		segments: load.NewHistogram(digits), firstBytes: load.NewHistogram(digits), startUps: load.NewHistogram(digits), seeks: load.NewHistogram(digits),
		started: make([]bool, c.Viewers), stalled: make([]bool, c.Viewers), rungs: map[Rung]time.Duration{},
		width: max(time.Second, c.Duration/steps),
	}
	s.counts.Errors = map[string]uint64{}
	s.bins = make([]bin, (c.Duration+s.width-1)/s.width)
	return s
}

// processTime returns the CPU time of this process.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bin returns the bin of a time. Later times belong to the last bin.
func (s *stats) bin(at time.Duration) *bin {
	return &s.bins[min(max(int(at/s.width), 0), len(s.bins)-1)]
}

// spread adds an interval to the bins it covers.
func (s *stats) spread(i interval, to func(*bin) *time.Duration) {
	for n := max(int(i.from/s.width), 0); n < len(s.bins); n++ {
		begin := time.Duration(n) * s.width
		if begin >= i.to {
			return
		}
		*to(&s.bins[n]) += min(i.to, begin+s.width) - max(i.from, begin)
	}
}

// begins counts a session.
func (s *stats) begins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Sessions++
}

// gaveUp counts a failed session.
func (s *stats) gaveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.GivenUp++
}

// was counts a viewer's time in the run.
func (s *stats) was(i interval) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spread(i, func(b *bin) *time.Duration { return &b.there })
}

// played counts the playing time of a session.
func (s *stats) played(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Played += d
}

// saw counts the events of a viewer's player.
func (s *stats) saw(viewer int, p *player) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range p.starts {
		load.Record(s.startUps, d)
		s.started[viewer] = true
	}
	for _, d := range p.seeks {
		load.Record(s.seeks, d)
	}
	for _, i := range p.stalls {
		s.stalled[viewer] = true
		s.counts.Rebuffering.Count++
		s.counts.Rebuffering.Time += i.to - i.from
		s.spread(i, func(b *bin) *time.Duration { return &b.stalled })
	}
}

// switches counts a change of rung.
func (s *stats) switches(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if up {
		s.counts.SwitchesUp++
	} else {
		s.counts.SwitchesDown++
	}
}

// loaded counts a loaded segment.
func (s *stats) loaded(f fetched, isPicture bool, plays time.Duration, r *rung) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bin(f.end)
	b.bits += float64(8 * f.bytes)
	s.bits += float64(8 * f.bytes)
	if isPicture {
		b.picture += plays
		s.plays += plays
		s.rungs[Rung{Name: r.name, Bandwidth: r.bandwidth}] += plays
	}
}

// unfinished records a request interrupted by the end of the run.
func (s *stats) unfinished(viewer int, sent, now time.Duration) {
	s.rec.Unfinished(viewer, s.clock.time(sent), s.clock.time(now))
}

// failed counts an error outside of requests.
func (s *stats) failed(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Errors[text]++
}

// answered counts a request with an answer or an error.
func (s *stats) answered(viewer int, what kind, sent, end time.Duration, a load.Answer, err error) {
	s.rec.Add(viewer, s.clock.time(sent), s.clock.time(end), a, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bin(end)
	b.requests++
	b.bytes += a.Bytes
	if a.RetryAfter > 0 {
		s.counts.RetryAfters++
	}
	switch {
	case err != nil:
		s.counts.Errors[err.Error()]++
		b.errors++
		return
	case a.Status != 200 && a.Status != 206:
		s.counts.Errors["status "+strconv.Itoa(a.Status)]++
		b.errors++
		return
	}
	load.Record(s.firstBytes, s.clock.at(a.FirstByte)-sent)
	if what == pictureSegment || what == soundSegment {
		load.Record(s.segments, end-sent)
		if b.latency == nil {
			b.latency = load.NewHistogram(digits - 1)
		}
		load.Record(b.latency, end-sent)
	}
}
