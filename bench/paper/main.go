// Command paper repeats the measurements of the paper from which FRE started, on one machine in one
// run, with the peers in turns. The figures show the cost of namespaces when many processes are
// made at once (figure 1), new and reused cgroups (2), sequential (7) and simultaneous (8) starts,
// and the memory of instances of one language (9) and of several (10). The peers are FRE, Docker,
// runc and bare processes. A further measurement is the page cache that one Python takes in two
// images.
//
// The paper: Wu, Tian, Wan, Wang, "A method for building an ultra-lightweight
// runtime environment for cloud functions", 2020.
//
//	go run ./bench/paper        # as root, from the project's root directory
//
// The command writes paper.md, the plots and every number as JSON to bench/docs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	results string
	docker  bool
	quick   bool
	size    size
}

// size describes the amount of measurement.
type size struct {
	Clones    []int `json:"clones"`        // at once, figure 1
	Cgroups   []int `json:"cgroups"`       // at once, figure 2
	Serial    []int `json:"serial"`        // sequential starts, figure 7
	Bursts    []int `json:"bursts"`        // simultaneous starts, figure 8
	Rounds    int   `json:"rounds"`        // of figures 1, 2 and 8; runc and docker have only one round of bursts
	Instances int   `json:"instances"`     // of each language, figures 9 and 10
	Languages int   `json:"languages"`     // of figures 9 and 10
	Memory    int   `json:"memory_rounds"` // rounds of figures 9 and 10
}

var (
	fullSize = size{
		Clones: []int{512, 1024}, Cgroups: []int{1, 2, 4, 8, 16, 32, 64, 128, 256},
		Serial: []int{10, 25, 50, 100}, Bursts: []int{64, 128, 256}, Rounds: 3, Instances: 8, Languages: len(languages), Memory: 3,
	}
	quickSize = size{
		Clones: []int{8, 16}, Cgroups: []int{1, 4}, Serial: []int{2, 4}, Bursts: []int{4, 8},
		Rounds: 1, Instances: 2, Languages: 2, Memory: 1,
	}
)

func main() {
	o := options{size: fullSize}
	o.Register(flag.CommandLine)
	flag.StringVar(&o.results, "results", "bench/docs", "directory for paper.md and, in its directory paper, plots and numbers")
	docker := flag.String("docker", "auto", "measure docker too: yes, no, or auto, which is where dockerd is installed and not with -quick")
	flag.BoolVar(&o.quick, "quick", false, "a few of everything, to see that it works")
	flag.Parse()
	if o.quick {
		o.size = quickSize
	}
	o.docker = *docker == "yes" || *docker == "auto" && !o.quick
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/paper:", err)
		os.Exit(1)
	}
}

// result holds all measurements of a run.
type result struct {
	Host       host.Info      `json:"host"`
	Size       size           `json:"size"`
	Skipped    []string       `json:"skipped,omitempty"`
	Namespaces []*clones      `json:"namespaces"`
	Cgroups    []*groups      `json:"cgroups"`
	Serial     []*serial      `json:"serial"`
	Bursts     []*peer.Series `json:"bursts"`
	Languages  []string       `json:"languages"`
	Memory     []*holding     `json:"memory"`
	Pairs      []*pair        `json:"pairs,omitempty"` // with docker only
}

func run(ctx context.Context, o options) (err error) {
	if o.Socket != "" {
		return errors.New("-fre-socket: bare processes and docker run the files of the engine's store, so that it must be the benchmark's own")
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
	r := &result{Size: o.size}
	set := peer.Set{Engine: e, Spawner: spawner, Runc: true}
	versions := map[string][]string{"fre": e.Version(), "runc": {"runc", "--version"}}
	if o.docker {
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
	if r.Host, err = host.Describe(ctx, versions); err != nil {
		return err
	}
	for _, figure := range []struct {
		name    string
		measure func() error
	}{
		{"namespaces (figure 1)", func() error { return r.measureNamespaces(ctx, e.Dir()) }},
		{"cgroups (figure 2)", func() error { return r.measureCgroups(ctx) }},
		{"starts (figures 7 and 8)", func() error { return r.measureStarts(ctx, set) }},
		{"memory (figures 9 and 10)", func() error { return r.measureMemory(ctx, e, set.Docker) }},
	} {
		began := time.Now()
		if err := figure.measure(); err != nil {
			return fmt.Errorf("%s: %w", figure.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", figure.name, time.Since(began).Round(time.Second))
	}
	return r.write(o.results)
}

// write writes the page, the plots and the numbers, and prints the page.
func (r *result) write(dir string) error {
	plots := filepath.Join(dir, "paper")
	if err := report.JSON(filepath.Join(plots, "paper.json"), r); err != nil {
		return err
	}
	for name, svg := range r.plots() {
		if err := os.WriteFile(filepath.Join(plots, name), svg, 0o644); err != nil {
			return err
		}
	}
	var page strings.Builder
	r.page(&page)
	fmt.Print(page.String())
	return os.WriteFile(filepath.Join(dir, "paper.md"), []byte(page.String()), 0o644)
}
