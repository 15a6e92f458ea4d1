package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/client"
)

// asked holds the results of one repeated request to an engine. A latency counts from the first
// byte of the request to the last byte of the answer.
type asked struct {
	Name    string          `json:"name"`
	Bytes   int             `json:"bytes,omitempty"` // of the body
	Latency []time.Duration `json:"latency_ns"`
	CPU     []time.Duration `json:"cpu_ns,omitempty"` // the engine's CPU time per call, one value per turn
	Err     string          `json:"error,omitempty"`
	prepare func() error    // runs before each call, not counted; may be nil
	do      func() error    // makes one call
	holds   string          // text that the answer must contain
	lacks   string          // text that the answer must not contain; "": no check
	end     func() error    // closes the resources of do
	usage   func() (time.Duration, error)
}

// p50 returns the median latency, 0 after a failure.
func (a *asked) p50() time.Duration {
	if a == nil || a.Err != "" {
		return 0
	}
	return stats.Median(a.Latency)
}

// cpu returns the median of the engine's CPU time per call, 0 after a failure.
func (a *asked) cpu() time.Duration {
	if a == nil || a.Err != "" {
		return 0
	}
	return stats.Median(a.CPU)
}

// turns describes the amount of measurement.
type turns struct {
	rounds int           // turns of each request
	slice  time.Duration // duration of a turn; a turn has at least one call
	calls  int           // most calls in a turn
}

// ask measures all requests in turns. A failed request stores the error in Err and takes no further
// turns. The returned error is ctx's.
func ask(ctx context.Context, t turns, all ...*asked) error {
	defer func() {
		for _, a := range all {
			if a.end != nil {
				_ = a.end() // the connection is not needed any more
			}
		}
	}()
	for _, a := range all {
		if a.Err == "" {
			a.fail(a.once()) // not counted: makes the connection and fills caches
			a.Latency = nil
		}
	}
	for range t.rounds {
		for _, a := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			if a.Err == "" {
				a.fail(a.turn(t))
			}
		}
	}
	return nil
}

func (a *asked) fail(err error) {
	if err != nil {
		a.Err = err.Error()
	}
}

// once makes a call and records the latency.
func (a *asked) once() error {
	if a.prepare != nil {
		if err := a.prepare(); err != nil {
			return err
		}
	}
	at := time.Now()
	if err := a.do(); err != nil {
		return err
	}
	a.Latency = append(a.Latency, time.Since(at))
	return nil
}

func (a *asked) turn(t turns) error {
	var before, after time.Duration
	var err error
	if a.usage != nil {
		if before, err = a.usage(); err != nil {
			return err
		}
	}
	n := 0
	for begin := time.Now(); n < t.calls && (n == 0 || time.Since(begin) < t.slice); n++ {
		if err := a.once(); err != nil {
			return err
		}
	}
	if a.usage != nil {
		if after, err = a.usage(); err != nil {
			return err
		}
		a.CPU = append(a.CPU, (after-before)/time.Duration(n))
	}
	return nil
}

// get returns a request for path over one connection to a Unix socket, with further header lines. A
// status other than the given status is an error. pids lists the engine's processes.
func get(name, socket, path string, status int, pids []int, header ...string) *asked {
	a := &asked{Name: name}
	if pids != nil {
		a.usage = func() (time.Duration, error) { return cpuTime(pids) }
	}
	request := rawhttp.Get("bench", path, header...)
	var conn *rawhttp.Conn
	a.end = func() error {
		if conn == nil {
			return nil
		}
		return conn.Close()
	}
	a.do = func() error {
		if conn == nil {
			var err error
			if conn, err = rawhttp.DialUnix(socket); err != nil {
				return err
			}
		}
		resp, err := conn.Do(request)
		if err != nil {
			return fmt.Errorf("GET %s: %w", path, err)
		}
		if resp.Status != status {
			return fmt.Errorf("GET %s: status %d, want %d: %.200s", path, resp.Status, status, resp.Body)
		}
		a.Bytes = len(resp.Body)
		if a.holds != "" && !bytes.Contains(resp.Body, []byte(a.holds)) {
			return fmt.Errorf("GET %s: no %s in the answer", path, a.holds)
		}
		if a.lacks != "" && bytes.Contains(resp.Body, []byte(a.lacks)) {
			return fmt.Errorf("GET %s: still %s in the answer", path, a.lacks)
		}
		return nil
	}
	return a
}

// tagOf returns the ETag of the answer for a path.
func tagOf(socket, path string) (string, error) {
	conn, err := rawhttp.DialUnix(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	resp, err := conn.Do(rawhttp.Get("bench", path))
	if err != nil {
		return "", fmt.Errorf("GET %s: %w", path, err)
	}
	tag, ok := resp.Header("ETag")
	if resp.Status != http.StatusOK || !ok {
		return "", fmt.Errorf("GET %s: status %d, ETag %q", path, resp.Status, tag)
	}
	return tag, nil
}

// unchanged returns a conditional request for an unchanged resource: the answer is 304.
func unchanged(name, socket, path string, pids []int) *asked {
	tag, err := tagOf(socket, path)
	if err != nil {
		return &asked{Name: name, Err: err.Error()}
	}
	return get(name, socket, path, http.StatusNotModified, pids, "If-None-Match: "+tag)
}

// tagged returns a request for the list of images right after an image got a further name. The list
// must contain the name.
func tagged(ctx context.Context, name, socket string, cl *client.Client) *asked {
	a := get(name, socket, imagesPath, http.StatusOK, nil)
	n := 0
	a.prepare = func() error {
		n++
		tag := fmt.Sprintf("bench-tagged:%d", n)
		a.holds = strconv.Quote(tag)
		_, err := cl.Images().Tag(ctx, imageName(0)+":1", tag)
		return err
	}
	return a
}

// untagged returns a request for the list of images right after an image lost a name. The list must
// not contain the name.
func untagged(ctx context.Context, name, socket string, cl *client.Client) *asked {
	a := get(name, socket, imagesPath, http.StatusOK, nil)
	n := 0
	a.prepare = func() error {
		n++
		tag := fmt.Sprintf("bench-untagged:%d", n)
		if _, err := cl.Images().Tag(ctx, imageName(0)+":1", tag); err != nil {
			return err
		}
		a.lacks = ""
		if err := a.do(); err != nil { // the list contains the name
			return err
		}
		a.lacks = strconv.Quote(tag)
		_, err := cl.Images().Remove(ctx, tag, client.RemoveOptions{})
		return err
	}
	return a
}

// program measures a whole run of a command.
func program(ctx context.Context, name string, argv []string) *asked {
	return &asked{Name: name, do: func() error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		out, err := cmd.Output()
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return fmt.Errorf("%v: %w: %.300s", argv, err, failed.Stderr)
		}
		if err == nil && len(out) == 0 {
			return fmt.Errorf("%v printed nothing", argv)
		}
		return err
	}}
}

// cpuTime returns the processes' CPU time by their clocks (clock_getcpuclockid(3)), which are
// exact, unlike the ticks in /proc/PID/stat.
func cpuTime(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		var t unix.Timespec
		err := unix.ClockGettime(int32(^pid<<3|2), &t)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH) {
			continue // a short-lived helper has ended
		}
		if err != nil {
			return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}
