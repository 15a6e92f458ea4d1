package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/memory"
	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// bench is a run.
type bench struct {
	options
	*result

	dir    string
	docker *dockerd.Engine // nil: left out, or closed
}

// The requested paths.
const (
	imagesPath     = "/v1/images"
	dockerImages   = "/images/json"
	boxesPath      = "/v1/sandboxes?all=true&size=true"
	dockerBoxes    = "/containers/json?all=1&size=1"
	usagePath      = "/v1/system/df"
	dockerUsage    = "/system/df"
	unlistedPath   = "/v1/version" // an answer without a list
	unlistedDocker = "/_ping"
)

func (b *bench) dockerSocket() string { return filepath.Join(b.dir, "docker", "docker.sock") }

func (b *bench) closeDocker() error {
	if b.docker == nil {
		return nil
	}
	err := b.docker.Close()
	b.docker = nil
	return err
}

// settle waits until the machine is quiet, except in a quick run.
func (b *bench) settle(ctx context.Context) error {
	if !b.size.settle {
		return nil
	}
	return host.Settle(ctx)
}

// measure measures all requests in turns and keeps the results.
func (b *bench) measure(ctx context.Context, t turns, all ...*asked) error {
	if err := b.settle(ctx); err != nil {
		return err
	}
	b.Asked = append(b.Asked, all...)
	return ask(ctx, t, all...)
}

// beside adds the request to dockerd, if dockerd runs, to the requests to FRE.
func (b *bench) beside(what, dockerPath string, fre ...*asked) ([]*asked, error) {
	if b.docker == nil {
		return fre, nil
	}
	pids, err := b.docker.PIDs()
	return append(fre, get(what+"/dockerd", b.dockerSocket(), dockerPath, http.StatusOK, pids)), err
}

// start starts the engine on a state directory, and returns the time until the engine has answered
// with the list of images.
func (b *bench) start(ctx context.Context, state string) (*testdaemon.Daemon, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan time.Duration, 1)
	begin := time.Now()
	go func() {
		_ = testdaemon.Until(ctx, func() error { // polls every 10 ms
			conn, err := rawhttp.DialUnix(state + ".sock")
			if err != nil {
				return err
			}
			defer conn.Close()
			resp, err := conn.Do(rawhttp.Get("bench", imagesPath))
			if err == nil && resp.Status != http.StatusOK {
				err = fmt.Errorf("status %d", resp.Status)
			}
			return err
		})
		answered <- time.Since(begin)
	}()
	d, err := testdaemon.Start(ctx, testdaemon.Config{Bin: b.bin, State: state})
	if err != nil {
		return nil, 0, err
	}
	return d, <-answered, nil
}

func stopping(d *testdaemon.Daemon, err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	*err = errors.Join(*err, d.Stop(ctx))
}

// empty starts an engine without images, as the baseline for start time and memory.
func (b *bench) empty(ctx context.Context) error {
	for range b.size.Starts {
		d, took, err := b.start(ctx, filepath.Join(b.dir, "empty"))
		if err != nil {
			return err
		}
		b.EmptyStarts = append(b.EmptyStarts, took)
		// List once: the code for lists is then in memory, as in the other engine.
		err = ask(ctx, turns{rounds: 1, calls: 1}, get("", d.Socket(), imagesPath, http.StatusOK, nil),
			get("", d.DockerSocket(), dockerImages, http.StatusOK, nil))
		if err == nil {
			err = b.settle(ctx)
		}
		if err == nil {
			b.EmptyBytes, err = memory.PSS([]int{d.PID()})
		}
		stopping(d, &err)
		if err != nil {
			return err
		}
	}
	return nil
}

// layers lists images with one layer and images with many layers.
func (b *bench) layers(ctx context.Context) (err error) {
	var all []*asked
	for name, parts := range map[string]int{"layers/one": 1, "layers/many": b.size.Layers} {
		state := filepath.Join(b.dir, filepath.Base(name))
		if err := seed(ctx, state, 0, b.size.Layered, parts); err != nil {
			return err
		}
		d, _, err := b.start(ctx, state)
		if err != nil {
			return err
		}
		defer stopping(d, &err)
		all = append(all, get(name, d.Socket(), imagesPath, http.StatusOK, []int{d.PID()}))
	}
	return b.measure(ctx, b.size.turns, all...)
}

func (b *bench) imagesState() string { return filepath.Join(b.dir, "images") }

// few runs the comparison with docker and the measurements with sandboxes.
func (b *bench) few(ctx context.Context) (err error) {
	if err := seed(ctx, b.imagesState(), 0, b.size.Few, 2); err != nil {
		return err
	}
	if err := putSitter(ctx, b.imagesState(), b.dir, b.size.Files/b.size.Full); err != nil {
		return err
	}
	if b.docker != nil {
		if err := b.loadDocker(ctx); err != nil {
			return err
		}
	}
	if err := b.fewLists(ctx); err != nil {
		return err
	}
	if err := b.closeDocker(); err != nil {
		return err
	}
	return b.boxes(ctx)
}

