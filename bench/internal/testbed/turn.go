package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// Turn holds the measurements of a server during one turn.
type Turn struct {
	PerSecond float64       `json:"requests_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	CPUPerGB  float64       `json:"cpu_seconds_per_gb"`     // of the server alone
	AllPerGB  float64       `json:"all_cpu_seconds_per_gb"` // with the functions behind the server
	CPUEach   float64       `json:"cpu_seconds_per_request,omitempty"`
	Mallocs   float64       `json:"mallocs_per_request"` // of the server; -1: unknown
	Allocated float64       `json:"allocated_bytes_per_second,omitempty"`
	Pauses    float64       `json:"gc_pauses_per_second,omitempty"`
	Pause     time.Duration `json:"gc_pause_ns,omitempty"`         // mean
	Longest   time.Duration `json:"gc_longest_pause_ns,omitempty"` // among the recent pauses
	Report    *load.Report  `json:"report,omitempty"`
}

// Client runs fre-bench http on a CPU of its own.
type Client struct {
	Bin    string // the fre-bench program
	CPU    int
	WarmUp time.Duration // before each turn, not measured
	Slice  time.Duration // duration of each turn
}

// Turn calls a server, in a closed loop if rate is 0. CPU time of others counts as the functions
// behind the server. All requests must be answered.
func (c Client) Turn(ctx context.Context, s *Server, path string, connections int, rate float64, others ...*Server) (Turn, error) {
	behind := []int{}
	for _, o := range others {
		behind = append(behind, o.PID)
	}
	own := []int{s.PID}
	if s.Alone {
		for _, pid := range Tree(s.PID) {
			if pid != s.PID {
				behind = append(behind, pid)
			}
		}
	} else {
		own = Tree(s.PID)
	}
	type reading struct {
		own, all time.Duration
		heap     Heap
	}
	read := func() (r reading, err error) {
		if r.own, err = CPUTime(own...); err != nil {
			return r, err
		}
		others, err := CPUTime(behind...)
		if err != nil {
			return r, err
		}
		r.all = r.own + others
		if s.Heap != nil {
			r.heap, err = s.Heap(ctx)
		}
		return r, err
	}
	// The counters around the run must not include the warm-up: warm up in a run of its own.
	if c.WarmUp > 0 {
		if _, err := c.Call(ctx, s.Addr, path, connections, rate, c.WarmUp); err != nil {
			return Turn{}, err
		}
	}
	before, err := read()
	if err != nil {
		return Turn{}, err
	}
	report, err := c.Call(ctx, s.Addr, path, connections, rate, c.Slice)
	if err != nil {
		return Turn{}, err
	}
	after, err := read()
	if err != nil {
		return Turn{}, err
	}
	m := &report.Metrics
	if m.Success != 1 {
		return Turn{}, fmt.Errorf("%s: not all were answered: %v %v", path, m.StatusCodes, report.ErrorCounts)
	}
	gb := float64(m.BytesIn.Total) / 1e9
	one := Turn{PerSecond: m.Rate, P50: m.Latencies.P50, P99: m.Latencies.P99, Mallocs: -1, Report: report}
	if gb > 0 {
		one.CPUPerGB, one.AllPerGB = (after.own-before.own).Seconds()/gb, (after.all-before.all).Seconds()/gb
	}
	one.CPUEach = (after.own - before.own).Seconds() / float64(m.Requests)
	if s.Heap != nil {
		one.Mallocs = float64(after.heap.Mallocs-before.heap.Mallocs) / float64(m.Requests)
		one.heap(before.heap, after.heap, report.Measured)
	}
	return one, nil
}

// heap sets the memory measurements from two readings, length apart.
func (t *Turn) heap(before, after Heap, length time.Duration) {
	t.Allocated = float64(after.Bytes-before.Bytes) / length.Seconds()
	if n := after.Pauses - before.Pauses; n > 0 {
		t.Pauses = float64(n) / length.Seconds()
		t.Pause = time.Duration((after.Paused - before.Paused) / float64(n) * 1e9)
		t.Longest = time.Duration(after.Longest * 1e9)
	}
}

// Call calls a server for length, and returns the client's report. path may hold several paths,
// separated by blanks and requested in turn.
func (c Client) Call(ctx context.Context, addr, path string, connections int, rate float64, length time.Duration) (*load.Report, error) {
	args := []string{
		"http", "--format", "json", "--connections", strconv.Itoa(connections), "--duration", length.String(),
	}
	if rate > 0 {
		args = append(args, "--rate", strconv.FormatFloat(rate, 'f', 3, 64))
	}
	for one := range strings.FieldsSeq(path) {
		args = append(args, "http://"+addr+one)
	}
	var out string
	err := OnCPU(c.CPU, func() (err error) {
		out, err = testdaemon.Command(ctx, c.Bin, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	var r load.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return nil, err
	}
	r.HDR = "" // as long as the rest of the report; the percentiles stay
	return &r, ctx.Err()
}
