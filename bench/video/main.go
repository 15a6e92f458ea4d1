// Command video measures the video service's origin: stored segments, playlists, and segments
// packaged just in time. The peers are nginx, nginx-vod-module, and simple net/http servers for the
// same addresses.
//
//	go run ./bench/video        # as root, from the project's root directory
//
// All servers and clients run in a network namespace with the congestion control reno. Servers run
// on the first CPU, and the client, fre-bench http, on the last. fre-video is the real program with
// a library filled by hand, and runs without an engine, because no video is transcoded. The rows of
// nginx show the better of tcp_nopush on and off. The servers take turns in one run: read the
// ratios.
//
// Debian has no package of nginx-vod-module. Build it as a dynamic module of the installed nginx
// and pass the path; without the module its rows are left out.
//
//	go run ./bench/video -nginx-vod /path/ngx_http_vod_module.so
//
// Before the origin the command measures the transcoder, on all CPUs, in sandboxes of an engine.
// The peer is the ffmpeg program on the host. Building the transcoder's image needs the network.
//
// The command prints Markdown tables and writes the report of every turn as JSON. -join makes one
// page from the JSON files of several partial runs.
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
	client             string
	nginxVOD           string
	state              string
	slice, warmUp      time.Duration
	rounds, viewers    int
	only, join         string
	results, summary   string
	quick              bool

	// Options of child processes that run this program.
	inside string // directory: run the benchmark, inside the namespace
	role   string // run as the named server
}

func main() {
	var o options
	flag.StringVar(&o.fre, "bin", "bin/fre", "the fre program")
	flag.StringVar(&o.video, "video", "bin/fre-video", "the fre-video program")
	flag.StringVar(&o.client, "client", "bin/fre-bench", "the fre-bench program")
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

// run makes the media, and measures in a child process in a new network namespace.
func run(ctx context.Context, o options) (err error) {
	for _, path := range []*string{&o.fre, &o.video, &o.client, &o.before, &o.nginxVOD} {
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
	// A quick run must not need the network.
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
	// The terminal sends interrupts to the whole process group; the parent waits for the child.
	cmd := exec.Command(self, append(os.Args[1:], "-inside", dir, "-bin", o.fre, "-video", o.video, "-client", o.client, "-before", o.before, "-nginx-vod", o.nginxVOD)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	return cmd.Run()
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

// transcodedFile is the path of the transcoder's results, measured before and outside the
// namespace.
func transcodedFile(dir string) string { return filepath.Join(dir, "transcoding.json") }

const title = "The video origin"

// joinResults makes one page from the results of several runs.
func joinResults(_ context.Context, o options) error {
	r, err := join(strings.Split(o.join, ","))
	if err != nil {
		return err
	}
	tables := r.markdown()
	fmt.Print(tables)
	return report.Page(o.summary, title, "video", tables)
}
