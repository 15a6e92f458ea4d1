// Command build measures the time of builds, and how much data builds share:
//
//   - packages of PyPI, npm and Maven Central: a first build resolves and downloads all packages,
//     later builds install from caches; uv, pip, pnpm and Maven install the same lists for
//     comparison;
//   - a second image with the base and packages of a first: time and new bytes;
//   - an edit of a function's code: from fre deploy to the first answer;
//   - the imports of a function with numpy and requests, compared with the same wheels installed by
//     pip.
//
// The peers take turns in one run, on one machine: read the ratios. An uncounted round first fills
// the package sites' mirror.
//
//	go run ./bench/build        # as root, from the project's root directory
//
// The command prints Markdown tables and writes the numbers as JSON to bench/results.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/stats"
)

type options struct {
	engine.Options
	cold, warm int // rounds
	results    string
	summary    string
	quick      bool
}

func main() {
	o := options{}
	o.Register(flag.CommandLine)
	flag.IntVar(&o.cold, "cold", 3, "rounds that download everything")
	flag.IntVar(&o.warm, "warm", 15, "rounds of everything else")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "file to write the tables to, as well")
	flag.BoolVar(&o.quick, "quick", false, "one round of what downloads little, without the peers, to see that it works")
	flag.Parse()
	if o.quick {
		o.cold, o.warm = 0, 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/build:", err)
		os.Exit(1)
	}
}

type result struct {
	Host     host.Info `json:"host"`
	Packages []*lists  `json:"packages"`
	Reuse    []*reuse  `json:"reuse"`
	Imports  *imports  `json:"imports,omitempty"`
}

// series holds the times of one way to do a task.
type series struct {
	Name  string          `json:"name"`
	Times []time.Duration `json:"times_ns"`
	do    func(ctx context.Context) error
	// prepare runs before each measurement and is not counted; nil: no preparation.
	prepare func(ctx context.Context) error
}

func (s *series) p50() time.Duration { return stats.Median(s.Times) }

// turns measures all series in turns.
func turns(ctx context.Context, all []*series, rounds int) error {
	for range rounds {
		for _, s := range all {
			if s.prepare != nil {
				if err := s.prepare(ctx); err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
			}
			if err := host.Settle(ctx); err != nil {
				return err
			}
			begin := time.Now()
			if err := s.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			s.Times = append(s.Times, time.Since(begin))
		}
	}
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("run it as root: sandboxes need it")
	}
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	r := &result{}
	versions := map[string][]string{"fre": e.Version()}
	if !o.quick {
		t, err := newTools(ctx, filepath.Join(e.Dir(), "tools"))
		if err != nil {
			return err
		}
		versions["uv"], versions["pnpm"] = []string{t.uv, "--version"}, []string{t.pnpm, "--version"}
		versions["mvn"] = []string{"mvn", "--version"}
		if err := r.measurePackages(ctx, e, t, o); err != nil {
			return err
		}
		if r.Imports, err = measureImports(ctx, e, o); err != nil {
			return fmt.Errorf("imports: %w", err)
		}
	}
	if err := r.measureReuse(ctx, e, o); err != nil {
		return err
	}
	if r.Host, err = host.Describe(ctx, versions); err != nil {
		return err
	}
	text := r.markdown()
	fmt.Print(text)
	if _, err := report.Raw(o.results, "build", r.Host.Time, r); err != nil {
		return err
	}
	return report.Page(o.summary, "Builds", "build", text)
}

// command runs a program in dir. An error contains the output.
func command(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, out.Bytes())
	}
	return nil
}

func (r *result) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s\n", r.Host.Markdown())
	for _, l := range r.Packages {
		l.markdown(p)
	}
	if len(r.Reuse) > 0 {
		p("## The same base and packages again\n\n*Second image*: `fre build` of new code with the packages and the lock of an existing function; the table also has the new bytes on disk, and their share of the image. *Redeploy*: `fre deploy` after an edit, until the new code has answered over HTTP. Milliseconds, including the command's process.\n")
		p("| function | second image p50 | slowest | new KB | of the image | redeploy p50 | slowest |\n|---|---:|---:|---:|---:|---:|---:|")
		for _, u := range r.Reuse {
			second, redeploy := stats.Summarize(u.Second.Times), stats.Summarize(u.Redeploy.Times)
			p("| %s | %.0f | %.0f | %.1f | %.2f %% | %.0f | %.0f |", u.Name, ms(second.P50), ms(second.Slowest), float64(u.NewBytes)/1e3,
				100*float64(u.NewBytes)/float64(u.ImageBytes), ms(redeploy.P50), ms(redeploy.Slowest))
		}
		p("")
	}
	if r.Imports != nil {
		r.Imports.markdown(p)
	}
	return b.String()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
