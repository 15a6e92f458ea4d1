// Command nodes compares three nodes with one node: asynchronous events, and calls, of a warm no-op
// in Python. Each node has the same share of a CPU.
//
//	go run ./bench/nodes        # as root, from the project's root directory
//
// Each node has a network namespace and a cgroup (v1) whose quota limits the node and its
// sandboxes. NATS and the clients are outside the quotas, and are equal for one node and for three.
// Three shares, NATS and the clients must fit on the one machine: the table shows the CPU time of
// other programs.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/internal/testdaemon"
)

type options struct {
	bin              string
	share            int
	slice            time.Duration
	rounds           int
	connections      int
	sync             bool
	results, summary string
	quick            bool
	nats, listen     string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/fre", "the fre program")
	flag.IntVar(&o.share, "share", 25, "percent of one CPU that each node has")
	flag.DurationVar(&o.slice, "slice", 4*time.Second, "how long clients send in each turn")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each kind")
	flag.IntVar(&o.connections, "connections", 192, "of the clients, to all nodes together")
	flag.BoolVar(&o.sync, "sync", false, "NATS waits for its disk with each write, as the engine's own does")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "also write the tables to this page")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.StringVar(&o.nats, "nats", "", "internal: be NATS with this directory, to the end of standard input")
	flag.StringVar(&o.listen, "listen", "", "internal: where NATS listens")
	flag.Parse()
	if o.quick {
		o.slice, o.rounds = 200*time.Millisecond, 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	bench := bench
	if o.nats != "" {
		bench = serveNATS
	}
	err := bench(ctx, o)
	if o.quick && errors.Is(err, errNoV1) {
		fmt.Println("bench/nodes: left out on this machine:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/nodes:", err)
		os.Exit(1)
	}
}

// turn holds one measurement.
type turn struct {
	PerSecond float64   `json:"per_second"` // events finished by the function, from the first request to the end of the last event
	Accepted  float64   `json:"answered_per_second"`
	P50       float64   `json:"p50_ms"` // of the requests
	P99       float64   `json:"p99_ms"`
	CPU       float64   `json:"cpu_us_each"`      // of nodes and sandboxes
	NATS      float64   `json:"nats_cpu_us_each"` // of NATS
	Used      []float64 `json:"share_used"`       // used part of each node's share
	NATSPart  float64   `json:"nats_cpus"`        // CPUs used by NATS
	Clients   float64   `json:"client_cpus"`      // CPUs used by the clients
	Others    float64   `json:"other_cpus"`       // CPUs used by programs outside the benchmark
}

// series holds the turns of one kind.
type series struct {
	Name  string `json:"name"`
	Nodes int    `json:"nodes"`
	kind
	Turns []turn `json:"turns"`
}

// kind describes a kind of measurement.
type kind struct {
	path        string
	async       bool
	first       bool // all requests go to the first node
	connections int  // 0: as in the options
}

type result struct {
	Host   host.Info `json:"host"`
	Share  int       `json:"share_percent"`
	Sync   bool      `json:"nats_syncs_always"`
	Series []*series `json:"series"`
}

// The names of the functions.
const (
	noop = "bench-python-noop"
	slow = "bench-python-slow" // takes 5 ms; each node handles one event at a time
)

// kinds lists the kinds in the order of measurement.
var kinds = []struct {
	name string
	kind
}{
	{"asynchronous events", kind{path: "/async-function/" + noop, async: true}},
	{"calls", kind{path: "/function/" + noop}},
	{"calls of 5 ms, one at a time at each node, all to the same node", kind{path: "/function/" + slow, first: true, connections: 4}},
}

func bench(ctx context.Context, o options) (err error) {
	b, err := openBed(ctx, o)
	defer func() { err = errors.Join(err, b.close()) }()
	if err != nil {
		return err
	}
	var nodes []*node
	for i, name := range []string{"a", "b", "c"} {
		n, err := b.add(ctx, name, i+2)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	if err := deploy(ctx, o, nodes); err != nil {
		return err
	}
	r := &result{Share: o.share, Sync: o.sync}
	for _, k := range kinds {
		for _, count := range []int{1, len(nodes)} {
			r.Series = append(r.Series, &series{Name: k.name, Nodes: count, kind: k.kind})
		}
	}
	for round := range o.rounds {
		counts := []int{1, len(nodes)}
		if round%2 == 1 { // alternate the order
			slices.Reverse(counts)
		}
		for _, count := range counts {
			if err := r.turns(ctx, b, nodes, count, o); err != nil {
				return err
			}
		}
	}
	if r.Host, err = host.Describe(ctx, map[string][]string{"fre": {b.bin, "--socket", nodes[0].config.Socket, "version"}}); err != nil {
		return err
	}
	return report.Publish(o.results, o.summary, "Several nodes", "nodes", r.Host.Time, r, r.markdown(o))
}

// deploy builds the functions with a standalone engine, which has access to the network and uses
// the first node's state. The first node then passes the functions to the other nodes. At the end
// deploy stops all nodes and limits their shares.
func deploy(ctx context.Context, o options, nodes []*node) error {
	if err := build(ctx, o, nodes[0]); err != nil {
		return err
	}
	if err := with(ctx, nodes, len(nodes), noop, slow); err != nil {
		return err
	}
	if err := with(ctx, nodes, 0); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := n.limit(ctx, o.share); err != nil {
			return err
		}
	}
	return nil
}