// loadDocker loads the images into dockerd and makes containers with files.
func (b *bench) loadDocker(ctx context.Context) error {
	path := filepath.Join(b.dir, "images.tar")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(archive(f, b.size.Few, 2), f.Close()); err != nil {
		return err
	}
	if _, err := b.docker.Run(ctx, "load", "--quiet", "--input", path); err != nil {
		return err
	}
	return errors.Join(os.Remove(path),
		containers(ctx, b.dockerSocket(), imageName(0)+":1", b.size.DockerBoxes, b.size.Full, b.size.Files/b.size.Full))
}

// fewLists asks both engines for images, disk usage and a hundred sandboxes, and runs docker's
// client.
func (b *bench) fewLists(ctx context.Context) (err error) {
	d, _, err := b.start(ctx, b.imagesState())
	if err != nil {
		return err
	}
	defer stopping(d, &err)
	fre, socket, pids := d.Socket(), d.DockerSocket(), []int{d.PID()}
	lists, err := b.beside("few", dockerImages,
		get("few/fre", fre, imagesPath, http.StatusOK, pids), unchanged("few/unchanged", fre, imagesPath, pids),
		get("few/docker", socket, dockerImages, http.StatusOK, pids))
	if err != nil {
		return err
	}
	if err := b.measure(ctx, b.size.turns, lists...); err != nil {
		return err
	}
	usage, err := b.beside("df", dockerUsage,
		get("df/fre", fre, usagePath, http.StatusOK, pids), get("df/docker", socket, dockerUsage, http.StatusOK, pids))
	if err != nil {
		return err
	}
	if err := b.measure(ctx, b.size.turns, usage...); err != nil {
		return err
	}
	c, err := sit(ctx, fre, b.size.DockerBoxes, b.size.Files/b.size.Full)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.fill(b.size.Full); err != nil {
		return err
	}
	boxes, err := b.beside("boxes", dockerBoxes,
		get("boxes/fre", fre, boxesPath, http.StatusOK, pids), get("boxes/docker", socket, dockerBoxes, http.StatusOK, pids))
	if err != nil {
		return err
	}
	if err := b.measure(ctx, b.size.turns, boxes...); err != nil {
		return err
	}
	return b.programs(ctx, socket)
}

// dockerCommands lists docker commands with the names of their rows.
var dockerCommands = []struct {
	name string
	args []string
}{{"version", []string{"version"}}, {"images", []string{"images"}}, {"ps", []string{"ps", "--all", "--size"}}}

// programs runs the whole process of docker's client against both engines, and against FRE's
// answers from memory. The last shows the client's own time.
func (b *bench) programs(ctx context.Context, socket string) (err error) {
	docker, err := exec.LookPath("docker")
	if errors.Is(err, exec.ErrNotFound) {
		b.Skipped = append(b.Skipped, "docker's client: it is not installed")
		return nil
	}
	if err != nil {
		return err
	}
	if b.docker != nil {
		docker = b.docker.Command()[0] // the same program for all engines
	}
	same, none := filepath.Join(b.dir, "floor.sock"), filepath.Join(b.dir, "none.sock")
	for path, empty := range map[string]bool{same: false, none: true} {
		f, err := newFloor(path, socket, empty)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.close()) }()
	}
	run := func(name, socket string, args []string) *asked {
		return program(ctx, name, append([]string{docker, "--host", "unix://" + socket}, args...))
	}
	var all []*asked
	for _, c := range dockerCommands {
		if b.docker != nil {
			all = append(all, program(ctx, c.name+"/dockerd", b.docker.Command(c.args...)))
		}
		all = append(all, run(c.name+"/docker", socket, c.args), run(c.name+"/floor", same, c.args))
		if c.name == "images" {
			all = append(all, run("images/none", none, c.args))
		}
	}
	return b.measure(ctx, turns{rounds: b.size.Programs, calls: 1}, all...)
}

// boxes lists a thousand sandboxes, before and after ten of the sandboxes write files.
func (b *bench) boxes(ctx context.Context) (err error) {
	d, _, err := b.start(ctx, b.imagesState())
	if err != nil {
		return err
	}
	defer stopping(d, &err)
	fre, socket, pids := d.Socket(), d.DockerSocket(), []int{d.PID()}
	c, err := sit(ctx, fre, b.size.Boxes, b.size.Files/b.size.Full)
	if err != nil {
		return err
	}
	defer c.close()
	for _, when := range []string{"without", "with"} {
		if when == "with" {
			if err := c.fill(b.size.Full); err != nil {
				return err
			}
		}
		err := b.measure(ctx, b.size.turns,
			get(when+"/fre", fre, boxesPath, http.StatusOK, pids), get(when+"/docker", socket, dockerBoxes, http.StatusOK, pids))
		if err != nil {
			return err
		}
	}
	cl := client.New(fre)
	defer cl.Close()
	b.Syscalls = b.count(ctx, cl, fre, boxesPath, unlistedPath)
	b.DockerSyscalls = b.count(ctx, cl, socket, dockerBoxes, unlistedDocker)
	return nil
}

