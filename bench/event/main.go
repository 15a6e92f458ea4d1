// Command event measures functions with a fresh sandbox for every event:
//
//   - the time from the HTTP request to the first line of a handler in Python, Node, Java, PHP and
//     Ruby, and of a Python handler with large imports, compared with the start of the bare
//     interpreter in the same tree of files, which does less;
//   - the number of events per second on two or more connections;
//   - the memory of a parked sandbox, of a ready cgroup and of a ready network namespace.
//
// The peers take turns in one run, on one machine: read the ratios.
//
//	go run ./bench/event        # as root, from the project's root directory
//
// The command prints Markdown tables and writes every sample as JSON to bench/results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/spawn"
	"github.com/fre-engine/fre/bench/internal/stats"
)

type options struct {
	engine.Options
	n           int           // starts of each function and interpreter
	pause       time.Duration // before each start
	slice       time.Duration // of a turn of throughput
	rounds      int           // turns of throughput
	connections []int
	ready       int // number of parked sandboxes
	results     string
	summary     string
	quick       bool
}

func main() {
	o := options{connections: []int{2, 8}}
	o.Register(flag.CommandLine)
	flag.IntVar(&o.n, "n", 60, "starts of each function and interpreter")
	flag.DurationVar(&o.pause, "pause", 50*time.Millisecond, "wait before each of these starts, so that pools refill")
	flag.DurationVar(&o.slice, "slice", 2*time.Second, "how long a function is called before it is the next one's turn")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each, and rounds of what is kept ready")
	flag.IntVar(&o.ready, "ready", 1000, "parked sandboxes, cgroups and network namespaces whose memory is measured; 0 leaves it out")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "file to write the tables to, as well")
	flag.BoolVar(&o.quick, "quick", false, "a few of everything, to see that it works")
	flag.Parse()
	if o.quick {
		o.n, o.pause, o.slice, o.rounds, o.ready = 3, 0, 50*time.Millisecond, 1, 8
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/event:", err)
		os.Exit(1)
	}
}

type result struct {
	Host       host.Info      `json:"host"`
	Lines      []*peer.Series `json:"first_lines"`
	HeavyKiB   int64          `json:"heavy_kib"` // peak resident set of python-heavy at the first line
	PlainKiB   int64          `json:"plain_kib"` // likewise of python-clock
	Throughput []*throughput  `json:"throughput"`
	Ready      *ready         `json:"ready,omitempty"`
}

// throughput holds the results of one function at a number of connections.
type throughput struct {
	Function    string        `json:"function"`
	Connections int           `json:"connections"`
	PerSecond   []float64     `json:"requests_per_second"` // per turn
	Summary     stats.Summary `json:"latency"`
	samples     []time.Duration
}

// function is a function to measure, with a bare command for comparison.
type function struct {
	name     string // of the deployed function
	template string
	label    string
	bare     []string // a command in the function's tree
	bareName string
}

// The bare commands print the clock in the first line of code, like the handlers. -I -S -E is the
// least with which Python can start; FRE's bootstrap uses -S. The bare JVM uses the archive of the
// base's classes made by FRE, because the JVM brings no archive of its own.
var functions = []function{
	{
		name: "bench-python-clock", template: "bench/functions/python-clock", label: "python",
		bare:     []string{"/usr/bin/python3", "-I", "-S", "-E", "-c", "import time; print(time.monotonic_ns())"},
		bareName: "python3 -I -S -E -c",
	},
	{
		name: "bench-node-clock", template: "bench/functions/node-clock", label: "node",
		bare:     []string{"/usr/bin/node", "-e", "console.log(String(process.hrtime.bigint()))"},
		bareName: "node -e",
	},
	{
		name: "bench-java-clock", template: "bench/functions/java-clock", label: "java",
		bare: []string{
			"/usr/bin/java", "-XX:SharedArchiveFile=/opt/fre/fre.jsa", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData",
			"-cp", "/opt/fre/fre.jar:/function", "Clock",
		},
		bareName: "java -XX:SharedArchiveFile",
	},
	{
		name: "bench-php-clock", template: "bench/functions/php-clock", label: "php",
		bare:     []string{"/usr/bin/php", "-n", "-r", "echo hrtime(true);"},
		bareName: "php -n -r",
	},
	{
		name: "bench-ruby-clock", template: "bench/functions/ruby-clock", label: "ruby",
		bare:     []string{"/usr/bin/ruby", "--disable=all", "-e", "puts Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)"},
		bareName: "ruby --disable=all -e",
	},
	{
		name: "bench-python-heavy", template: "bench/functions/python-heavy", label: "python with imports",
		bare: []string{
			"/usr/bin/python3", "-I", "-S", "-E", "-c",
			`import sys; sys.path[:0] = ["/function", "/opt/python"]; import main; print(main.handle(None, None))`,
		},
		bareName: "python3 -I -S -E -c, the same imports",
	},
}