func build(ctx context.Context, o options, n *node) (err error) {
	d, err := testdaemon.Start(ctx, testdaemon.Config{Bin: n.bin, State: n.config.State})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop(context.WithoutCancel(ctx))) }()
	e, err := engine.Open(ctx, engine.Options{Bin: n.bin, Socket: d.Socket(), Addr: d.Addr()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(e.Dir())) }()                // not Close, because Close removes the functions
	resources := map[string]any{"cpu": fmt.Sprintf("%dm", 10*o.share), "pids": 128} // within the node's share
	_, err = e.DeployWith(ctx, "bench/functions/python-noop", noop, map[string]any{"events": map[string]any{"max_queue": 1000000}, "resources": resources})
	if err != nil {
		return err
	}
	_, err = e.DeployWith(ctx, "bench/functions/python-slow", slow, map[string]any{"instances": map[string]any{"concurrency": 1, "min": 1, "max": 1}, "resources": resources})
	return err
}

// turns takes one turn of each kind with count nodes.
func (r *result) turns(ctx context.Context, b *bed, nodes []*node, count int, o options) error {
	if err := with(ctx, nodes, count, noop, slow); err != nil {
		return err
	}
	for _, s := range r.Series {
		if s.Nodes != count {
			continue
		}
		if _, err := s.measure(ctx, b, nodes[:count], o.slice/4, o); err != nil { // warm up
			return fmt.Errorf("%s on %d nodes: %w", s.Name, count, err)
		}
		t, err := s.measure(ctx, b, nodes[:count], o.slice, o)
		if err != nil {
			return fmt.Errorf("%s on %d nodes: %w", s.Name, count, err)
		}
		s.Turns = append(s.Turns, t)
	}
	return nil
}

// reading holds the CPU times used up to a moment.
type reading struct {
	at    time.Time
	nodes []time.Duration
	nats  time.Duration
	self  time.Duration
	idle  time.Duration
}

func read(b *bed, nodes []*node) (r reading, err error) {
	for _, n := range nodes {
		u, err := n.used()
		if err != nil {
			return r, err
		}
		r.nodes = append(r.nodes, u)
	}
	if r.nats, err = testbed.CPUTime(b.nats.PID); err != nil {
		return r, err
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return r, err
	}
	r.self = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	r.idle, err = host.Idle()
	r.at = time.Now()
	return r, err
}

// measure sends requests to the nodes for a while, and waits until all events have run.
func (s *series) measure(ctx context.Context, b *bed, nodes []*node, slice time.Duration, o options) (t turn, err error) {
	before, err := read(b, nodes)
	if err != nil {
		return t, err
	}
	to := nodes
	if s.first {
		to = nodes[:1]
	}
	reports, err := s.send(ctx, to, slice, cmp.Or(s.connections, o.connections))
	if err != nil {
		return t, err
	}
	want, answered, longest := "200", 0.0, slice
	if s.async {
		want = "202"
		if err := b.drained(ctx); err != nil {
			return t, err
		}
	}
	after, err := read(b, nodes)
	if err != nil {
		return t, err
	}
	for _, rep := range reports {
		n := rep.ByStatus[want].Count
		if n == 0 || len(rep.ByStatus) > 1 {
			return t, fmt.Errorf("not all were answered with %s: %v %v", want, rep.ByStatus, rep.ErrorCounts)
		}
		answered += float64(n)
		longest = max(longest, rep.Measured)
		t.P50, t.P99 = max(t.P50, rep.Metrics.Latencies.P50.Seconds()*1e3), max(t.P99, rep.Metrics.Latencies.P99.Seconds()*1e3)
	}
	took := after.at.Sub(before.at)
	t.PerSecond, t.Accepted = answered/took.Seconds(), answered/longest.Seconds()
	part := func(d time.Duration) float64 { return d.Seconds() / took.Seconds() }
	t.NATSPart, t.Clients = part(after.nats-before.nats), part(after.self-before.self)
	t.Others = float64(runtime.NumCPU()) - part(after.idle-before.idle) - t.NATSPart - t.Clients
	for i := range nodes {
		cpu := after.nodes[i] - before.nodes[i]
		t.CPU += float64(cpu.Microseconds()) / answered
		t.Used = append(t.Used, 100*part(cpu)/float64(o.share))
		t.Others -= part(cpu)
	}
	t.NATS = float64((after.nats - before.nats).Microseconds()) / answered
	return t, nil
}

// send divides the connections equally among the nodes.
func (s *series) send(ctx context.Context, nodes []*node, slice time.Duration, connections int) ([]*load.Report, error) {
	type answer struct {
		report *load.Report
		err    error
	}
	answers := make(chan answer)
	for _, n := range nodes {
		go func() {
			r, err := load.Run(ctx, load.Config{
				URL: "http://" + n.config.Listen + s.path, Body: bytes.Repeat([]byte("x"), 300), Header: http.Header{"Content-Type": {"text/plain"}},
				Connections: max(1, connections/len(nodes)), Duration: slice,
			})
			answers <- answer{r, err}
		}()
	}
	var reports []*load.Report
	var errs []error
	for range nodes {
		a := <-answers
		reports, errs = append(reports, a.report), append(errs, a.err)
	}
	return reports, errors.Join(errs...)
}

// drained waits until the queue holds no events. It asks NATS, at no cost to the nodes.
func (b *bed) drained(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	stream, err := b.stream.Stream(ctx, "FRE_EVENTS_default")
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		if info.State.Msgs == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d events have not ended", info.State.Msgs)
		}
	}
}
