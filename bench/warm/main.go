// Command warm measures calls of functions with a running instance: latency and requests per second
// of a no-op handler in Python, of a native and of a Node handler, on few and on many connections.
// On one connection the command also measures handlers under the lambda contract.
//
//	go run ./bench/warm        # as root, from the project's root directory
//
// The floor is a plain net/http server in a separate process, which answers the same bytes without
// a function. No function runtime can be faster than the floor; the difference is the cost of FRE.
// All servers take turns in one run, on one machine shared with the client: read the ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/stats"
)

type options struct {
	engine.Options
	slice   time.Duration
	rounds  int
	results string
	quick   bool
	floor   bool
}

func main() {
	var o options
	o.Register(flag.CommandLine)
	flag.DurationVar(&o.slice, "slice", time.Second, "how long a target is called before it is the next one's turn")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each target")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.BoolVar(&o.floor, "serve-floor", false, "be the plain server: print the address, serve until standard input ends")
	flag.Parse()
	if o.quick {
		o.slice, o.rounds = 50*time.Millisecond, 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	run := run
	if o.floor {
		run = serveFloor
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/warm:", err)
		os.Exit(1)
	}
}

// serveFloor answers every request with 200 and an empty body, until standard input ends, which
// happens when the parent ends.
func serveFloor(_ context.Context, _ options) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = server.Close()
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// startFloor runs this program again as the floor. stop ends the floor.
func startFloor() (addr string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "-serve-floor")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(stdin.Close(), cmd.Wait()) }
	if _, err := fmt.Fscanln(stdout, &addr); err != nil {
		return "", nil, errors.Join(fmt.Errorf("the floor's address: %w", err), stop())
	}
	return addr, stop, nil
}

// target is a function or server to call.
type target struct {
	Name   string `json:"name"`
	Beside string `json:"beside,omitempty"` // for a handler under a contract: the name of the same handler under FRE's own contract
	addr   string
	path   string
}

// series holds the measurements of one target on a number of connections.
type series struct {
	target
	Connections int             `json:"connections"`
	PerSecond   []float64       `json:"requests_per_second"` // per turn
	Summary     stats.Summary   `json:"latency"`
	samples     []time.Duration // too many to keep in the result
}

type result struct {
	Host   host.Info `json:"host"`
	Series []*series `json:"series"`
}

func run(ctx context.Context, o options) (err error) {
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	floor, stop, err := startFloor()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	targets := []target{{Name: "net/http alone", addr: floor, path: "/"}}
	const python, node = "fre, python no-op", "fre, node no-op"
	for _, f := range []struct{ name, beside, template, function string }{
		{python, "", "bench/functions/python-noop", "bench-python-noop"},
		{"fre, native no-op", "", "bench/functions/native-warm", "bench-native-warm"},
		{node, "", "bench/functions/node-noop", "bench-node-noop"},
		{"lambda, python handler", python, "bench/functions/python-lambda", "bench-python-lambda"},
		{"lambda, node handler", node, "bench/functions/node-lambda", "bench-node-lambda"},
		{"lambda, awslambdaric", python, "bench/functions/python-awslambdaric", "bench-python-awslambdaric"},
	} {
		if _, err := e.Deploy(ctx, f.template, f.function); err != nil {
			return err
		}
		targets = append(targets, target{Name: f.name, Beside: f.beside, addr: e.Addr(), path: "/function/" + f.function})
	}

	r := &result{}
	if r.Host, err = host.Describe(ctx, map[string][]string{"fre": e.Version()}); err != nil {
		return err
	}
	for _, connections := range []int{1, 2, 64} {
		var all []*series
		for _, t := range targets {
			if t.Beside != "" && connections > 1 { // the contract allows one event at a time
				continue
			}
			all = append(all, &series{target: t, Connections: connections})
			// A turn that does not count starts the instances.
			if _, err := load.Call(ctx, t.addr, t.path, connections, o.slice/10); err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
		}
		for range o.rounds {
			for _, s := range all {
				samples, err := load.Call(ctx, s.addr, s.path, connections, o.slice)
				if err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
				s.samples = append(s.samples, samples...)
				s.PerSecond = append(s.PerSecond, float64(len(samples))/o.slice.Seconds())
			}
		}
		for _, s := range all {
			s.Summary = stats.Summarize(s.samples)
		}
		r.Series = append(r.Series, all...)
	}
	fmt.Print(r.markdown())
	path, err := report.Raw(o.results, "warm", r.Host.Time, r)
	if err != nil {
		return err
	}
	fmt.Printf("\nRaw result: %s\n", path)
	return nil
}

func (r *result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Host.Markdown())
	b.WriteString("Closed loop: each connection sends its next request when the last is answered. The client runs on the same machine. *net/http alone* is the floor: no function, no sandbox. Latencies in microseconds.\n\n")
	b.WriteString("| connections | target | requests/s | p50 | p99 | slowest | requests/s ÷ floor | p50 ÷ fre's own |\n")
	b.WriteString("|---:|---|---:|---:|---:|---:|---:|---:|\n")
	floor := map[int]float64{}
	for _, s := range r.Series {
		rate := mean(s.PerSecond)
		if _, ok := floor[s.Connections]; !ok {
			floor[s.Connections] = rate
		}
		ratio := ""
		for _, own := range r.Series {
			if own.Name == s.Beside && own.Connections == s.Connections {
				ratio = fmt.Sprintf("%.2f", float64(s.Summary.P50)/float64(own.Summary.P50))
			}
		}
		fmt.Fprintf(&b, "| %d | %s | %.0f | %d | %d | %d | %.2f | %s |\n", s.Connections, s.Name, rate,
			s.Summary.P50.Microseconds(), s.Summary.P99.Microseconds(), s.Summary.Slowest.Microseconds(), rate/floor[s.Connections], ratio)
	}
	return b.String()
}

// mean returns the mean of rates over turns of equal length: all requests divided by the total
// time.
func mean(rates []float64) float64 {
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum / float64(max(len(rates), 1))
}
