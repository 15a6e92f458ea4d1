// Command start measures cold starts: the time from a request to the first instruction of a static
// Go program. FRE starts the program for a request to the HTTP gateway. The peers are a bare vfork
// and exec of the same file, `runc run`, and `docker run` on a Docker engine started by the
// benchmark. The peers take turns in one run, on one machine: read the ratios. FRE and bare
// processes also start a C program without libc, which needs almost no start-up of its own: the
// difference is the cost of the sandbox.
//
//	go run ./bench/start        # as root, from the project's root directory
//
// The gateway reports the kind of each start (X-Fre-Start), and each kind has its own line: a
// sandbox made ahead differs from a sandbox made on request. Further engines with other settings
// can take part:
//
//	go run ./bench/start -also 'no pool=--pool 0'
//
// The command prints a Markdown table and writes every sample as JSON to bench/results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/spawn"
)

type options struct {
	engine.Options
	also    map[string]string // further engines: name → arguments
	n       int               // sequential starts of bare and FRE
	runc    int               // sequential starts of runc
	docker  int               // sequential starts of docker
	pause   time.Duration     // before each sequential start
	bursts  string            // sizes
	rounds  int               // bursts of each size
	results string
	summary string
	quick   bool
}

func main() {
	o := options{also: map[string]string{}}
	o.Register(flag.CommandLine)
	flag.Func("also", "`NAME=ARGS`: another engine to measure, started with these arguments of fre serve; may be repeated", func(s string) error {
		name, args, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return errors.New("want NAME=ARGS")
		}
		o.also[name] = args
		return nil
	})
	flag.IntVar(&o.n, "n", 500, "sequential starts")
	flag.IntVar(&o.runc, "runc", 100, "sequential starts by runc, at most -n; 0 leaves it out")
	flag.IntVar(&o.docker, "docker", 20, "sequential starts by docker, at most -n; 0 leaves it out")
	flag.DurationVar(&o.pause, "pause", 0, "wait before each sequential start, so that pools refill")
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
	spawner, err := spawn.Compile(ctx, e.Dir())
	if err != nil {
		return err
	}
	r := &result{}
	set := peer.Set{Engine: e, Also: map[string]*engine.Engine{}, Spawner: spawner, Runc: o.runc > 0, C: true}
	for name, args := range o.also {
		other, err := engine.Open(ctx, engine.Options{Bin: o.Bin, Serve: args})
		if err != nil {
			return fmt.Errorf("-also %s: %w", name, err)
		}
		defer func() { err = errors.Join(err, other.Close()) }()
		set.Also[name] = other
	}
	versions := map[string][]string{"fre": e.Version(), "runc": {"runc", "--version"}}
	if o.docker > 0 {
		switch set.Docker, err = dockerd.Start(ctx, filepath.Join(e.Dir(), "docker")); {
		case errors.Is(err, dockerd.ErrMissing):
			r.Skipped = append(r.Skipped, "docker: "+err.Error())
		case err != nil:
			return err
		default:
			defer func() { err = errors.Join(err, set.Docker.Close()) }()
			versions["docker"] = set.Docker.Command("--version")
		}
	}
	peers, skipped, err := set.Open(ctx)
	if err != nil {
		return err
	}
	entries := o.entries(peers)
	defer func() { err = errors.Join(err, peer.Close(entries)) }()
	r.Skipped = append(r.Skipped, skipped...)
	if r.Host, err = host.Describe(ctx, versions); err != nil {
		return err
	}

	series, err := peer.Sequential(ctx, entries, o.n, o.pause)
	if err != nil {
		return err
	}
	r.Series = series
	for _, size := range sizes {
		series, err := peer.Bursts(ctx, entries, size, o.rounds, host.Settle)
		if err != nil {
			return err
		}
		r.Series = append(r.Series, series...)
	}
	return report.Publish(o.results, o.summary, "Cold starts", "start", r.Host.Time, r, r.markdown())
}

// entries returns the amount of measurement for each peer, in the order of the table.
func (o options) entries(peers map[string]peer.Peer) []peer.Entry {
	entries := []peer.Entry{
		{Name: peer.BareName, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds},
		{Name: peer.BarePinnedName, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds},
		{Name: peer.FREName, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds},
		{Name: peer.BareName + peer.CSuffix, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds},
		{Name: peer.BarePinnedName + peer.CSuffix, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds},
		{Name: peer.FREName + peer.CSuffix, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds},
	}
	for _, name := range slices.Sorted(maps.Keys(o.also)) {
		entries = append(entries, peer.Entry{Name: peer.FREName + " " + name, N: o.n, Burst: peer.MaxBurst, Rounds: o.rounds})
	}
	// 256 simultaneous starts take docker most of a minute on two cores: one round is enough.
	entries = append(entries,
		peer.Entry{Name: peer.RuncName, N: o.runc, Burst: peer.MaxBurst, Rounds: min(o.rounds, 2)},
		peer.Entry{Name: peer.DockerName, N: o.docker, Burst: 256, Rounds: 1},
		peer.Entry{Name: peer.DockerHostName, N: o.docker, Burst: 1})
	open := entries[:0]
	for _, e := range entries {
		if e.Peer = peers[e.Name]; e.Peer != nil {
			open = append(open, e)
		}
	}
	return open
}

func parseSizes(list string) ([]int, error) {
	var sizes []int
	for field := range strings.SplitSeq(list, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		n, err := strconv.Atoi(field)
		if err != nil || n < 2 || n > peer.MaxBurst {
			return nil, fmt.Errorf("-c %s: %q is no size between 2 and %d", list, field, peer.MaxBurst)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}
