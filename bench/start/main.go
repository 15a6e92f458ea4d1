// Command start measures cold starts: the time from a request to the first own
// instruction of a static Go program, started by FRE at a request to its HTTP
// gateway, beside a bare vfork and exec of the same file, `runc run`, and
// `docker run` where an engine answers. The peers take turns in one run, on one
// machine: read the ratios.
//
//	go run ./bench/start        # as root, from the project's root directory
//
// It prints a Markdown table and keeps every sample as JSON in bench/results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/spawn"
)

type options struct {
	engine.Options
	n       int    // sequential starts of bare and FRE
	runc    int    // sequential starts of runc
	docker  int    // sequential starts of docker
	bursts  string // sizes
	rounds  int    // bursts of each size
	results string
	summary string
	quick   bool
}

func main() {
	var o options
	o.Register(flag.CommandLine)
	flag.IntVar(&o.n, "n", 500, "sequential starts")
	flag.IntVar(&o.runc, "runc", 100, "sequential starts by runc, at most -n")
	flag.IntVar(&o.docker, "docker", 20, "sequential starts by docker, at most -n")
	flag.StringVar(&o.bursts, "c", "64,256", "sizes of the bursts")
	flag.IntVar(&o.rounds, "rounds", 5, "bursts of each size")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw samples")
	flag.StringVar(&o.summary, "summary", "", "file to write the table to, as well")
	flag.BoolVar(&o.quick, "quick", false, "a few starts of bare and FRE only, to see that it works")
	flag.Parse()
	if o.quick {
		o.n, o.runc, o.docker, o.bursts, o.rounds = 10, 0, 0, "8", 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/start:", err)
		os.Exit(1)
	}
}

// entry is a peer and how much is asked of it.
type entry struct {
	name   string
	peer   peer
	n      int // sequential
	burst  int // largest burst it takes part in
	rounds int // bursts of each size
}

func run(ctx context.Context, o options) (err error) {
	sizes, err := parseSizes(o.bursts)
	if err != nil {
		return err
	}
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	template, err := e.Deploy(ctx, "templates/native-clock", "bench-clock")
	if err != nil {
		return err
	}
	clock := filepath.Join(template, "clock")
	spawner, err := spawn.Compile(ctx, e.Dir())
	if err != nil {
		return err
	}

	r := &result{}
	if r.Host, err = host.Describe(ctx, map[string][]string{
		"fre": e.Version(), "runc": {"runc", "--version"}, "docker": {"docker", "--version"},
	}); err != nil {
		return err
	}
	bare, err := spawn.Start(spawner, clock)
	if err != nil {
		return err
	}
	peers := []entry{
		{"bare vfork+exec", bare, o.n, maxBurst, o.rounds},
		{"fre", newFRE(e.Addr(), "bench-clock"), o.n, maxBurst, o.rounds},
	}
	defer func() {
		for _, p := range peers {
			err = errors.Join(err, p.peer.Close())
		}
	}()
	if o.runc > 0 {
		switch p, err := newRunc(ctx, spawner, clock, e.Dir()); {
		case errors.Is(err, exec.ErrNotFound):
			r.Skipped = append(r.Skipped, "runc, which is not installed (make deps-bench)")
		case err != nil:
			return err
		default:
			peers = append(peers, entry{"runc run", p, min(o.runc, o.n), maxBurst, min(o.rounds, 2)})
		}
	}
	if o.docker > 0 {
		switch p, err := newDocker(ctx, spawner, clock, e.Dir()); {
		case errors.Is(err, errNoEngine):
			r.Skipped = append(r.Skipped, "docker, since no engine answers (`docker info`)")
		case err != nil:
			return err
		default:
			// 128 at once take docker 20 s on two cores.
			peers = append(peers, entry{"docker run --network none", p, min(o.docker, o.n), 64, 1})
		}
	}

	if err := sequential(ctx, r, peers, o.n); err != nil {
		return err
	}
	for _, size := range sizes {
		if err := bursts(ctx, r, peers, size, o.rounds); err != nil {
			return err
		}
	}
	return report(r, o)
}

const (
	maxBurst = 4096 // the spawner's
	turn     = 10   // sequential starts of a peer before it is the next one's turn
)

// sequential spreads each peer's starts evenly over the whole run.
func sequential(ctx context.Context, r *result, peers []entry, n int) error {
	all := make([]*samples, len(peers))
	for i, p := range peers {
		all[i] = &samples{Peer: p.name, AtOnce: 1}
	}
	turns := (n + turn - 1) / turn
	for t := range turns {
		for i, p := range peers {
			if err := ctx.Err(); err != nil {
				return err
			}
			count := p.n*(t+1)/turns - p.n*t/turns
			if count == 0 {
				continue
			}
			got, err := p.peer.Sequential(count)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			all[i].Rounds = append(all[i].Rounds, got)
		}
	}
	r.Series = append(r.Series, all...)
	return nil
}

func bursts(ctx context.Context, r *result, peers []entry, size, rounds int) error {
	all := make([]*samples, len(peers))
	for i, p := range peers {
		all[i] = &samples{Peer: p.name, AtOnce: size}
	}
	for round := range rounds {
		for i, p := range peers {
			if err := ctx.Err(); err != nil {
				return err
			}
			if size > p.burst || round >= p.rounds {
				continue
			}
			got, err := p.peer.Burst(size)
			if err != nil {
				return fmt.Errorf("%s, %d at once: %w", p.name, size, err)
			}
			all[i].Rounds = append(all[i].Rounds, got)
		}
	}
	for _, s := range all {
		if len(s.Rounds) > 0 {
			r.Series = append(r.Series, s)
		}
	}
	return nil
}

func report(r *result, o options) error {
	table := r.markdown()
	fmt.Print(table)
	path, err := r.write(o.results)
	if err != nil {
		return err
	}
	fmt.Printf("\nEvery sample: %s\n", path)
	if o.summary == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.summary), 0o755); err != nil {
		return err
	}
	page := "# Cold starts\n\nWritten by `make bench-start`; `bench/start` says what is measured and how.\n\n" + table
	return os.WriteFile(o.summary, []byte(page), 0o644)
}

func parseSizes(list string) ([]int, error) {
	var sizes []int
	for field := range strings.SplitSeq(list, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		n, err := strconv.Atoi(field)
		if err != nil || n < 2 || n > maxBurst {
			return nil, fmt.Errorf("-c %s: %q is no size between 2 and %d", list, field, maxBurst)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}
