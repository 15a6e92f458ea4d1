// Package daemon runs `fre serve` as a child process, for the system tests and
// the benchmarks: they drive the program people run, by its command line and
// its HTTP address, and nothing inside it.
package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Config says what to run. Required: Bin, State.
type Config struct {
	Bin    string    // path of the fre program
	State  string    // directory of the engine's state, made by it
	Socket string    // control socket; default STATE.sock beside State
	Listen string    // HTTP address; default a free port of 127.0.0.1
	Args   []string  // further arguments of serve
	Log    io.Writer // the engine's standard error; default discards it

	// TLS, if not nil, is how clients speak to the HTTP address: Args name a certificate.
	TLS *tls.Config
}

// Daemon is a running `fre serve`. Its methods may be used by several
// goroutines.
type Daemon struct {
	cfg  Config
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // of the process, after done
}

// ErrExited says that the engine ended before it answered.
var ErrExited = errors.New("fre serve ended")

// pollEvery is how often a condition outside this process is looked at where
// nothing can be waited for.
const pollEvery = 10 * time.Millisecond

// Start runs the engine and returns once it answers on /healthz, or with
// [ErrExited] when it ends before that, or when ctx is over; then nothing is
// left running. The caller ends it with Stop or Kill.
func Start(ctx context.Context, cfg Config) (*Daemon, error) {
	if cfg.Socket == "" {
		cfg.Socket = filepath.Clean(cfg.State) + ".sock"
	}
	if cfg.Listen == "" {
		addr, err := FreeAddress()
		if err != nil {
			return nil, err
		}
		cfg.Listen = addr
	}
	d := &Daemon{cfg: cfg, done: make(chan struct{})}
	d.cmd = exec.Command(cfg.Bin, append([]string{
		"serve", "--state", cfg.State, "--socket", cfg.Socket, "--docker-socket", d.DockerSocket(), "--listen", cfg.Listen,
	}, cfg.Args...)...)
	var tail tailWriter
	d.cmd.Stderr = &tail
	if cfg.Log != nil {
		d.cmd.Stderr = io.MultiWriter(&tail, cfg.Log)
	}
	// A terminal's Ctrl-C is for us to pass on, once, as SIGTERM.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A sandbox that outlives the engine with our pipe must not hang Wait.
	d.cmd.WaitDelay = 2 * time.Second
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start fre serve: %w", err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	if err := d.waitHealthy(ctx); err != nil {
		d.Kill()
		return nil, fmt.Errorf("%w: %s", err, tail.String())
	}
	return d, nil
}

func (d *Daemon) waitHealthy(ctx context.Context) error {
	client := http.DefaultClient
	if d.cfg.TLS != nil {
		tr := &http.Transport{TLSClientConfig: d.cfg.TLS.Clone()}
		defer tr.CloseIdleConnections()
		client = &http.Client{Transport: tr}
	}
	return Until(ctx, func() error {
		select {
		case <-d.done:
			return errors.Join(errGiveUp, ErrExited, d.err)
		default:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL("/healthz"), nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET /healthz: %s", resp.Status)
		}
		return nil
	})
}

// PID is the engine's process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// State is the engine's state directory.
func (d *Daemon) State() string { return d.cfg.State }

// Addr is the host and port functions are called at.
func (d *Daemon) Addr() string { return d.cfg.Listen }

// URL is the HTTP URL of path, which begins with a slash.
func (d *Daemon) URL(path string) string {
	if d.cfg.TLS != nil {
		return "https://" + d.cfg.Listen + path
	}
	return "http://" + d.cfg.Listen + path
}

// Socket is the path of the control socket.
func (d *Daemon) Socket() string { return d.cfg.Socket }

// DockerSocket is the path of the socket for Docker's clients.
func (d *Daemon) DockerSocket() string {
	return strings.TrimSuffix(d.cfg.Socket, ".sock") + ".docker.sock"
}

// Done is closed when the process has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// CLI runs `fre ARGS…` against this engine and returns its standard output. An
// unsuccessful exit is a [*CommandError].
func (d *Daemon) CLI(ctx context.Context, args ...string) (string, error) {
	return Command(ctx, d.cfg.Bin, append([]string{"--socket", d.cfg.Socket}, args...)...)
}

// CommandError is a command that did not succeed.
type CommandError struct {
	Args   []string
	Code   int // exit status, -1 if it did not exit by itself
	Stderr string
	Err    error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Stderr))
}

func (e *CommandError) Unwrap() error { return e.Err }

// Command runs a program to its end and returns its standard output, and a
// [*CommandError] unless it succeeds.
func Command(ctx context.Context, bin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, bin, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), &CommandError{
			Args: slices.Concat([]string{filepath.Base(bin)}, args), Code: cmd.ProcessState.ExitCode(),
			Stderr: stderr.String(), Err: err,
		}
	}
	return stdout.String(), nil
}

// Stop asks the engine to end with SIGTERM and waits for it; when ctx is over
// first, it kills it. It returns an error unless the engine ended by itself
// with status 0.
func (d *Daemon) Stop(ctx context.Context) error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop fre serve: %w", err)
	}
	select {
	case <-d.done:
		if d.err != nil {
			return fmt.Errorf("fre serve: %w", d.err)
		}
		return nil
	case <-ctx.Done():
		d.Kill()
		return fmt.Errorf("stop fre serve: %w", ctx.Err())
	}
}

// Kill ends the engine with SIGKILL and waits for the process, not for what it
// leaves behind.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill() // it may have ended already
	<-d.done
}

// errGiveUp in a condition's error ends [Until] at once.
var errGiveUp = errors.New("will not come true")

// Until calls condition again and again until it returns nil, or until ctx is
// over: then its last error is returned with ctx's.
func Until(ctx context.Context, condition func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if errors.Is(err, errGiveUp) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// FreeAddress returns an address of 127.0.0.1 that nothing listened on a moment
// ago.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
