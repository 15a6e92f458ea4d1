// Package testbed compares servers side by side: in a network namespace of their own, with one CPU
// for the servers and one for the client, in turns. The package computes the ratios that the
// project has set as aims.
package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// Server is a running server under test.
type Server struct {
	Addr  string
	PID   int
	Alone bool // the children count as functions behind the server
	Stop  func() error
	Heap  func(context.Context) (Heap, error) // of a Go program; nil: unknown
}

// Heap holds the memory statistics of a Go program.
type Heap struct {
	Mallocs uint64
	Bytes   uint64  // bytes allocated in total
	Pauses  uint64  // number of the garbage collector's pauses in total
	Paused  float64 // total of all pauses, in seconds
	Longest float64 // the longest of the recent pauses, in seconds
}

// Serve runs a server that prints its address and serves until standard input ends.
func Serve(name string, args ...string) (*Server, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Server{PID: cmd.Process.Pid, Stop: func() error { return errors.Join(stdin.Close(), cmd.Wait()) }}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: its address: %w", strings.Join(args, " "), err), s.Stop())
	}
	s.Addr = strings.TrimSpace(line)
	return s, nil
}

// Spawn runs a server that ends on SIGINT, and waits until the server accepts connections.
func Spawn(ctx context.Context, addr, name string, args ...string) (*Server, error) {
	cmd := exec.Command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s := &Server{Addr: addr, PID: cmd.Process.Pid, Stop: func() error {
		_ = cmd.Process.Signal(os.Interrupt) // ends fast; the process may have ended already
		<-ended
		return nil
	}}
	err := testdaemon.Until(ctx, func() error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		if _, gone := os.Stat(fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)); errors.Is(gone, fs.ErrNotExist) {
			return fmt.Errorf("%s ended: %s", name, stderr.String())
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Look returns the path of a program, also from /usr/sbin, which may be missing from PATH; "" if
// not found.
func Look(name string) string {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	return ""
}

// NginxVersion returns the version line of nginx; "none" if nginx is not installed.
func NginxVersion(ctx context.Context) string {
	nginx := Look("nginx")
	if nginx == "" {
		return "none"
	}
	out, err := exec.CommandContext(ctx, nginx, "-v").CombinedOutput() // prints to standard error
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

// Get returns the body of an answer. A status other than 200 is an error.
func Get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return string(text), err
}

// Metric returns the value of a metric without labels in the text format of Prometheus.
func Metric(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no %s among the metrics", name)
}

// GoHeap reads the metrics of a Go program, as exported by Prometheus' client for Go.
func GoHeap(ctx context.Context, url string) (h Heap, err error) {
	text, err := Get(ctx, url)
	if err != nil {
		return h, err
	}
	var mallocs, bytes, pauses float64
	for name, to := range map[string]*float64{
		"go_memstats_mallocs_total": &mallocs, "go_memstats_alloc_bytes_total": &bytes,
		"go_gc_duration_seconds_count": &pauses, "go_gc_duration_seconds_sum": &h.Paused, `go_gc_duration_seconds{quantile="1"}`: &h.Longest,
	} {
		if *to, err = Metric(text, name); err != nil {
			return h, err
		}
	}
	h.Mallocs, h.Bytes, h.Pauses = uint64(mallocs), uint64(bytes), uint64(pauses)
	return h, nil
}