// functions returns the functions to measure. A quick run measures only Python, because making each
// base environment takes time.
func (o options) functions() []function {
	if !o.quick {
		return functions
	}
	return slices.DeleteFunc(slices.Clone(functions), func(f function) bool { return !strings.HasPrefix(f.label, "python") })
}

func run(ctx context.Context, o options) (err error) {
	if o.Socket != "" {
		return errors.New("-fre-socket: the bare interpreters run in the engine's store, so that it must be the benchmark's own")
	}
	r := &result{}
	if o.ready > 0 { // must run before an engine exists
		if r.Ready, err = measureReady(ctx, o.ready, o.rounds); err != nil {
			return fmt.Errorf("memory of what is kept ready: %w", err)
		}
	}
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := r.measureLines(ctx, e, o); err != nil {
		return fmt.Errorf("first lines: %w", err)
	}
	if err := r.measureThroughput(ctx, e, o); err != nil {
		return fmt.Errorf("throughput: %w", err)
	}
	return report.Publish(o.results, o.summary, "Fresh sandboxes", "event", r.Host.Time, r, r.markdown())
}

func (r *result) measureLines(ctx context.Context, e *engine.Engine, o options) (err error) {
	spawner, err := spawn.Compile(ctx, e.Dir())
	if err != nil {
		return err
	}
	versions := map[string][]string{"fre": e.Version()}
	var entries []peer.Entry
	defer func() { err = errors.Join(err, peer.Close(entries)) }()
	for _, f := range o.functions() {
		if _, err := e.Deploy(ctx, f.template, f.name); err != nil {
			return err
		}
		deployed, err := engine.JSON[api.FunctionDetails](ctx, e, "function", "inspect", f.name)
		if err != nil {
			return err
		}
		root := e.Rootfs(deployed[0].Image)
		versions[f.label] = spawn.Proc(root, "chroot", root, f.bare[0], "--version")
		bare, err := peer.BareIn(spawner, root, f.bare...)
		if err != nil {
			return err
		}
		entries = append(entries,
			peer.Entry{Name: f.bareName, Peer: bare, N: o.n},
			peer.Entry{Name: "fre, " + f.label, Peer: peer.FRE(e.Addr(), f.name), N: o.n})
	}
	delete(versions, "python with imports") // shares the interpreter of python
	if r.Host, err = host.Describe(ctx, versions); err != nil {
		return err
	}
	// The first start reads the files from the disk; do not count it.
	if _, err := peer.Sequential(ctx, entries, 1, 0); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	if r.Lines, err = peer.Sequential(ctx, entries, o.n, o.pause); err != nil {
		return err
	}
	return r.measureImports(e)
}

// measureImports reads the peak memory of the functions with and without large imports.
func (r *result) measureImports(e *engine.Engine) error {
	for _, f := range []struct {
		name string
		into *int64
	}{{"bench-python-heavy", &r.HeavyKiB}, {"bench-python-clock", &r.PlainKiB}} {
		c, err := rawhttp.Dial(e.Addr())
		if err != nil {
			return err
		}
		resp, err := c.Do(rawhttp.Post(e.Addr(), "/function/"+f.name, nil))
		err = errors.Join(err, c.Close())
		if err != nil {
			return err
		}
		_, kib, _ := strings.Cut(string(resp.Body), " ")
		if *f.into, err = strconv.ParseInt(kib, 10, 64); err != nil {
			return fmt.Errorf("%s answered %q: %w", f.name, resp.Body, err)
		}
	}
	return nil
}

func (r *result) measureThroughput(ctx context.Context, e *engine.Engine, o options) error {
	fresh := map[string]any{"instances": map[string]any{"isolation": "event", "max": 64}}
	names := map[string]string{"python no-op": "bench-fresh-python", "native clock": "bench-fresh-native"}
	if _, err := e.DeployWith(ctx, "bench/functions/python-noop", names["python no-op"], fresh); err != nil {
		return err
	}
	if _, err := e.DeployWith(ctx, "bench/functions/native-clock", names["native clock"], fresh); err != nil {
		return err
	}
	for _, connections := range o.connections {
		var all []*throughput
		for _, f := range slices.Backward(slices.Sorted(maps.Keys(names))) {
			all = append(all, &throughput{Function: f, Connections: connections})
		}
		for range o.rounds {
			for _, t := range all {
				if err := host.Settle(ctx); err != nil {
					return err
				}
				samples, err := load.Call(ctx, e.Addr(), "/function/"+names[t.Function], connections, o.slice)
				if err != nil {
					return fmt.Errorf("%s: %w", t.Function, err)
				}
				t.samples = append(t.samples, samples...)
				t.PerSecond = append(t.PerSecond, float64(len(samples))/o.slice.Seconds())
			}
		}
		for _, t := range all {
			t.Summary = stats.Summarize(t.samples)
		}
		r.Throughput = append(r.Throughput, all...)
	}
	return nil
}
