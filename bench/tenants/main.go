// Command tenants measures the cost of a noisy tenant for a quiet tenant: the latency of the quiet
// tenant's events, each in a fresh sandbox. The situations are: alone, beside a tenant that sends
// ten times its quota of events, and beside the same tenant without a quota.
//
//	go run ./bench/tenants        # as root, from the project's root directory
//
// The three situations take turns in one run, on one machine shared with the clients: read the
// ratios. Latencies count from the due time of a request (open loop).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/internal/testdaemon"
)

type options struct {
	bin, results string
	turn         time.Duration
	rounds       int
	rate, quota  float64
	quick        bool
}

// situation describes the noisy tenant during a measurement of the quiet tenant's events.
type situation struct {
	Name   string   `json:"name"`
	quota  float64  // of the noisy tenant, in events per second; 0: no quota
	noise  bool     // the noisy tenant sends events
	P50    []int64  `json:"p50_ns"` // per turn
	P99    []int64  `json:"p99_ns"`
	Served []uint64 `json:"noisy_served"`
	Others []uint64 `json:"noisy_refused"`
	Failed uint64   `json:"quiet_failed"`
}

type result struct {
	Host       host.Info    `json:"host"`
	Rate       float64      `json:"quiet_rate"`
	Quota      float64      `json:"noisy_quota"`
	Situations []*situation `json:"situations"`
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/fre", "the fre program")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.DurationVar(&o.turn, "turn", 5*time.Second, "how long each situation is measured before it is the next one's turn")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each situation")
	flag.Float64Var(&o.rate, "rate", 50, "events each second of the quiet tenant")
	flag.Float64Var(&o.quota, "quota", 20, "events each second that the noisy tenant may have; it sends ten times as many")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.Parse()
	if o.quick {
		o.turn, o.rounds = 300*time.Millisecond, 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/tenants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/var/tmp", "fre-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := testdaemon.Start(ctx, testdaemon.Config{Bin: bin, State: filepath.Join(dir, "state")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop(context.WithoutCancel(ctx))) }()
	for _, tenant := range []string{"quiet", "noisy"} {
		path := filepath.Join(dir, tenant)
		template := fmt.Sprintf("id: %s\nbase: native\ntenant: %s\nhandler: run.sh\ncode: {path: src}\nresources: {memory: 16MiB, timeout: 10s}\n", tenant, tenant)
		if err := errors.Join(
			os.MkdirAll(filepath.Join(path, "src"), 0o755),
			os.WriteFile(filepath.Join(path, "fret.yaml"), []byte(template), 0o644),
			os.WriteFile(filepath.Join(path, "src", "run.sh"), []byte("#!/bin/sh\necho ok\n"), 0o755),
		); err != nil {
			return err
		}
		if _, err := d.CLI(ctx, "deploy", path); err != nil {
			return err
		}
	}
	r := &result{Rate: o.rate, Quota: o.quota, Situations: []*situation{
		{Name: "alone"}, {Name: "beside 10 × its quota", noise: true, quota: o.quota}, {Name: "beside the same, without a quota", noise: true},
	}}
	if r.Host, err = host.Describe(ctx, map[string][]string{"fre": {bin, "--socket", d.Socket(), "version"}}); err != nil {
		return err
	}
	for range o.rounds {
		for _, s := range r.Situations {
			if err := s.measure(ctx, d, o); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	r.print(o)
	path, err := report.Raw(o.results, "tenants", r.Host.Time, r)
	if err == nil {
		fmt.Printf("\nRaw result: %s\n", path)
	}
	return err
}

// measure takes one turn.
func (s *situation) measure(ctx context.Context, d *testdaemon.Daemon, o options) error {
	if _, err := d.CLI(ctx, "tenant", "quota", "noisy", "--events", strconv.Itoa(int(s.quota))); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type noise struct {
		report *load.Report
		err    error
	}
	noisy := make(chan noise, 1)
	if s.noise {
		go func() {
			r, err := load.Run(ctx, load.Config{URL: d.URL("/function/noisy.noisy"), Rate: 10 * o.quota, Duration: o.turn, WarmUp: o.turn / 10})
			noisy <- noise{r, err}
		}()
	}
	quiet, err := load.Run(ctx, load.Config{URL: d.URL("/function/quiet.quiet"), Rate: o.rate, Duration: o.turn, WarmUp: o.turn / 10})
	if err != nil {
		return err
	}
	if s.noise {
		n := <-noisy
		if n.err != nil {
			return n.err
		}
		s.Served = append(s.Served, n.report.ByStatus["200"].Count)
		s.Others = append(s.Others, n.report.ByStatus["429"].Count)
	}
	s.P50, s.P99 = append(s.P50, int64(quiet.Metrics.Latencies.P50)), append(s.P99, int64(quiet.Metrics.Latencies.P99))
	failed := quiet.Metrics.Requests - quiet.ByStatus["200"].Count
	if !s.noise && failed > 0 {
		return fmt.Errorf("%d of %d events failed: the figures would be of something else", failed, quiet.Metrics.Requests)
	}
	s.Failed += failed
	return nil
}

func median(all []int64) time.Duration { return time.Duration(stats.Median(all)) }

func (r *result) print(o options) {
	fmt.Printf("%s\n\n", r.Host.Markdown())
	fmt.Printf("A tenant sends %g events each second, each of which gets a fresh sandbox; medians of %d turns of %s.\n\n", o.rate, o.rounds, o.turn)
	fmt.Println("| the tenant is | p50 | p99 | p99 ÷ alone | its failures | the other's served | refused |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|")
	alone := median(r.Situations[0].P99)
	for _, s := range r.Situations {
		var served, refused uint64
		for i := range s.Served {
			served += s.Served[i]
			refused += s.Others[i]
		}
		p99 := median(s.P99)
		fmt.Printf("| %s | %v | %v | %.2f | %d | %d | %d |\n", s.Name, median(s.P50).Round(10*time.Microsecond), p99.Round(10*time.Microsecond), float64(p99)/float64(alone), s.Failed, served, refused)
	}
}
