package load

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/fre-engine/fre/bench/internal/plot"
)

// Report is the result of a run. Times in the JSON form are in nanoseconds.
type Report struct {
	URL         string        `json:"url"`
	Method      string        `json:"method"`
	Loop        string        `json:"loop"` // "closed", "open"
	Rate        float64       `json:"rate_asked,omitempty"`
	Connections int           `json:"connections"`
	WarmUp      time.Duration `json:"warm_up"`
	Began       time.Time     `json:"began"`
	Measured    time.Duration `json:"measured"` // from the end of the warm-up to the last answer
	Interrupted bool          `json:"interrupted"`
	// Unfinished counts the requests in progress when the run was interrupted. No other field
	// counts them. Waited is the time since the earliest due time among them.
	Unfinished uint64        `json:"unfinished"`
	Waited     time.Duration `json:"waited,omitempty"`

	// Metrics have vegeta's meaning: latencies count from the due time, and throughput counts
	// answers with status 200 to 399. Failed requests are included with status 0.
	Metrics     vegeta.Metrics    `json:"metrics"`
	ErrorCounts map[string]uint64 `json:"error_counts"`
	Percentiles []Percentile      `json:"percentiles"`
	ByStatus    map[string]Status `json:"by_status"` // "0": failed requests
	// HDR is the latency histogram in the encoding of HdrHistogram (V2).
	HDR string `json:"hdr_histogram"`

	latency, service *hdrhistogram.Histogram
}

// Percentile gives the maximum duration of the fastest Percent of all requests.
type Percentile struct {
	Percent float64       `json:"percent"`
	Latency time.Duration `json:"latency"` // from the due time
	Service time.Duration `json:"service"` // from the sending time; equal to Latency in a closed loop
}

