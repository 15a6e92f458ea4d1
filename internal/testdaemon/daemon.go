// Package testdaemon runs `fre serve` as a child process for system tests, benchmarks and the demo.
// They use only the command line and the HTTP address of the program, and no package inside FRE.
package testdaemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config describes the engine to start. Required: Bin, State.
type Config struct {
	Bin    string    // path of the fre program
	State  string    // directory of the engine's state; the engine creates the directory
	Socket string    // control socket; default STATE.sock beside State
	Listen string    // HTTP address; default a free port of 127.0.0.1
	Args   []string  // further arguments of serve
	Log    io.Writer // the engine's standard error; default: discarded

	// TLS, if not nil, is the clients' TLS configuration; then Args must name a certificate.
	TLS *tls.Config
}

// Daemon is a running `fre serve`. Several goroutines may use its methods.
type Daemon struct {
	cfg  Config
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // of the process, set before done is closed
}

// ErrExited reports that the engine ended before it answered.
var ErrExited = errors.New("fre serve ended")

// pollEvery is the period at which [Until] checks a condition of another process that cannot be
// waited for.
const pollEvery = 10 * time.Millisecond

// Start runs the engine and returns once the engine answers on /healthz. It returns [ErrExited] if
// the engine ends before the first answer, and ctx's error if ctx ends first; after an error no
// process is left. The caller ends the engine with Stop or Kill.
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
	// The terminal's Ctrl-C reaches only the caller, which passes it on once as SIGTERM.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// If a sandbox outlives the engine with the pipe of stderr open, Wait must not hang. An engine
	// that ended well counts as failed after the delay, so the delay outlasts a slow disk of cfg.Log.
	d.cmd.WaitDelay = 30 * time.Second
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

// PID returns the engine's process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// State returns the engine's state directory.
func (d *Daemon) State() string { return d.cfg.State }

// Addr returns the host and port for calls to functions.
func (d *Daemon) Addr() string { return d.cfg.Listen }

// URL returns the HTTP URL of path, which begins with a slash.
func (d *Daemon) URL(path string) string {
	if d.cfg.TLS != nil {
		return "https://" + d.cfg.Listen + path
	}
	return "http://" + d.cfg.Listen + path
}

// Socket returns the path of the control socket.
func (d *Daemon) Socket() string { return d.cfg.Socket }

// DockerSocket returns the path of the socket for Docker clients.
func (d *Daemon) DockerSocket() string {
	return strings.TrimSuffix(d.cfg.Socket, ".sock") + ".docker.sock"
}

// Done returns a channel that is closed when the process has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// CLI runs `fre ARGS…` against this engine and returns the standard output. An unsuccessful exit is
// a [*CommandError].
func (d *Daemon) CLI(ctx context.Context, args ...string) (string, error) {
	return Command(ctx, d.cfg.Bin, append([]string{"--socket", d.cfg.Socket}, args...)...)
}

// CommandError is the failure of a command.
type CommandError struct {
	Args   []string
	Code   int // exit status, -1 if a signal ended the command
	Stderr string
	Err    error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Stderr))
}

func (e *CommandError) Unwrap() error { return e.Err }

// Command runs a program to its end and returns the standard output. If the program fails, the
// error is a [*CommandError].
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

// Stop sends SIGTERM to the engine and waits for its end. If ctx ends first, Stop kills the engine.
// Stop returns an error unless the engine exits by itself with status 0.
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

// Kill ends the engine with SIGKILL and waits for the process, but not for the engine's children.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill() // the process may have ended already
	<-d.done
}

// errGiveUp makes [Until] return at once, when the condition's error wraps errGiveUp.
var errGiveUp = errors.New("will not come true")

// Until calls condition periodically until it returns nil. If ctx ends first, the error joins ctx's
// error and the last error of condition.
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

// ports returns the first and the last port that [FreeAddress] chooses from. They lie outside of
// the ports that the kernel gives to connections and to listeners at port 0, so that no other
// program takes one by chance between the answer and its use. A host whose kernel gives out nearly
// all ports has no such range: then they are all ports from 10,000 on.
var ports = sync.OnceValues(func() (first, last int) {
	low, high := 32768, 60999 // the kernel's default
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &low, &high)
	}
	first, last = 10_000, low-1
	if above := 65_535 - high; above > low-first {
		first, last = high+1, 65_535
	}
	if last-first < 1000 {
		first, last = 10_000, 65_535
	}
	return first, last
})

// given holds the ports that this process has been given: two callers never get the same one.
var given sync.Map

// FreeAddress returns an address of 127.0.0.1 at whose port nobody listens.
func FreeAddress() (string, error) { return FreeAddressOf("127.0.0.1") }

// FreeAddressOf is FreeAddress for another address of this host.
func FreeAddressOf(host string) (string, error) {
	first, last := ports()
	for {
		port := strconv.Itoa(first + rand.IntN(last-first+1))
		if _, again := given.LoadOrStore(port, true); again {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("find a free port: %w", err)
		}
		return l.Addr().String(), l.Close()
	}
}
