// Command calls measures calls from a warm Python function to another function, which echoes the
// body. For comparison a client on the host sends the same requests to the gateway over one
// connection. Both take turns.
//
//	go run ./bench/calls        # as root, from the project's root directory
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/report"
)

const template, caller, callee = "bench/functions/python-calls", "bench-caller", "bench-callee"

type options struct {
	engine.Options
	rounds  int
	results string
	summary string
	quick   bool
}

func main() {
	var o options
	o.Register(flag.CommandLine)
	flag.IntVar(&o.rounds, "rounds", 7, "turns of each kind")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "also write the table to this page")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/calls:", err)
		os.Exit(1)
	}
}

// turn holds the median and the 99th percentile of one measurement.
type turn struct {
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
}

// size holds the measurements for one size of request and response bodies.
type size struct {
	Bytes   int    `json:"bytes"`
	Calls   int    `json:"calls"` // per turn
	Inside  []turn `json:"inside"`
	Gateway []turn `json:"gateway"`
}

type result struct {
	Host  host.Info `json:"host"`
	Sizes []*size   `json:"sizes"`
}

func run(ctx context.Context, o options) (err error) {
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for _, name := range []string{caller, callee} {
		if _, err := e.Deploy(ctx, template, name); err != nil {
			return err
		}
	}
	r := &result{Sizes: []*size{{Bytes: 0, Calls: 1000}, {Bytes: 64 << 10, Calls: 300}, {Bytes: 8 << 20, Calls: 20}}}
	if r.Host, err = host.Describe(ctx, map[string][]string{"fre": e.Version()}); err != nil {
		return err
	}
	if o.quick {
		o.rounds = 1
	}
	for range o.rounds {
		for _, s := range r.Sizes {
			if o.quick {
				s.Calls = 3
			}
			inside, err := s.inside(ctx, e)
			if err != nil {
				return err
			}
			gateway, err := s.gateway(ctx, e)
			if err != nil {
				return err
			}
			s.Inside, s.Gateway = append(s.Inside, inside), append(s.Gateway, gateway)
		}
	}
	return report.Publish(o.results, o.summary, "Calls between functions", "calls", r.Host.Time, r, r.markdown())
}

// post sends an event through the gateway and returns the body. A status other than 200 is an
// error.
func post(ctx context.Context, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", resp.StatusCode, got)
	}
	return got, err
}

// inside lets the calling function measure the calls.
func (s *size) inside(ctx context.Context, e *engine.Engine) (t turn, err error) {
	ask, err := json.Marshal(map[string]any{"function": callee, "calls": s.Calls, "bytes": s.Bytes})
	if err != nil {
		return t, err
	}
	got, err := post(ctx, "http://"+e.Addr()+"/function/"+caller+"/measure", ask)
	if err != nil {
		return t, err
	}
	return t, json.Unmarshal(got, &t)
}

func (s *size) gateway(ctx context.Context, e *engine.Engine) (t turn, err error) {
	body := bytes.Repeat([]byte("x"), s.Bytes)
	var took []float64
	for range s.Calls {
		began := time.Now()
		got, err := post(ctx, "http://"+e.Addr()+"/function/"+callee+"/", body)
		if err != nil {
			return t, err
		}
		if took = append(took, float64(time.Since(began).Nanoseconds())/1000); len(got) != s.Bytes {
			return t, fmt.Errorf("%d bytes came back of %d", len(got), s.Bytes)
		}
	}
	slices.Sort(took)
	return turn{took[len(took)/2], took[len(took)*99/100]}, nil
}

func median(turns []turn, of func(turn) float64) float64 {
	v := make([]float64, len(turns))
	for i, t := range turns {
		v[i] = of(t)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func (r *result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Host.Markdown())
	b.WriteString("A warm Python function calls a second function again and again; the second function answers with the same body. A call lasts from `context.call` to its return. For comparison, a Go client on the host calls the second function through the gateway over a single connection. Both take turns; the values are medians of the turns.\n\n")
	b.WriteString("| body, there and back | call, p50 | p99 | by the gateway, p50 | p99 | call ÷ gateway, p50 |\n|---:|---:|---:|---:|---:|---:|\n")
	for _, s := range r.Sizes {
		p50, p99 := func(t turn) float64 { return t.P50 }, func(t turn) float64 { return t.P99 }
		in, out := median(s.Inside, p50), median(s.Gateway, p50)
		fmt.Fprintf(&b, "| %d KiB | %.0f µs | %.0f µs | %.0f µs | %.0f µs | %.2f |\n", s.Bytes>>10, in, median(s.Inside, p99), out, median(s.Gateway, p99), in/out)
	}
	return b.String()
}