// counted holds the number of the engine's system calls per sandbox in a list.
type counted struct {
	PerBox float64          `json:"per_sandbox"`
	Calls  map[string]int64 `json:"calls"` // over all lists, by name
	Err    string           `json:"error,omitempty"`
}

// count counts the engine's system calls for lists of sandboxes, and for as many requests without a
// list. The difference belongs to the lists.
func (b *bench) count(ctx context.Context, cl *client.Client, socket, path, without string) counted {
	n := counted{Calls: map[string]int64{}}
	var all [2]int64
	for i, path := range []string{without, path} {
		a := get("", socket, path, http.StatusOK, nil)
		err := a.do()
		if err == nil {
			var calls int64
			counts, e := cl.Debug().CountSyscalls(ctx, func() error {
				for range b.size.Counted {
					if err := a.do(); err != nil {
						return err
					}
				}
				return nil
			})
			for _, c := range counts {
				calls += c.Calls
				n.Calls[c.Name] = c.Calls
			}
			all[i], err = calls, e
		}
		_ = a.end() // the connection is not needed any more
		if err != nil {
			n.Err = err.Error()
			return n
		}
	}
	n.PerBox = float64(all[1]-all[0]) / float64(b.size.Counted*b.size.Boxes)
	return n
}

// many starts an engine with ten thousand images, lists the images and polls the list.
func (b *bench) many(ctx context.Context) (err error) {
	if err := seed(ctx, b.imagesState(), b.size.Few, b.size.Many, 2); err != nil {
		return err
	}
	var d *testdaemon.Daemon
	for i := range b.size.Starts {
		if i > 0 {
			var err error
			if stopping(d, &err); err != nil {
				return err
			}
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
		var took time.Duration
		if d, took, err = b.start(ctx, b.imagesState()); err != nil {
			return err
		}
		b.ManyStarts = append(b.ManyStarts, took)
	}
	defer stopping(d, &err)
	fre, socket, pids := d.Socket(), d.DockerSocket(), []int{d.PID()}
	err = b.measure(ctx, b.size.turns,
		get("many/fre", fre, imagesPath, http.StatusOK, pids), unchanged("many/unchanged", fre, imagesPath, pids),
		get("many/docker", socket, dockerImages, http.StatusOK, pids))
	if err != nil {
		return err
	}
	cl := client.New(fre)
	defer cl.Close()
	changes := turns{rounds: b.size.turns.rounds, slice: b.size.turns.slice, calls: min(b.size.turns.calls, 10)}
	if err := b.measure(ctx, changes, tagged(ctx, "many/tagged", fre, cl), untagged(ctx, "many/untagged", fre, cl)); err != nil {
		return err
	}
	b.Idle = b.poll(ctx, pids, nil)
	b.Polled = b.poll(ctx, pids, get("", fre, imagesPath, http.StatusOK, nil))
	b.PolledDocker = b.poll(ctx, pids, get("", socket, dockerImages, http.StatusOK, nil))
	b.ManyBytes, err = memory.PSS(pids)
	return err
}

// polled is the share of one CPU that an engine uses while a client polls.
type polled struct {
	Part float64 `json:"part"`
	Err  string  `json:"error,omitempty"`
}

// pollEvery gives ten requests per second.
const pollEvery = 100 * time.Millisecond

// poll polls ten times a second. If a is nil, poll only waits.
func (b *bench) poll(ctx context.Context, pids []int, a *asked) (p polled) {
	once := func() error {
		if a == nil {
			return nil
		}
		return a.do()
	}
	defer func() {
		if a != nil {
			_ = a.end() // the connection is not needed any more
		}
	}()
	err := once()
	before, e := cpuTime(pids)
	err = errors.Join(err, e)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	begin := time.Now()
	for time.Since(begin) < b.size.Poll && err == nil {
		select {
		case <-tick.C:
			err = once()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	after, e := cpuTime(pids)
	if err = errors.Join(err, e); err != nil {
		return polled{Err: err.Error()}
	}
	return polled{Part: float64(after-before) / float64(time.Since(begin))}
}

// failed returns an error with all failed measurements, nil if all succeeded.
func (b *bench) failed() error {
	var lines []string
	for _, r := range b.rows() {
		if r.err != "" {
			reason, _, _ := strings.Cut(r.err, "\n")
			lines = append(lines, "  "+r.what+": "+reason)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("could not measure:\n%s", strings.Join(lines, "\n"))
}