// Status sums up the answers with one status. Latencies count from the due time.
type Status struct {
	Count   uint64        `json:"count"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Slowest time.Duration `json:"slowest"`
}

// reported lists the percentiles in a report; the last is the slowest request.
var reported = []float64{50, 75, 90, 95, 99, 99.9, 99.99, 100}

// report merges the shards into a report.
func (r *recorder) report(interrupted bool) *Report {
	p := r.plan
	out := &Report{
		URL: p.URL, Method: p.Method, Loop: "closed", Rate: p.Rate, Connections: p.Connections, WarmUp: p.WarmUp,
		Began: r.start.UTC(), Interrupted: interrupted, ErrorCounts: map[string]uint64{},
		ByStatus: map[string]Status{}, latency: newHistogram(), service: newHistogram(),
		Metrics: vegeta.Metrics{Earliest: r.start, StatusCodes: map[string]int{}, Errors: []string{}},
	}
	if p.Rate > 0 {
		out.Loop = "open"
	}
	codes := map[int]*hdrhistogram.Histogram{}
	last := r.start
	var bytes uint64
	for _, s := range r.shards {
		out.service.Merge(s.service) // drops no values, because the bounds are equal
		for code, h := range s.latency {
			if codes[code] == nil {
				codes[code] = newHistogram()
			}
			codes[code].Merge(h)
			out.latency.Merge(h)
		}
		for text, n := range s.errors {
			out.ErrorCounts[text] += n
		}
		bytes += s.bytes
		if s.last.After(last) {
			last = s.last
		}
		out.Unfinished += s.broken
		out.Waited = max(out.Waited, s.waited)
	}
	// If the server stopped answering before the end, the time without answers counts too.
	out.Measured = max(last.Sub(r.start), min(p.Duration, r.stopped.Sub(r.start)), 0)
	m := &out.Metrics
	m.End, m.Latest, m.Duration = last, last, out.Measured
	m.Requests = uint64(out.latency.TotalCount())
	m.Errors = slices.AppendSeq(m.Errors, maps.Keys(out.ErrorCounts))
	slices.Sort(m.Errors)
	good := uint64(0)
	for code, h := range codes {
		st := Status{
			Count: uint64(h.TotalCount()), P50: time.Duration(h.ValueAtPercentile(50)), P99: time.Duration(h.ValueAtPercentile(99)),
			Slowest: time.Duration(h.Max()),
		}
		out.ByStatus[strconv.Itoa(code)], m.StatusCodes[strconv.Itoa(code)] = st, int(st.Count)
		if code >= 200 && code < 400 {
			good += st.Count
		}
	}
	m.BytesIn.Total, m.BytesOut.Total = bytes, m.Requests*uint64(len(p.Body))
	if m.Requests > 0 {
		m.BytesIn.Mean, m.BytesOut.Mean = float64(bytes)/float64(m.Requests), float64(len(p.Body))
		m.Success = float64(good) / float64(m.Requests)
		at := func(q float64) time.Duration { return time.Duration(out.latency.ValueAtPercentile(q)) }
		m.Latencies.Mean = time.Duration(out.latency.Mean())
		m.Latencies.Total = m.Latencies.Mean * time.Duration(m.Requests)
		m.Latencies.P50, m.Latencies.P90, m.Latencies.P95, m.Latencies.P99 = at(50), at(90), at(95), at(99)
		m.Latencies.Min, m.Latencies.Max = time.Duration(out.latency.Min()), time.Duration(out.latency.Max())
		for _, q := range reported {
			out.Percentiles = append(out.Percentiles, Percentile{q, at(q), time.Duration(out.service.ValueAtPercentile(q))})
		}
	}
	if s := out.Measured.Seconds(); s > 0 {
		m.Rate, m.Throughput = float64(m.Requests)/s, float64(good)/s
	}
	if raw, err := out.latency.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err == nil { // encoding to memory does not fail
		out.HDR = string(raw)
	}
	return out
}

// Text writes the report as text for people.
func (r *Report) Text(w io.Writer) error {
	m := &r.Metrics
	var b strings.Builder
	if r.Loop == "open" {
		fmt.Fprintf(&b, "Open loop: %s requests/s to %s %s, at most %d at once; latencies from when each was due.\n", Short(r.Rate), r.Method, r.URL, r.Connections)
	} else {
		fmt.Fprintf(&b, "Closed loop: %d connections to %s %s; what waits while the server stalls is not sent, so not measured (--rate does).\n", r.Connections, r.Method, r.URL)
	}
	if r.Interrupted {
		fmt.Fprintf(&b, "Interrupted after %v.\n", r.Measured.Round(time.Millisecond))
	}
	t := tabwriter.NewWriter(&b, 0, 4, 3, ' ', 0)
	_, _ = fmt.Fprintf(t, "requests\t%d\tin %v\t%s/s\n", m.Requests, r.Measured.Round(time.Millisecond), Short(m.Rate))
	if r.Unfinished > 0 {
		_, _ = fmt.Fprintf(t, "cut off\t%d\tdue since up to %v\n", r.Unfinished, r.Waited.Round(time.Millisecond))
	}
	_, _ = fmt.Fprintf(t, "answered\t%.2f %%\twith 200 to 399\t%s/s\n", 100*m.Success, Short(m.Throughput))
	perSecond := 0.0
	if s := r.Measured.Seconds(); s > 0 {
		perSecond = float64(m.BytesIn.Total) / s / 1e6
	}
	_, _ = fmt.Fprintf(t, "bodies\t%d bytes\t%s each\t%s MB/s\n", m.BytesIn.Total, Short(m.BytesIn.Mean), Short(perSecond))
	for _, code := range slices.Sorted(maps.Keys(r.ByStatus)) {
		if st := r.ByStatus[code]; code != "0" {
			_, _ = fmt.Fprintf(t, "status %s\t%d\tp50 %v\tp99 %v\n", code, st.Count, Round(st.P50), Round(st.P99))
		}
	}
	_ = t.Flush() // writes to memory
	for _, text := range m.Errors {
		fmt.Fprintf(&b, "error   %d × %s\n", r.ErrorCounts[text], text)
	}
	if len(r.Percentiles) > 0 {
		b.WriteString("\n")
		_, _ = fmt.Fprint(t, "percentile\tlatency")
		if r.Loop == "open" {
			_, _ = fmt.Fprint(t, "\tfrom sending")
		}
		_, _ = fmt.Fprintln(t)
		for _, p := range r.Percentiles {
			name := "p" + Short(p.Percent)
			if p.Percent == 100 {
				name = "slowest"
			}
			_, _ = fmt.Fprintf(t, "%s\t%v", name, Round(p.Latency))
			if r.Loop == "open" {
				_, _ = fmt.Fprintf(t, "\t%v", Round(p.Service))
			}
			_, _ = fmt.Fprintln(t)
		}
		_ = t.Flush()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Round rounds to three significant digits, the precision of the histograms.
func Round(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// Short formats a number with four significant digits, or without a fraction from 1000 on.
func Short(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// JSON writes the report for programs, on one line.
func (r *Report) JSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// SVG draws the latencies by percentile in the style of HdrHistogram's plots: each decade to the
// right shows the slowest tenth of the decade before.
func (r *Report) SVG() []byte {
	milliseconds := func(ns int64) float64 { return float64(ns) / 1e6 }
	line := func(name string, color plot.Color, h *hdrhistogram.Histogram) plot.Line {
		l := plot.Line{Name: name, Color: color}
		if h.TotalCount() == 0 {
			return l
		}
		for x := 1.0; ; x *= 1.1 {
			end := x >= float64(h.TotalCount())
			if end {
				x = float64(h.TotalCount())
			}
			l.Points = append(l.Points, plot.Point{X: x, Y: milliseconds(max(h.ValueAtPercentile(100*(1-1/x)), 1))})
			if end {
				// The last point is the slowest request.
				l.Points[len(l.Points)-1].Y = milliseconds(max(h.Max(), 1))
				return l
			}
		}
	}
	f := plot.Lines{
		Title: r.title(),
		X: plot.Axis{Label: "percentile", Log: true, Tick: func(x float64) string {
			return strconv.FormatFloat(math.Round(1e8*(1-1/x))/1e6, 'f', -1, 64)
		}},
		Y: plot.Axis{Label: "latency (ms)", Log: true},
	}
	if r.Loop == "open" {
		f.Lines = append(f.Lines, line("from when due", plot.Blue, r.latency), line("from sending", plot.Orange, r.service))
	} else {
		f.Lines = append(f.Lines, line("answer", plot.Blue, r.latency))
	}
	return f.SVG()
}

func (r *Report) title() string {
	target := r.URL
	if u, err := url.Parse(r.URL); err == nil {
		target = u.Path
	}
	if r.Loop == "open" {
		return fmt.Sprintf("%s %s, %s requests/s", r.Method, target, Short(r.Rate))
	}
	return fmt.Sprintf("%s %s, %d connections", r.Method, target, r.Connections)
}
