package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// target is a request to a server.
type target struct {
	label  string
	server string
	path   string
	behind []string // servers behind the server
}

// row is a comparison. The first target is FRE's.
type row struct {
	name, label string
	connections int
	rate        bool // open loop, at half the rate of the slowest target
	targets     []target
	aims        []testbed.Aim
}

type overload struct {
	Capacity float64      `json:"capacity"` // requests/s
	Busy     *load.Report `json:"at_three_times"`
}

type result struct {
	Host     host.Info      `json:"host"`
	CPUs     [2]int         `json:"cpus"` // servers, client
	Slice    time.Duration  `json:"slice"`
	Rounds   int            `json:"rounds"`
	Skipped  []string       `json:"skipped"`
	Rows     []*testbed.Row `json:"rows"`
	HTTP2    *testbed.Row   `json:"http2,omitempty"`
	Overload []overload     `json:"overload"`
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

// rows returns the comparisons for HTTP/1.1.
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
			aims: []testbed.Aim{
				{Of: freGo, To: nginxGo, What: "requests/s", Least: b.least},
				{Of: frePython, To: nginxPython, What: "requests/s", Least: b.least},
				{Of: frePython, To: nginxGo, What: "requests/s", Least: b.least},
				{Of: freGo, To: nginxGo, What: "CPU s/GB", Most: 1.05},
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
			aims: []testbed.Aim{
				{Of: freLent, To: nginxGo, What: "requests/s", Least: 1.8},
				{Of: freGo, To: nginxGo, What: "requests/s", Least: 1.8},
				{Of: frePython, To: nginxGo, What: "requests/s", Least: 1.8},
			},
		},
		row{
			name: "function 100 B", label: "Answers of 100 bytes", connections: 32,
			targets: []target{
				functionOf(freGo, "data-go", "/100"), functionOf(frePython, "data-python", "/100"), behindNginx(nginxGo, "go", "/100", roleFunction),
				{label: reverseProxy, server: roleProxy, path: "/100", behind: []string{roleFunction}},
			},
			aims: []testbed.Aim{
				{Of: freGo, To: nginxGo, What: "requests/s", Least: 1.25},
				{Of: freGo, To: reverseProxy, What: "requests/s", Least: 4},
			},
		},
		row{
			name: "function 64 KiB, same load", label: "Whole bodies of 64 KiB from a function at half of what the slowest can do (open loop)", connections: 256, rate: true,
			targets: []target{functionOf(freGo, "data-go", "/65536"), behindNginx(nginxGo, "go", "/65536", roleFunction)},
			aims:    []testbed.Aim{{Of: freGo, To: nginxGo, What: "p99", Most: 1}},
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
			aims: []testbed.Aim{
				{Of: freFiles, To: nginxStatic, What: "requests/s", Least: b.least},
				{Of: freFiles, To: plainGo, What: "requests/s", Least: 6},
				{Of: freFiles, To: plainGo, What: "p99", Most: 0.2},
				{Of: freFiles, To: nginxStatic, What: "p99", Most: 1},
				{Of: freFiles, To: nginxStatic, What: "CPU s/GB", Most: 1.05},
				{Of: freFiles, What: "allocations", Most: 0.5},
			},
		})
	}
	return append(all, row{
		name: "warm no-op", label: "A no-op on one connection", connections: 1,
		targets: []target{
			functionOf(freNative, "noop-native", ""), functionOf(frePython, "noop-python", ""), functionOf(freNode, "noop-node", ""),
			// The machine's minimum: one process that answers alone, and two processes.
			{label: nginxFile, server: nginxServer + ", " + nginxSites[0], path: "/100"},
			behindNginx(nginxGo, "go", "/100", roleFunction),
		},
		aims: []testbed.Aim{
			{Of: freNative, What: "p50", Most: 60}, {Of: frePython, What: "p50", Most: 70}, {Of: freNode, What: "p50", Most: 80},
		},
	})
}

// measure measures the rows, the targets of each row in turns.
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

// turn calls a target, in a closed loop if rate is 0.
func (b *bench) turn(ctx context.Context, t target, connections int, rate float64) (testbed.Turn, error) {
	var behind []*testbed.Server
	for _, name := range t.behind {
		behind = append(behind, b.servers[name])
	}
	return b.client.Turn(ctx, b.servers[t.server], t.path, connections, rate, behind...)
}

