package viewers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/fre-engine/fre/bench/internal/load"
)

// Report is the result of a run. In JSON, times are in nanoseconds and bit rates in bits per
// second.
type Report struct {
	URLs        []string      `json:"urls"`
	Viewers     int           `json:"viewers"`
	Weak        int           `json:"weak"` // number of viewers on a weak network
	WeakMin     float64       `json:"weak_min,omitempty"`
	WeakMax     float64       `json:"weak_max,omitempty"`
	Rate        float64       `json:"rate,omitempty"` // from Config; 0: by the playlists
	Seed        uint64        `json:"seed"`
	Began       time.Time     `json:"began"`
	Duration    time.Duration `json:"duration"` // of the run
	Interrupted bool          `json:"interrupted"`

	Sessions     int           `json:"sessions"`
	GivenUp      int           `json:"given_up"` // sessions ended by an error
	StartUp      Times         `json:"start_up"` // from a session's first request to the start of playback
	Seeks        Times         `json:"seeks"`    // from each seek until playback resumes
	Played       time.Duration `json:"played"`   // total of all viewers
	Rebuffering  Rebuffering   `json:"rebuffering"`
	SwitchesUp   int           `json:"switches_up"`
	SwitchesDown int           `json:"switches_down"`
	Rungs        []Rung        `json:"rungs"`         // the slowest first
	MeanBitRate  float64       `json:"mean_bit_rate"` // of the loaded segments, weighted by playing time

	SegmentTimes Times             `json:"segment_times"` // from the request to the last byte
	FirstByte    Times             `json:"first_byte"`    // from the request to the first byte, for all requests
	Errors       map[string]uint64 `json:"errors"`        // count of each kind
	RetryAfters  uint64            `json:"retry_afters"`  // answers with Retry-After
	Requests     *load.Report      `json:"requests"`      // all requests, in the form of fre-bench http
	CPU          time.Duration     `json:"cpu"`           // of this process during the run

	TimeLine []Step `json:"time_line"`
}

// Times summarises durations.
type Times struct {
	Count int64         `json:"count"`
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P95   time.Duration `json:"p95"`
	P99   time.Duration `json:"p99"`
	Max   time.Duration `json:"max"`
}

// Rebuffering is playback stopped by an empty buffer. Waiting at the start and after a seek does
// not count.
type Rebuffering struct {
	Viewers int           `json:"viewers"` // viewers with at least one stall
	Share   float64       `json:"share"`   // of the viewers that played anything
	Count   int           `json:"count"`
	Time    time.Duration `json:"time"`  // total of all viewers
	Ratio   float64       `json:"ratio"` // share of the time of playing and rebuffering
}

// Rung is a variant of the playlists, with its share of the loaded segments.
type Rung struct {
	Name      string  `json:"name,omitempty"` // the resolution
	Bandwidth int64   `json:"bandwidth"`
	Share     float64 `json:"share"` // weighted by playing time
}

// Step is a part of the run. All steps are equally long.
type Step struct {
	At          time.Duration `json:"at"`           // start of the step
	Viewers     float64       `json:"viewers"`      // average number of viewers present
	Rebuffering float64       `json:"rebuffering"`  // average number of stalled viewers
	Requests    float64       `json:"requests"`     // per second
	Errors      float64       `json:"errors"`       // per second
	BitsSent    float64       `json:"bits"`         // of bodies, per second
	BitRate     float64       `json:"bit_rate"`     // of the loaded segments; 0: none
	P50         time.Duration `json:"segments_p50"` // time to load a segment; 0: none
	P99         time.Duration `json:"segments_p99"`
}

