package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/internal/daemon"
	"github.com/fre-engine/fre/internal/load"
)

// target is a server's answer to be had.
type target struct {
	label  string
	server string
	path   string
	behind []string // servers that work for it
}

// row is one comparison. The first target is FRE's.
type row struct {
	name, label string
	connections int
	rate        bool // at half of what the slowest can do, open loop
	targets     []target
	aims        []aim
}

// aim is a ratio of two targets, or a bound on one, that issue 6 has set itself.
type aim struct {
	of, to string // labels; to "": a bound
	what   string // "requests/s", "p99", "CPU s/GB", "p50", "allocations"
	least  float64
	most   float64 // the one that is not 0 counts
}

// turn is what a server did when it was its turn.
type turn struct {
	PerSecond float64       `json:"requests_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	CPUPerGB  float64       `json:"cpu_seconds_per_gb"`     // of the server itself
	AllPerGB  float64       `json:"all_cpu_seconds_per_gb"` // with the functions behind it
	Mallocs   float64       `json:"mallocs_per_request"`    // of the server; -1: not known
	Report    *load.Report  `json:"report,omitempty"`
}

type cell struct {
	Label string `json:"label"`
	Turns []turn `json:"turns"`
}

type rowResult struct {
	Name        string  `json:"name"`
	Label       string  `json:"label"`
	Connections int     `json:"connections"`
	Rate        float64 `json:"rate,omitempty"`
	Cells       []*cell `json:"cells"`
	aims        []aim
}

type overload struct {
	Capacity float64      `json:"capacity"` // requests/s
	Busy     *load.Report `json:"at_three_times"`
}

type result struct {
	Host     host.Info     `json:"host"`
	CPUs     [2]int        `json:"cpus"` // servers, client
	Slice    time.Duration `json:"slice"`
	Rounds   int           `json:"rounds"`
	Skipped  []string      `json:"skipped"`
	Rows     []*rowResult  `json:"rows"`
	HTTP2    *rowResult    `json:"http2,omitempty"`
	Overload []overload    `json:"overload"`
}

const (
	freGo, frePython      = "fre, Go", "fre, Python"
	freLent, freAnew      = "fre, Go, lent the connection", "fre, Go, a file for each answer"
	nginxGo, nginxPython  = "nginx → Go net/http", "nginx → Python http.server"
	freNative, freNode    = "fre, native", "fre, Node"
	freFiles, nginxStatic = "httpserver SendFile", "nginx"
	nginxFile             = "nginx, a file of 100 bytes"
	plainGo, reverseProxy = "net/http, bytes.Buffer", "httputil.ReverseProxy → Go net/http"
)

// rows are those of HTTP/1.1.
func rows() []row {
	functionOf := func(label, name, path string) target {
		return target{label: label, server: engineServer, path: "/function/" + name + path}
	}
	behindNginx := func(label, site, path string, behind ...string) target {
		return target{label: label, server: nginxServer + ", " + site, path: path, behind: behind}
	}
	all := []row{}
	for _, b := range []struct {
		size  int
		label string
		least float64
	}{{64 << 10, "64 KiB", 1.6}, {1 << 20, "1 MiB", 4}} {
		path := "/" + strconv.Itoa(b.size)
		all = append(all, row{
			name: "function " + b.label, label: "Whole bodies of " + b.label + " from a function", connections: 16,
			targets: []target{
				functionOf(freGo, "data-go", path), functionOf(freAnew, "data-go", "/anew"+path), functionOf(frePython, "data-python", path),
				behindNginx(nginxGo, "go", path, roleFunction), behindNginx(nginxPython, "python", path, pythonServer),
			},
			aims: []aim{
				{of: freGo, to: nginxGo, what: "requests/s", least: b.least},
				{of: frePython, to: nginxPython, what: "requests/s", least: b.least},
				{of: frePython, to: nginxGo, what: "requests/s", least: b.least},
				{of: freGo, to: nginxGo, what: "CPU s/GB", most: 1.05},
			},
		})
	}
	all = append(all,
		row{
			name: "stream 1 MiB", label: "Streams of 1 MiB from a function, 64 KiB at a time, length unsaid", connections: 16,
			targets: []target{
				functionOf(freGo, "data-go", "/stream/1048576"), functionOf(frePython, "data-python", "/stream/1048576"), functionOf(freLent, lentFunction, "/stream/1048576"),
				behindNginx(nginxGo, "go", "/stream/1048576", roleFunction),
			},
			aims: []aim{
				{of: freLent, to: nginxGo, what: "requests/s", least: 1.8},
				{of: freGo, to: nginxGo, what: "requests/s", least: 1.8},
				{of: frePython, to: nginxGo, what: "requests/s", least: 1.8},
			},
		},
		row{
			name: "function 100 B", label: "Answers of 100 bytes", connections: 32,
			targets: []target{
				functionOf(freGo, "data-go", "/100"), functionOf(frePython, "data-python", "/100"), behindNginx(nginxGo, "go", "/100", roleFunction),
				{label: reverseProxy, server: roleProxy, path: "/100", behind: []string{roleFunction}},
			},
			aims: []aim{
				{of: freGo, to: nginxGo, what: "requests/s", least: 1.25},
				{of: freGo, to: reverseProxy, what: "requests/s", least: 4},
			},
		},
		row{
			name: "function 64 KiB, same load", label: "Whole bodies of 64 KiB from a function at half of what the slowest can do (open loop)", connections: 256, rate: true,
			targets: []target{functionOf(freGo, "data-go", "/65536"), behindNginx(nginxGo, "go", "/65536", roleFunction)},
			aims:    []aim{{of: freGo, to: nginxGo, what: "p99", most: 1}},
		},
	)
	for _, b := range []struct {
		size  int
		label string
		least float64
	}{{64 << 10, "64 KiB", 1.2}, {512 << 10, "512 KiB", 1}, {2 << 20, "2 MiB", 1.05}} {
		path := "/" + strconv.Itoa(b.size)
		all = append(all, row{
			name: "static " + b.label, label: "Static bodies of " + b.label, connections: 16,
			targets: []target{
				{label: freFiles, server: roleFiles, path: path},
				{label: nginxStatic, server: nginxServer + ", " + nginxSites[0], path: path},
				{label: nginxStatic, server: nginxServer + ", " + nginxSites[1], path: path},
				{label: plainGo, server: rolePlain, path: path},
			},
			aims: []aim{
				{of: freFiles, to: nginxStatic, what: "requests/s", least: b.least},
				{of: freFiles, to: plainGo, what: "requests/s", least: 6},
				{of: freFiles, to: plainGo, what: "p99", most: 0.2},
				{of: freFiles, to: nginxStatic, what: "p99", most: 1},
				{of: freFiles, to: nginxStatic, what: "CPU s/GB", most: 1.05},
				{of: freFiles, what: "allocations", most: 0.5},
			},
		})
	}
	return append(all, row{
		name: "warm no-op", label: "A no-op on one connection", connections: 1,
		targets: []target{
			functionOf(freNative, "noop-native", ""), functionOf(frePython, "noop-python", ""), functionOf(freNode, "noop-node", ""),
			// What this machine needs at least: one process that answers by itself, and two.
			{label: nginxFile, server: nginxServer + ", " + nginxSites[0], path: "/100"},
			behindNginx(nginxGo, "go", "/100", roleFunction),
		},
		aims: []aim{
			{of: freNative, what: "p50", most: 60}, {of: frePython, what: "p50", most: 70}, {of: freNode, what: "p50", most: 80},
		},
	})
}

// measure goes through the rows, each with its targets in turns.
func (b *bench) measure(ctx context.Context, r *result) error {
	for _, w := range rows() {
		if !strings.Contains(w.name, b.only) {
			continue
		}
		w.targets = slices.DeleteFunc(w.targets, func(t target) bool { return b.servers[t.server] == nil })
		res, err := b.row(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.Rows = append(r.Rows, res)
	}
	if strings.Contains("http2 64 KiB", b.only) {
		if err := b.http2(ctx, r); err != nil {
			return fmt.Errorf("HTTP/2: %w", err)
		}
	}
	if strings.Contains("overload", b.only) {
		for range b.rounds {
			o, err := b.overload(ctx)
			if err != nil {
				return fmt.Errorf("overload: %w", err)
			}
			r.Overload = append(r.Overload, o)
		}
	}
	return nil
}

func (b *bench) row(ctx context.Context, w row) (*rowResult, error) {
	res := &rowResult{Name: w.name, Label: w.label, Connections: w.connections, aims: w.aims}
	if w.rate {
		res.Rate = math.Inf(1)
		for _, t := range w.targets {
			one, err := b.turn(ctx, t, 16, 0)
			if err != nil {
				return nil, err
			}
			// The client's own share of lateness has to stay small.
			res.Rate = min(res.Rate, one.PerSecond/2, 5000)
		}
	}
	cells := make([]*cell, len(w.targets))
	for i, t := range w.targets {
		cells[i] = &cell{Label: t.label}
	}
	for range b.rounds {
		for i, t := range w.targets {
			one, err := b.turn(ctx, t, w.connections, res.Rate)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.label, err)
			}
			cells[i].Turns = append(cells[i].Turns, one)
		}
	}
	res.Cells = better(cells)
	return res, nil
}

// better keeps, of cells with one label, that with the most requests: nginx has
// one with tcp_nopush and one without.
func better(cells []*cell) []*cell {
	var kept []*cell
	for _, c := range cells {
		i := slices.IndexFunc(kept, func(k *cell) bool { return k.Label == c.Label })
		switch {
		case i < 0:
			kept = append(kept, c)
		case c.median(perSecond) > kept[i].median(perSecond):
			kept[i] = c
		}
	}
	return kept
}

// turn calls a target, closed loop where rate is 0.
func (b *bench) turn(ctx context.Context, t target, connections int, rate float64) (turn, error) {
	s := b.servers[t.server]
	behind := []int{}
	for _, name := range t.behind {
		behind = append(behind, b.servers[name].pid)
	}
	// Of the engine, its own program alone is the server; sandboxes are its children.
	own := []int{s.pid}
	if t.server == engineServer {
		for _, pid := range tree(s.pid) {
			if pid != s.pid {
				behind = append(behind, pid)
			}
		}
	} else {
		own = tree(s.pid)
	}
	type reading struct {
		own, all time.Duration
		mallocs  uint64
	}
	read := func() (r reading, err error) {
		if r.own, err = cpuTime(own...); err != nil {
			return r, err
		}
		others, err := cpuTime(behind...)
		if err != nil {
			return r, err
		}
		r.all = r.own + others
		if s.mallocs != nil {
			r.mallocs, err = s.mallocs(ctx)
		}
		return r, err
	}
	// What is counted around the run has no warm-up in it, so that is a run of its own.
	if b.warmUp > 0 {
		if _, err := b.call(ctx, s.addr, t.path, connections, rate, b.warmUp); err != nil {
			return turn{}, err
		}
	}
	before, err := read()
	if err != nil {
		return turn{}, err
	}
	report, err := b.call(ctx, s.addr, t.path, connections, rate, b.slice)
	if err != nil {
		return turn{}, err
	}
	after, err := read()
	if err != nil {
		return turn{}, err
	}
	m := &report.Metrics
	if m.Success != 1 {
		return turn{}, fmt.Errorf("%s: not all were answered: %v %v", t.path, m.StatusCodes, report.ErrorCounts)
	}
	gb := float64(m.BytesIn.Total) / 1e9
	one := turn{PerSecond: m.Rate, P50: m.Latencies.P50, P99: m.Latencies.P99, Mallocs: -1, Report: report}
	if gb > 0 {
		one.CPUPerGB, one.AllPerGB = (after.own-before.own).Seconds()/gb, (after.all-before.all).Seconds()/gb
	}
	if s.mallocs != nil {
		one.Mallocs = float64(after.mallocs-before.mallocs) / float64(m.Requests)
	}
	return one, nil
}

// call has the client call, on its own CPU.
func (b *bench) call(ctx context.Context, addr, path string, connections int, rate float64, length time.Duration) (*load.Report, error) {
	args := []string{
		"bench", "http", "http://" + addr + path, "--format", "json", "--connections", strconv.Itoa(connections), "--duration", length.String(),
	}
	if rate > 0 {
		args = append(args, "--rate", strconv.FormatFloat(rate, 'f', 3, 64))
	}
	var out string
	err := onCPU(b.cpus[1], func() (err error) {
		out, err = daemon.Command(ctx, b.bin, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	var r load.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return nil, err
	}
	r.HDR = "" // as long as all the rest; the percentiles stay
	return &r, ctx.Err()
}

var (
	h2Rate = regexp.MustCompile(`finished in [^,]*, ([0-9.]+) req/s`)
	h2Done = regexp.MustCompile(`requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored`)
)

// parseH2load returns the requests per second; all must have succeeded, over
// HTTP/2.
func parseH2load(out string) (float64, error) {
	rate, done := h2Rate.FindStringSubmatch(out), h2Done.FindStringSubmatch(out)
	if rate == nil || done == nil || done[1] == "0" || done[3] != "0" || done[4] != "0" || !strings.Contains(out, "Application protocol: h2c") {
		return 0, errors.New("no success: " + out)
	}
	return strconv.ParseFloat(rate[1], 64)
}

// http2 has h2load call whoever speaks h2c.
func (b *bench) http2(ctx context.Context, r *result) error {
	h2load := look("h2load")
	if h2load == "" {
		r.Skipped = append(r.Skipped, "no h2load here: scripts/deps.sh bench")
		return nil
	}
	const path = "/65536"
	call := func(addr string, args ...string) (rate float64, err error) {
		err = onCPU(b.cpus[1], func() error {
			out, err := daemon.Command(ctx, h2load, append(args, "http://"+addr+path)...)
			if err == nil {
				rate, err = parseH2load(out)
			}
			return err
		})
		return rate, err
	}
	res := &rowResult{Name: "http2 64 KiB", Label: "HTTP/2 without TLS, static bodies of 64 KiB, 4 connections with 4 streams each (h2load)", Connections: 4, aims: []aim{
		{of: freFiles, to: h2oServer, what: "requests/s", least: 1.1}, {of: freFiles, to: nginxStatic, what: "requests/s", least: 1.35},
	}}
	addrs := map[string]string{}
	for _, t := range []target{{label: freFiles, server: roleFiles}, {label: nginxStatic, server: nginxServer + ", " + h2Site}, {label: h2oServer, server: h2oServer}} {
		s := b.servers[t.server]
		if s == nil {
			continue
		}
		if _, err := call(s.addr, "-n", "1"); err != nil {
			r.Skipped = append(r.Skipped, t.label+" does not speak HTTP/2 here")
			continue
		}
		addrs[t.label] = s.addr
		res.Cells = append(res.Cells, &cell{Label: t.label})
	}
	seconds := strconv.Itoa(max(1, int(b.slice.Seconds())))
	for range b.rounds {
		for _, c := range res.Cells {
			rate, err := call(addrs[c.Label], "-c", "4", "-m", "4", "-D", seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Label, err)
			}
			c.Turns = append(c.Turns, turn{PerSecond: rate, Mallocs: -1})
		}
	}
	r.HTTP2 = res
	return nil
}

// overload calls a function three times as often as it can answer.
func (b *bench) overload(ctx context.Context) (overload, error) {
	addr, path := b.servers[engineServer].addr, "/function/slow"
	quiet, err := b.call(ctx, addr, path, 4, 0, max(b.slice, 100*time.Millisecond))
	if err != nil {
		return overload{}, err
	}
	o := overload{Capacity: quiet.Metrics.Throughput}
	o.Busy, err = b.call(ctx, addr, path, 4000, 3*max(o.Capacity, 1), max(b.slice, 100*time.Millisecond))
	return o, err
}
