package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/bench/internal/spawn"
)

// peer is one way to start the clock program.
type peer interface {
	// Sequential starts it n times, one after the other: how long each took
	// from the request to the program's first own instruction.
	Sequential(n int) ([]time.Duration, error)

	// Burst starts it n times at once: when each ran, from the burst's begin.
	Burst(n int) ([]time.Duration, error)

	Close() error
}

// fre starts the clock by HTTP: the request is written on a connection that
// stands already, the function prints its clock.
type fre struct {
	addr    string
	request []byte
	conns   []*rawhttp.Conn
}

func newFRE(addr, function string) *fre {
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

// Sequential implements peer on one connection.
func (f *fre) Sequential(n int) ([]time.Duration, error) {
	if err := f.connect(1); err != nil {
		return nil, err
	}
	all := make([]time.Duration, 0, n)
	for range n {
		begin, err := now()
		if err != nil {
			return nil, err
		}
		if err := f.conns[0].Send(f.request); err != nil {
			return nil, err
		}
		clock, err := f.clock(f.conns[0])
		if err != nil {
			return nil, err
		}
		all = append(all, clock-begin)
	}
	return all, nil
}

// Burst implements peer on n connections.
func (f *fre) Burst(n int) ([]time.Duration, error) {
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
	all := make([]time.Duration, 0, n)
	for _, c := range f.conns[:n] {
		clock, err := f.clock(c)
		if err != nil {
			return nil, err
		}
		all = append(all, clock-begin)
	}
	return all, nil
}

// clock reads an answer: the monotonic time the function printed. An answer
// that was not a cold start, or not the clock, is an error.
func (f *fre) clock(c *rawhttp.Conn) (time.Duration, error) {
	resp, err := c.Receive()
	if err != nil {
		return 0, err
	}
	if resp.Status != 200 {
		return 0, fmt.Errorf("status %d: %s", resp.Status, resp.Body)
	}
	if cold, _ := resp.Header("X-Fre-Cold"); cold != "1" {
		return 0, fmt.Errorf("not a cold start: X-Fre-Cold is %q", cold)
	}
	mono, _, _ := bytes.Cut(resp.Body, []byte(" "))
	ns, err := strconv.ParseInt(string(mono), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("not the clock's answer: %q", resp.Body)
	}
	return time.Duration(ns), nil
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

// newRunc makes a bundle of the clock alone below dir and starts it by
// `runc run`. Without runc the error is exec.ErrNotFound.
func newRunc(ctx context.Context, spawner, clock, dir string) (peer, error) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return nil, err
	}
	bundle := filepath.Join(dir, "runc")
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
		return nil, err
	}
	if err := copyFile(clock, filepath.Join(bundle, "rootfs", "clock")); err != nil {
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
	return spawn.Start(spawner, runc, "--root", filepath.Join(dir, "runc-state"), "run", "--bundle", bundle, "{}")
}

// dockerImage is the name of the image the benchmark makes and removes.
const dockerImage = "fre-bench-clock:latest"

// errNoEngine says that no docker engine answers.
var errNoEngine = errors.New("no docker engine answers")

type docker struct {
	*spawn.Spawner
	docker string
}

// newDocker imports the clock as an image and starts it by `docker run`.
// Without an engine the error is errNoEngine.
func newDocker(ctx context.Context, spawner, clock, dir string) (peer, error) {
	bin, err := exec.LookPath("docker")
	if err != nil {
		return nil, errNoEngine
	}
	if err := exec.CommandContext(ctx, bin, "info").Run(); err != nil {
		return nil, errNoEngine
	}
	root := filepath.Join(dir, "docker")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := copyFile(clock, filepath.Join(root, "clock")); err != nil {
		return nil, err
	}
	tar := exec.CommandContext(ctx, "tar", "-C", root, "-c", "clock")
	load := exec.CommandContext(ctx, bin, "import", "-", dockerImage)
	if load.Stdin, err = tar.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := tar.Start(); err != nil {
		return nil, err
	}
	out, err := load.CombinedOutput()
	if err := errors.Join(err, tar.Wait()); err != nil {
		return nil, fmt.Errorf("docker import: %w: %s", err, out)
	}
	s, err := spawn.Start(spawner, bin, "run", "--rm", "--network", "none", dockerImage, "/clock")
	if err != nil {
		return nil, err
	}
	return &docker{Spawner: s, docker: bin}, nil
}

// Close ends the spawner and removes the image.
func (d *docker) Close() error {
	err := d.Spawner.Close()
	if out, rm := exec.Command(d.docker, "image", "rm", dockerImage).CombinedOutput(); rm != nil {
		err = errors.Join(err, fmt.Errorf("docker image rm: %w: %s", rm, out))
	}
	return err
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("the benchmark's own directory is not new: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