// report summarises the run. All viewers must have left.
func (s *stats) report(interrupted bool) *Report {
	c, r := s.config, &s.counts
	stopped := min(s.clock.now(), c.Duration)
	r.URLs, r.Viewers, r.Rate, r.Seed = c.URLs, c.Viewers, c.Rate, c.Seed
	if r.Weak = int(float64(c.Viewers)*c.WeakShare + 1e-9); r.Weak > 0 {
		r.WeakMin, r.WeakMax = c.WeakMin, c.WeakMax
	}
	r.Began, r.Duration, r.Interrupted = s.clock.began.UTC(), stopped, interrupted
	r.StartUp, r.Seeks, r.SegmentTimes, r.FirstByte = times(s.startUps), times(s.seeks), times(s.segments), times(s.firstBytes)
	seen := 0
	for i := range s.started {
		if s.started[i] {
			seen++
		}
		if s.stalled[i] {
			r.Rebuffering.Viewers++
		}
	}
	r.Rebuffering.Share = share(float64(r.Rebuffering.Viewers), float64(seen))
	r.Rebuffering.Ratio = share(float64(r.Rebuffering.Time), float64(r.Rebuffering.Time+r.Played))
	r.MeanBitRate = share(s.bits, s.plays.Seconds())
	r.Rungs = []Rung{}
	for rung, d := range s.rungs {
		rung.Share = share(float64(d), float64(s.plays))
		r.Rungs = append(r.Rungs, rung)
	}
	slices.SortFunc(r.Rungs, func(a, b Rung) int {
		return cmp.Or(cmp.Compare(a.Bandwidth, b.Bandwidth), strings.Compare(a.Name, b.Name))
	})
	r.Requests = s.rec.Report(s.clock.time(stopped), interrupted)
	r.CPU = processTime() - s.cpu
	r.TimeLine = []Step{}
	for i := range s.bins {
		b, at := &s.bins[i], time.Duration(i)*s.width
		width := (min(stopped, at+s.width) - at).Seconds()
		if width <= 0 {
			break
		}
		step := Step{
			At: at, Viewers: b.there.Seconds() / width, Rebuffering: b.stalled.Seconds() / width, Requests: float64(b.requests) / width,
			Errors: float64(b.errors) / width, BitsSent: float64(8*b.bytes) / width, BitRate: share(b.bits, b.picture.Seconds()),
		}
		if b.latency != nil {
			step.P50, step.P99 = time.Duration(b.latency.ValueAtPercentile(50)), time.Duration(b.latency.ValueAtPercentile(99))
		}
		r.TimeLine = append(r.TimeLine, step)
	}
	return r
}

// share returns part / all, or 0 if all is 0.
func share(part, all float64) float64 {
	if all == 0 {
		return 0
	}
	return part / all
}

func times(h *hdrhistogram.Histogram) Times {
	if h.TotalCount() == 0 {
		return Times{}
	}
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtPercentile(q)) }
	return Times{Count: h.TotalCount(), P50: at(50), P90: at(90), P95: at(95), P99: at(99), Max: time.Duration(h.Max())}
}

// WriteJSON writes the report as a line of JSON.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteText writes the report as text for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d viewers of %s", r.Viewers, strings.Join(r.URLs, ", "))
	if r.Weak > 0 {
		fmt.Fprintf(&b, ", %d of them on weak networks of %s to %s", r.Weak, bitRate(r.WeakMin), bitRate(r.WeakMax))
	}
	if r.Rate > 0 {
		fmt.Fprintf(&b, ", each at %s", bitRate(r.Rate))
	}
	b.WriteString("\n")
	if r.Interrupted {
		fmt.Fprintf(&b, "Interrupted after %v.\n", r.Duration.Round(time.Millisecond))
	}
	t := tabwriter.NewWriter(&b, 0, 4, 3, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, name+"\t"+format+"\n", args...) // into memory
	}
	spread := func(d Times) string {
		return fmt.Sprintf("p50 %v\tp90 %v\tp95 %v\tp99 %v\tmax %v", load.Round(d.P50), load.Round(d.P90), load.Round(d.P95), load.Round(d.P99), load.Round(d.Max))
	}
	line("sessions", "%d in %v, %d of which began to play, %d were given up", r.Sessions, r.Duration.Round(time.Millisecond), r.StartUp.Count, r.GivenUp)
	line("rebuffering", "%d viewers (%s %%), %d times, %v in all: %s %% of the time", r.Rebuffering.Viewers, load.Short(100*r.Rebuffering.Share),
		r.Rebuffering.Count, r.Rebuffering.Time.Round(time.Millisecond), load.Short(100*r.Rebuffering.Ratio))
	line("bit rate", "%s on average; %d switches up, %d down", bitRate(r.MeanBitRate), r.SwitchesUp, r.SwitchesDown)
	for _, rung := range r.Rungs {
		line("", "%s %% %s %s", load.Short(100*rung.Share), bitRate(float64(rung.Bandwidth)), rung.Name)
	}
	m := &r.Requests.Metrics
	seconds := r.Duration.Seconds()
	line("requests", "%d, %s/s; bodies of %d bytes, %s", m.Requests, load.Short(share(float64(m.Requests), seconds)), m.BytesIn.Total, bitRate(share(8*float64(m.BytesIn.Total), seconds)))
	for _, text := range slices.Sorted(maps.Keys(r.Errors)) {
		line("error", "%d × %s", r.Errors[text], text)
	}
	if r.RetryAfters > 0 {
		line("Retry-After", "in %d answers", r.RetryAfters)
	}
	line("own CPU", "%v, %s of one", r.CPU.Round(time.Millisecond), load.Short(share(r.CPU.Seconds(), seconds)))
	_ = t.Flush()
	b.WriteString("\n")
	line("start-up", "%s", spread(r.StartUp))
	if r.Seeks.Count > 0 {
		line("seeks", "%s", spread(r.Seeks))
	}
	line("first byte", "%s", spread(r.FirstByte))
	line("segments", "%s", spread(r.SegmentTimes))
	_ = t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

// bitRate formats a bit rate for people.
func bitRate(v float64) string { return load.Short(v/1e6) + " Mbit/s" }
