// Command video measures the video service's origin: stored segments, playlists and what is
// packaged just in time, beside nginx, nginx-vod-module and the same addresses answered in
// the plain ways of net/http.
//
//	go run ./bench/video        # as root, from the project's root directory
//
// Everything runs in a network namespace of its own with reno for congestion control, servers
// on the first CPU and the client, fre bench http, on the last. fre-video is the program
// itself, its library filled by hand; no engine is there, since nothing is transcoded. nginx
// is the better of tcp_nopush on and off. All take turns in one run: read the ratios.
//
// nginx-vod-module is not Debian's. Whoever has built it as a dynamic module of this nginx
// gives its path; its rows are left out otherwise.
//
//	go run ./bench/video -nginx-vod /path/ngx_http_vod_module.so
//
// The transcoder is measured before that, on all CPUs, in a sandbox of an engine, beside the
// ffmpeg program on the host; its image is built from the network.
//
// It prints Markdown tables and keeps every turn's report as JSON. -join makes one page of
// several such, where not everything was measured in one run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
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
)

type options struct {
	fre, video, before string
	nginxVOD           string
	state              string
	slice, warmUp      time.Duration
	rounds, viewers    int
	only, join         string
	results, summary   string
	quick              bool

	// Of the program's further selves.
	inside string // directory: be the benchmark in its namespace
	role   string // be one of the servers
}

func main() {
	var o options
	flag.StringVar(&o.fre, "bin", "bin/fre", "the fre program")
	flag.StringVar(&o.video, "video", "bin/fre-video", "the fre-video program")
	flag.StringVar(&o.before, "before", "", "another build of fre-video, to be measured beside it")
	flag.StringVar(&o.nginxVOD, "nginx-vod", os.Getenv("FRE_BENCH_NGINX_VOD"), "nginx-vod-module, built for this nginx (default: FRE_BENCH_NGINX_VOD)")
	flag.StringVar(&o.state, "state", "", "state directory of the engine that transcodes, which keeps the transcoder's image for the next run (default: one of this run's own)")
	flag.DurationVar(&o.slice, "slice", 2*time.Second, "how long a server is called before it is the next one's turn")
	flag.DurationVar(&o.warmUp, "warm-up", 300*time.Millisecond, "before each turn, not measured")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each server")
	flag.IntVar(&o.viewers, "viewers", 500, "viewers that watch at a time")
	flag.StringVar(&o.only, "only", "", "only the rows whose name has this in it")
	flag.StringVar(&o.join, "join", "", "measure nothing, but make the page of these raw results, separated by commas; a later row counts instead of an earlier one")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "file to write the tables to")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.StringVar(&o.inside, "inside", "", "internal: measure here, with the files below this directory")
	flag.StringVar(&o.role, "role", "", "internal: serve as this, to the end of standard input")
	flag.Parse()
	if o.quick {
		o.slice, o.warmUp, o.rounds, o.viewers = 50*time.Millisecond, 20*time.Millisecond, 1, 10
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	run := run
	switch {
	case o.role != "":
		run = serveRole
	case o.inside != "":
		run = inside
	case o.join != "":
		run = joinResults
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/video:", err)
		os.Exit(1)
	}
}

// run makes the media, and has everything measured in a network namespace.
func run(ctx context.Context, o options) (err error) {
	for _, path := range []*string{&o.fre, &o.video, &o.before, &o.nginxVOD} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
		if _, err := os.Stat(*path); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "fre-bench-video-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// A quick run is to need no network.
	if o.only == "transcode" || o.only == "" && !o.quick {
		t, err := transcode(ctx, o, dir)
		if err != nil {
			return fmt.Errorf("transcode: %w", err)
		}
		if err := report.JSON(transcodedFile(dir), t); err != nil {
			return err
		}
	}
	if err := makeLibrary(ctx, dir, o.quick); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Interrupts go to the whole group of processes; this one waits for the other.
	cmd := exec.Command(self, append(os.Args[1:], "-inside", dir, "-bin", o.fre, "-video", o.video, "-before", o.before, "-nginx-vod", o.nginxVOD)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	return cmd.Run()
}

// inside is run in the namespace.
func inside(ctx context.Context, o options) (err error) {
	if err := testbed.PrepareNetwork(); err != nil {
		return err
	}
	cpus, err := testbed.TwoCPUs()
	if err != nil {
		return err
	}
	b := &bench{options: o, cpus: cpus, dir: o.inside, client: testbed.Client{Bin: o.fre, CPU: cpus[1], WarmUp: o.warmUp, Slice: o.slice}}
	defer func() { err = errors.Join(err, b.close()) }()
	r := &result{Slice: o.slice, Rounds: o.rounds, CPUs: cpus}
	if r.Host, err = host.Describe(ctx, map[string][]string{"fre": {o.fre, "version", "--format", "{{.Client.Version}}"}}); err != nil {
		return err
	}
	r.Host.Programs["nginx"] = testbed.NginxVersion(ctx)
	text, err := os.ReadFile(transcodedFile(o.inside))
	switch {
	case err == nil:
		if err := json.Unmarshal(text, &r.Transcoding); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.measure(ctx, r); err != nil {
		return err
	}
	r.Skipped = b.skipped
	path, err := report.Raw(o.results, "video", r.Host.Time, r)
	if err != nil {
		return err
	}
	tables := r.markdown()
	fmt.Printf("%s\nRaw result: %s\n", tables, path)
	return report.Page(o.summary, title, "video", tables)
}

// transcodedFile is what was measured before, outside of the namespace.
func transcodedFile(dir string) string { return filepath.Join(dir, "transcoding.json") }

const title = "The video origin"

// joinResults makes the page of what several runs have measured.
func joinResults(_ context.Context, o options) error {
	r, err := join(strings.Split(o.join, ","))
	if err != nil {
		return err
	}
	tables := r.markdown()
	fmt.Print(tables)
	return report.Page(o.summary, title, "video", tables)
}