func (b *bench) row(ctx context.Context, w row) (*testbed.Row, error) {
	res := &testbed.Row{Name: w.name, Label: w.label, Connections: w.connections, Aims: w.aims}
	if w.rate {
		res.Rate = math.Inf(1)
		for _, t := range w.targets {
			one, err := b.turn(ctx, t, 16, 0)
			if err != nil {
				return nil, err
			}
			// Limit the rate: the client must not cause much of the lateness.
			res.Rate = min(res.Rate, one.PerSecond/2, 5000)
		}
	}
	cells := make([]*testbed.Cell, len(w.targets))
	for i, t := range w.targets {
		cells[i] = &testbed.Cell{Label: t.label}
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
	res.Cells = testbed.Better(cells)
	return res, nil
}

var (
	h2Rate = regexp.MustCompile(`finished in [^,]*, ([0-9.]+) req/s`)
	h2Done = regexp.MustCompile(`requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored`)
)

// parseH2load returns the requests per second. All requests must have succeeded over HTTP/2.
func parseH2load(out string) (float64, error) {
	rate, done := h2Rate.FindStringSubmatch(out), h2Done.FindStringSubmatch(out)
	if rate == nil || done == nil || done[1] == "0" || done[3] != "0" || done[4] != "0" || !strings.Contains(out, "Application protocol: h2c") {
		return 0, errors.New("no success: " + out)
	}
	return strconv.ParseFloat(rate[1], 64)
}

// http2 lets h2load call every server with h2c.
func (b *bench) http2(ctx context.Context, r *result) error {
	h2load := testbed.Look("h2load")
	if h2load == "" {
		r.Skipped = append(r.Skipped, "no h2load here: scripts/deps.sh bench")
		return nil
	}
	const path = "/65536"
	call := func(addr string, args ...string) (rate float64, err error) {
		err = testbed.OnCPU(b.cpus[1], func() error {
			out, err := testdaemon.Command(ctx, h2load, append(args, "http://"+addr+path)...)
			if err == nil {
				rate, err = parseH2load(out)
			}
			return err
		})
		return rate, err
	}
	res := &testbed.Row{Name: "http2 64 KiB", Label: "HTTP/2 without TLS, static bodies of 64 KiB, 4 connections with 4 streams each (h2load)", Connections: 4, Aims: []testbed.Aim{
		{Of: freFiles, To: h2oServer, What: "requests/s", Least: 1.1}, {Of: freFiles, To: nginxStatic, What: "requests/s", Least: 1.35},
	}}
	addrs := map[string]string{}
	for _, t := range []target{{label: freFiles, server: roleFiles}, {label: nginxStatic, server: nginxServer + ", " + h2Site}, {label: h2oServer, server: h2oServer}} {
		s := b.servers[t.server]
		if s == nil {
			continue
		}
		if _, err := call(s.Addr, "-n", "1"); err != nil {
			r.Skipped = append(r.Skipped, t.label+" does not speak HTTP/2 here")
			continue
		}
		addrs[t.label] = s.Addr
		res.Cells = append(res.Cells, &testbed.Cell{Label: t.label})
	}
	seconds := strconv.Itoa(max(1, int(b.slice.Seconds())))
	for range b.rounds {
		for _, c := range res.Cells {
			rate, err := call(addrs[c.Label], "-c", "4", "-m", "4", "-D", seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Label, err)
			}
			c.Turns = append(c.Turns, testbed.Turn{PerSecond: rate, Mallocs: -1})
		}
	}
	r.HTTP2 = res
	return nil
}

// overload calls a function at three times its capacity.
func (b *bench) overload(ctx context.Context) (overload, error) {
	addr, path := b.servers[engineServer].Addr, "/function/slow"
	quiet, err := b.client.Call(ctx, addr, path, 4, 0, max(b.slice, 100*time.Millisecond))
	if err != nil {
		return overload{}, err
	}
	o := overload{Capacity: quiet.Metrics.Throughput}
	o.Busy, err = b.client.Call(ctx, addr, path, 4000, 3*max(o.Capacity, 1), max(b.slice, 100*time.Millisecond))
	return o, err
}
