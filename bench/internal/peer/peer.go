// Package peer starts one small program, the clock of bench/functions/native-clock, by each
// mechanism that the benchmarks compare: FRE, a bare process, runc and Docker. FRE and bare
// processes also start a still smaller program. Each start is measured from the request to the
// program's first instruction; the program prints the time of the first instruction.
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

// MaxBurst is the largest burst.
const MaxBurst = 4096 // the spawner's limit

// Start is one start of the program.
type Start struct {
	Took time.Duration
	Kind string // FRE's kind of start: "spawner", "attached", …; "" if unknown
}

// Peer is a mechanism that starts the program. Only one goroutine at a time may use a Peer.
type Peer interface {
	// Sequential starts the program n times in sequence, and returns the duration of each start.
	Sequential(n int) ([]Start, error)

	// Burst starts the program n times at once, and returns the time from the burst's beginning to
	// each program's first instruction.
	Burst(n int) ([]Start, error)

	Close() error
}

// spawned is a peer whose programs the C spawner starts.
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

// Bare starts the program at path by vfork and exec alone. spawner is the result of spawn.Compile.
func Bare(spawner, path string) (Peer, error) {
	s, err := spawn.Start(spawner, path)
	return spawned{s}, err
}

// BarePinned is Bare for a program pinned to one CPU, as FRE pins programs during the start.
func BarePinned(spawner, path string) (Peer, error) {
	s, err := spawn.StartPinned(spawner, path)
	return spawned{s}, err
}

// BareIn is Bare for a command with the root directory root and the host's /proc, without any other
// part of a sandbox.
func BareIn(spawner, root string, argv ...string) (Peer, error) {
	s, err := spawn.StartIn(spawner, root, argv...)
	return spawned{s}, err
}

// fre starts the program by HTTP on an open connection. The function prints the clock.
type fre struct {
	addr    string
	request []byte
	conns   []*rawhttp.Conn
}

// FRE starts the named function at the gateway addr, "host:port". The function's answer must begin
// with the monotonic clock in nanoseconds, and each request must be a cold start.
func FRE(addr, function string) Peer {
	return &fre{addr: addr, request: rawhttp.Post(addr, "/function/"+function, nil)}
}

// connect opens connections until n are open, and sends a request on each: the set-up of a
// connection is not part of a start.
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
	// One goroutine writes all requests and then reads all answers, which wait in the sockets. The
	// client thus takes no CPU time from the starts.
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

// receive reads an answer. An answer from a warm start, or without the clock, is an error.
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

// now returns the monotonic clock, which all processes of the machine share.
func now() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock_gettime: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// Runc makes a bundle below dir with only the clock, and starts the clock by `runc run`. Without
// runc the error is exec.ErrNotFound.
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
	// Keep runc's defaults except for the command and the terminal: a read-only root and all
	// namespaces.
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

// Docker imports the clock as an image, with a root directory below dir, and starts the clock by
// `docker run --rm --network NETWORK`.
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

// rootWith makes a directory with only the program, as "clock".
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
