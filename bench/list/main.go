// Command list measures frequent requests of people and agents to an engine: lists of images, lists
// of sandboxes with their sizes, disk usage, and the engine's start with many images. FRE is
// measured by FRE's own API and by Docker's API, beside a Docker engine started by the benchmark:
//
//   - the list of 2,000 and 10,000 images over the socket: latency, and CPU time of the engine per
//     call; the effect of images with many layers and of an unchanged list; an agent that polls the
//     list ten times a second;
//   - `ps -a -s` with a thousand sandboxes, ten of which hold 100,000 files;
//   - the whole process of the docker client, against both engines;
//   - `system df`;
//   - the start with 10,000 images, and the memory for the images.
//
// The engines take turns in one run, on one machine: read the ratios.
//
//	go run ./bench/list        # as root, from the project's root directory
//
// The command prints a table and writes every sample as JSON to bench/results. The exit is an error
// if a measurement failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/report"
)

type options struct {
	bin     string
	size    size
	docker  bool
	results string
	summary string
}

// size describes the amount of data and of repetition.
type size struct {
	Few         int           `json:"few"`          // images, also in the comparison with docker
	Many        int           `json:"many"`         // images
	Layered     int           `json:"layered"`      // images with Layers layers, and as many images with one layer
	Layers      int           `json:"layers"`       //
	DockerBoxes int           `json:"docker_boxes"` // sandboxes, and docker's containers for comparison
	Boxes       int           `json:"boxes"`        // sandboxes
	Full        int           `json:"full"`         // of Boxes, with files
	Files       int           `json:"files"`        // total
	Starts      int           `json:"starts"`       // starts of the engine
	Programs    int           `json:"programs"`     // runs of each docker command
	Counted     int           `json:"counted"`      // calls with counted system calls
	Poll        time.Duration `json:"poll_ns"`      // duration of polling ten times a second
	turns       turns
	settle      bool // wait for a quiet machine before each measurement
}

var (
	fullSize = size{
		Few: 2000, Many: 10_000, Layered: 500, Layers: 40, DockerBoxes: 100, Boxes: 1000, Full: 10, Files: 100_000,
		Starts: 3, Programs: 31, Counted: 50, Poll: 10 * time.Second, turns: turns{rounds: 10, slice: 500 * time.Millisecond, calls: 200}, settle: true,
	}
	quickSize = size{
		Few: 20, Many: 40, Layered: 5, Layers: 4, DockerBoxes: 3, Boxes: 6, Full: 2, Files: 40,
		Starts: 1, Programs: 1, Counted: 2, Poll: 300 * time.Millisecond, turns: turns{rounds: 1, slice: 10 * time.Millisecond, calls: 5},
	}
)

func main() {
	o := options{size: fullSize}
	flag.StringVar(&o.bin, "bin", "bin/fre", "the fre program")
	flag.IntVar(&o.size.Few, "few", o.size.Few, "images that dockerd has, too")
	flag.IntVar(&o.size.Many, "many", o.size.Many, "images")
	flag.IntVar(&o.size.Boxes, "sandboxes", o.size.Boxes, "sandboxes")
	flag.IntVar(&o.size.turns.rounds, "rounds", o.size.turns.rounds, "turns of each")
	docker := flag.String("docker", "auto", "measure docker too: yes, no, or auto, which is where dockerd is installed and not with -quick")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "file to write the tables to, as well")
	quick := flag.Bool("quick", false, "a few of everything, to see that it works")
	flag.Parse()
	if *quick {
		o.size = quickSize
	}
	o.docker = *docker == "yes" || *docker == "auto" && !*quick
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o, *docker == "yes"); err != nil {
		fmt.Fprintln(os.Stderr, "bench/list:", err)
		os.Exit(1)
	}
}

// run measures everything and reports the results. A failed measurement is reported in its row and
// in the error. Without needDocker a missing docker is left out.
func run(ctx context.Context, o options, needDocker bool) (err error) {
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	// /tmp may be in memory, but the state belongs on a disk.
	dir, err := os.MkdirTemp("/var/tmp", "fre-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{options: o, dir: dir, result: &result{Size: o.size}}
	versions := map[string][]string{"fre": {o.bin, "--socket", "/nonexistent", "version"}}
	if o.docker {
		switch b.docker, err = dockerd.Start(ctx, filepath.Join(dir, "docker")); {
		case errors.Is(err, dockerd.ErrMissing) && !needDocker:
			b.Skipped = append(b.Skipped, "docker: "+err.Error())
		case err != nil:
			return err
		default:
			defer func() { err = errors.Join(err, b.closeDocker()) }()
			versions["docker"] = b.docker.Command("--version")
		}
	}
	if b.Host, err = host.Describe(ctx, versions); err != nil {
		return err
	}
	for _, phase := range []func(context.Context) error{b.empty, b.layers, b.few, b.many} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	err = report.Publish(o.results, o.summary, "Lists", "list", b.Host.Time, b.result, b.markdown())
	return errors.Join(err, b.failed())
}
