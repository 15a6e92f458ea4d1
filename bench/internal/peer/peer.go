// Package peer starts one small program, the clock of bench/functions/native-clock,
// in each way that the benchmarks compare: by FRE, as a bare process, by runc
// and by Docker. A still smaller one FRE and bare processes start too. Each
// start is measured from the request to the program's first own instruction,
// whose clock it prints.
package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/bench/internal/spawn"
)

// MaxBurst is how many starts a burst has at most.
const MaxBurst = 4096 // the spawner's

// Start is one start of the program.
type Start struct {
	Took time.Duration
	Kind string // what FRE says it was: "spawner", "attached", …; "" where nothing is said
}

// Peer is one way to start the program. It is for one goroutine at a time.
type Peer interface {
	// Sequential starts it n times, one after the other: how long each took.
	Sequential(n int) ([]Start, error)

	// Burst starts it n times at once: when each ran, from the burst's begin.
	Burst(n int) ([]Start, error)

	Close() error
}

// spawned is a peer that the C spawner starts.
type spawned struct{ *spawn.Spawner }

// Sequential implements Peer.
func (s spawned) Sequential(n int) ([]Start, error) { return unkind(s.Spawner.Sequential(n)) }

// Burst implements Peer.
func (s spawned) Burst(n int) ([]Start, error) { return unkind(s.Spawner.Burst(n)) }

func unkind(took []time.Duration, err error) ([]Start, error) {
	starts := make([]Start, len(took))
	for i, d := range took {
		starts[i].Took = d
	}
	return starts, err
}

// Bare starts the program at path by vfork and exec, and nothing else; spawner
// is what spawn.Compile made.
func Bare(spawner, path string) (Peer, error) {
	s, err := spawn.Start(spawner, path)
	return spawned{s}, err
}

// BarePinned is Bare for a program that keeps to one CPU, as FRE's do while they
// start.
func BarePinned(spawner, path string) (Peer, error) {
	s, err := spawn.StartPinned(spawner, path)
	return spawned{s}, err
}

// BareIn is Bare for a command whose root directory is root, with the host's /proc.
// It has no other part of a sandbox.
func BareIn(spawner, root string, argv ...string) (Peer, error) {
	s, err := spawn.StartIn(spawner, root, argv...)
	return spawned{s}, err
}

// fre starts the program by HTTP: the request is written on a connection that
// stands already, the function prints its clock.
type fre struct {
	addr    string
	request []byte
	conns   []*rawhttp.Conn
}

// FRE starts the function of that name at the gateway addr, "host:port". The
// function's answer begins with its monotonic clock in nanoseconds; each request
// must be a cold start.
func FRE(addr, function string) Peer {
	return &fre{addr: addr, request: rawhttp.Post(addr, "/function/"+function, nil)}
}

// connect makes sure that n connections stand and have been used: a
// connection's own set-up is no part of a start.
func (f *fre) connect(n int) error {
	warmUp := fmt.Appendf(nil, "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", f.addr)
	for len(f.conns) < n {
		c, err := rawhttp.Dial(f.addr)
		if err != nil {
			return err
		}
		f.conns = append(f.conns, c)
	}
	for _, c := range f.conns[:n] {
		if _, err := c.Do(warmUp); err != nil {
			return fmt.Errorf("GET /healthz: %w", err)
		}
	}
	return nil
}

// Sequential implements Peer on one connection.
func (f *fre) Sequential(n int) ([]Start, error) {
	if err := f.connect(1); err != nil {
		return nil, err
	}
	all := make([]Start, 0, n)
	for range n {
		begin, err := now()
		if err != nil {
			return nil, err
		}
		if err := f.conns[0].Send(f.request); err != nil {
			return nil, err
		}
		start, err := f.receive(f.conns[0], begin)
		if err != nil {
			return nil, err
		}
		all = append(all, start)
	}
	return all, nil
}

// Burst implements Peer on n connections.
func (f *fre) Burst(n int) ([]Start, error) {
	if err := f.connect(n); err != nil {
		return nil, err
	}
	// One goroutine writes all requests and then reads all answers, which wait
	// in the sockets: the client takes no CPU from what it measures.
	begin, err := now()
	if err != nil {
		return nil, err
	}
	for _, c := range f.conns[:n] {
		if err := c.Send(f.request); err != nil {
			return nil, err
		}
	}
	all := make([]Start, 0, n)
	for _, c := range f.conns[:n] {
		start, err := f.receive(c, begin)
		if err != nil {
			return nil, err
		}
		all = append(all, start)
	}
	return all, nil
}

// receive reads an answer. One that was not a cold start, or not the clock, is
// an error.
func (f *fre) receive(c *rawhttp.Conn, begin time.Duration) (Start, error) {
	resp, err := c.Receive()
	if err != nil {
		return Start{}, err
	}
	if resp.Status != 200 {
		return Start{}, fmt.Errorf("status %d: %s", resp.Status, resp.Body)
	}
	if cold, _ := resp.Header("X-Fre-Cold"); cold != "1" {
		return Start{}, fmt.Errorf("not a cold start: X-Fre-Cold is %q", cold)
	}
	mono, _, _ := bytes.Cut(bytes.TrimSpace(resp.Body), []byte(" "))
	ns, err := strconv.ParseInt(string(mono), 10, 64)
	if err != nil {
		return Start{}, fmt.Errorf("not the clock's answer: %q", resp.Body)
	}
	kind, _ := resp.Header("X-Fre-Start")
	return Start{Took: time.Duration(ns) - begin, Kind: kind}, nil
}

// Close closes the connections.
func (f *fre) Close() error {
	var errs []error
	for _, c := range f.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// now is the monotonic clock, the same in every process of the machine.
func now() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock_gettime: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// Runc makes a bundle of the clock alone below dir and starts it by `runc run`.
// Without runc the error is exec.ErrNotFound.
func Runc(ctx context.Context, spawner, clock, dir string) (Peer, error) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return nil, err
	}
	bundle := filepath.Join(dir, "runc")
	if err := rootWith(clock, filepath.Join(bundle, "rootfs")); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, runc, "spec", "--bundle", bundle).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("runc spec: %w: %s", err, out)
	}
	// runc's own defaults but for the command: a root that is read-only, all
	// namespaces, no terminal.
	config := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s: no process", config)
	}
	process["terminal"] = false
	process["args"] = []string{"/clock"}
	if text, err = json.Marshal(spec); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return nil, err
	}
	s, err := spawn.Start(spawner, runc, "--root", filepath.Join(dir, "runc-state"), "run", "--bundle", bundle, "{}")
	return spawned{s}, err
}

// Docker imports the clock into the engine as an image, by way of dir, and
// starts it by `docker run --rm --network NETWORK`.
func Docker(ctx context.Context, spawner, clock, dir string, e *dockerd.Engine, network string) (Peer, error) {
	root, image := filepath.Join(dir, "docker-"+network), "fre-bench-clock:"+network
	if err := rootWith(clock, root); err != nil {
		return nil, err
	}
	if err := e.Import(ctx, root, image); err != nil {
		return nil, err
	}
	s, err := spawn.Start(spawner, e.Command("run", "--rm", "--network", network, image, "/clock")...)
	return spawned{s}, err
}

// rootWith makes a directory whose only file is the program, as "clock".
func rootWith(program, root string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "clock"), text, 0o755)
}
