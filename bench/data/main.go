// Command data measures the data path: bodies of all sizes from functions and files. nginx,
// httputil.ReverseProxy and plain net/http serve the same bytes for comparison.
//
//	go run ./bench/data         # as root, from the project's root directory
//
// All servers and clients run in a network namespace with the congestion control reno, because a
// host's BBR would pace the loopback. Servers run on the first CPU, and the client, fre-bench http,
// on the last. The rows of nginx show the better of tcp_nopush on and off. The servers take turns
// in one run: read the ratios.
//
// The functions behind nginx are servers of the same bytes on Unix sockets: in Go net/http, in
// Python the standard library's http.server with threads. Engine and function share one CPU, as
// nginx and the function behind nginx do.
//
// The command prints Markdown tables and writes the report of every turn as JSON.
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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/internal/testdaemon"
)

type options struct {
	bin, serve       string
	client           string
	state            string
	slice, warmUp    time.Duration
	rounds           int
	only             string
	results, summary string
	quick            bool

	// Options of child processes that run this program.
	inside string // directory: run the benchmark, inside the namespace
	role   string // run as the named server
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/fre", "the fre program")
	flag.StringVar(&o.client, "client", "bin/fre-bench", "the fre-bench program")
	flag.StringVar(&o.serve, "serve", "", "further arguments of fre serve, separated by spaces")
	flag.StringVar(&o.state, "state", "", "state directory of the engine, which keeps what was built for the next run (default: one of this run's own)")
	flag.DurationVar(&o.slice, "slice", 2500*time.Millisecond, "how long a server is called before it is the next one's turn")
	flag.DurationVar(&o.warmUp, "warm-up", 500*time.Millisecond, "before each turn, not measured")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each server")
	flag.StringVar(&o.only, "only", "", "only the rows whose name has this in it")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "file to write the tables to, figures beside it")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.StringVar(&o.inside, "inside", "", "internal: measure here, with the state below this directory")
	flag.StringVar(&o.role, "role", "", "internal: serve as this, to the end of standard input")
	flag.Parse()
	if o.quick {
		o.slice, o.warmUp, o.rounds = 50*time.Millisecond, 20*time.Millisecond, 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	run := run
	switch {
	case o.role != "":
		run = serveRole
	case o.inside != "":
		run = inside
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/data:", err)
		os.Exit(1)
	}
}

// functions maps the names of the deployed functions to templates.
var functions = map[string]string{
	"data-go": "bench/functions/data-go", lentFunction: "bench/functions/data-go", "data-python": "bench/functions/data-python", "noop-native": "bench/functions/native-warm",
	"noop-python": "bench/functions/python-noop", "noop-node": "bench/functions/node-noop", "slow": "bench/functions/python-slow",
}

// lentFunction is trusted: the engine passes the clients' connections to it (docs/gateway.md).
const lentFunction = "data-go-lent"

// startEngine runs the engine with the benchmark's own configuration, written to dir.
func startEngine(ctx context.Context, o options, dir string) (*testdaemon.Daemon, error) {
	config := filepath.Join(dir, "engine.yaml")
	if err := os.WriteFile(config, []byte("network: {lend_connections: [default/"+lentFunction+"]}\n"), 0o600); err != nil {
		return nil, err
	}
	return testdaemon.Start(ctx, testdaemon.Config{Bin: o.bin, State: o.state, Args: append(strings.Fields(o.serve), "--config", config)})
}

// run deploys the functions with access to the network, and then measures in a child process
// without.
func run(ctx context.Context, o options) (err error) {
	for _, path := range []*string{&o.bin, &o.client} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "fre-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.state == "" {
		o.state = filepath.Join(dir, "state")
	}
	if o.state, err = filepath.Abs(o.state); err != nil {
		return err
	}
	if err := deploy(ctx, o, dir); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The terminal sends interrupts to the whole process group; the parent waits for the child.
	cmd := exec.Command(self, append(os.Args[1:], "-inside", dir, "-bin", o.bin, "-client", o.client, "-state", o.state)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	return cmd.Run()
}

func deploy(ctx context.Context, o options, dir string) (err error) {
	d, err := startEngine(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopEngine(d)) }()
	for name, template := range functions {
		copied := filepath.Join(dir, name, filepath.Base(template))
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return err
		}
		if err := testdaemon.CopyTemplate(ctx, template, copied); err != nil {
			return err
		}
		if name == lentFunction {
			if err := appendTo(filepath.Join(copied, "fret.yaml"), "network: {mode: none, lend_connection: true}\n"); err != nil {
				return err
			}
		}
		if _, err := d.CLI(ctx, "deploy", copied, "--name", name); err != nil {
			return err
		}
	}
	return nil
}

func appendTo(name, text string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func stopEngine(d *testdaemon.Daemon) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.Stop(ctx)
}

// inside runs in the namespace and measures.
func inside(ctx context.Context, o options) (err error) {
	if err := testbed.PrepareNetwork(); err != nil {
		return err
	}
	cpus, err := testbed.TwoCPUs()
	if err != nil {
		return err
	}
	b := &bench{options: o, cpus: cpus, dir: o.inside, client: testbed.Client{Bin: o.client, CPU: cpus[1], WarmUp: o.warmUp, Slice: o.slice}}
	defer func() { err = errors.Join(err, b.close()) }()
	r := &result{Slice: o.slice, Rounds: o.rounds, CPUs: cpus}
	if r.Host, err = host.Describe(ctx, map[string][]string{
		"fre": {o.bin, "version", "--format", "{{.Client.Version}}"}, "h2load": {"h2load", "--version"}, "h2o": {"h2o", "--version"},
	}); err != nil {
		return err
	}
	r.Host.Programs["nginx"] = testbed.NginxVersion(ctx)
	if err := b.start(ctx); err != nil {
		return err
	}
	r.Skipped = b.skipped
	if err := b.measure(ctx, r); err != nil {
		return err
	}
	tables := r.markdown()
	fmt.Print(tables)
	path, err := report.Raw(o.results, "data", r.Host.Time, r)
	if err != nil {
		return err
	}
	fmt.Printf("\nRaw result: %s\n", path)
	if o.summary == "" {
		return nil
	}
	figures, err := r.figures(strings.TrimSuffix(o.summary, ".md"))
	if err != nil {
		return err
	}
	return report.Page(o.summary, "The data path", "data", tables+figures)
}
