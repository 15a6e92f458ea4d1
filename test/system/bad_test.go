package system_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

func asCommandError(err error, into **testdaemon.CommandError) bool { return errors.As(err, into) }

func readAll(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testBad sends bad input. Each case gets a clear error, and a neighbour answers after each.
func (w *world) testBad(t *testing.T) {
	// Calls that end in a known status by the function's own fault.
	for _, c := range []struct {
		name, function, path string
		status               []int
		message              string // a part of the message
		slow                 bool   // runs into the time limit
	}{
		{"never answers", "chaos", "/hang", []int{504}, "time", true},
		{"never answers, native", "shell", "/hang", []int{504}, "time", true},
		{"ignores SIGTERM", "chaos", "/ignore", []int{504}, "time", true},
		{"ignores SIGTERM, native", "shell", "/ignore", []int{504}, "time", true},
		{"exits at once", "chaos", "/leave", []int{502}, "status 3", false},
		{"exits at once, native", "shell", "/exit", []int{500}, "7", false},
		{"crashes", "chaos", "/segfault", []int{502}, "before", false},
		{"forks a bomb", "chaos", "/fork", []int{502, 504}, "", true},
		{"forks a bomb, native", "shell", "/bomb", []int{500, 502, 504}, "", true},
		{"eats memory", "chaos", "/memory", []int{500, 502}, "memory", false},
		{"answers with a malformed frame", "chaos", "/frame", []int{502}, "frame", false},
		{"fills tmp", "chaos", "/tmp", []int{500}, "space", false},
		{"opens too many files", "chaos", "/files", []int{500, 502}, "", false}, // the error report may need one more file
		{"splits a header", "chaos", "/split", []int{500, 502}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.slow {
				t.Parallel()
			}
			a, err := w.call(t.Context(), c.function, c.path, "")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(c.status, a.Status) {
				t.Fatalf("got status %d: %s, want one of %v", a.Status, a.Body, c.status)
			}
			if _, message := failure(t, a); !containsFold(message, c.message) {
				t.Errorf("got message %q, want %q in it", message, c.message)
			}
			w.untilGone(t, c.function) // all processes of the function have ended
			w.healthy(t)
		})
	}

	t.Run("cannot be loaded", func(t *testing.T) {
		for range 2 {
			a, err := w.call(t.Context(), "unloadable", "", "")
			if err != nil {
				t.Fatal(err)
			}
			if _, message := failure(t, a); a.Status != http.StatusInternalServerError || !strings.Contains(message, "not today") {
				t.Errorf("got status %d: %s, want 500 and the exception's message", a.Status, a.Body)
			}
		}
		until(t, w.logged("unloadable", "not today", "unloadable.py"))
		w.untilGone(t, "unloadable")
		w.healthy(t)
	})
	t.Run("leaves a daemon behind", func(t *testing.T) {
		w.ok(t, "chaos", "/daemon", "")
		w.untilGone(t, "chaos")
		w.healthy(t)
	})
	t.Run("forges the engine's headers", func(t *testing.T) {
		a, err := w.call(t.Context(), "chaos", "/forge", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Header.Values("X-Fre-Id"); len(got) != 1 || got[0] == "forged" {
			t.Errorf("X-Fre-Id: got %q, want the engine's own", got)
		}
	})
	t.Run("writes 1 GiB to stdout", w.testFlood)
	t.Run("writes 1 GiB to stdout, native", w.testNativeFlood)
	t.Run("headers too large", w.testHeaders)
	t.Run("body over the limit", w.testBody)
	t.Run("unknown name", func(t *testing.T) {
		a, err := w.call(t.Context(), "no-such-function", "", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, message := failure(t, a); a.Status != http.StatusNotFound || !strings.Contains(message, "no-such-function") {
			t.Errorf("got status %d: %s, want 404 and the name", a.Status, a.Body)
		}
	})
	t.Run("malformed request", w.testRequestLines)
	t.Run("name already taken", func(t *testing.T) {
		status, body := w.control(t, http.MethodPost, "/v1/functions", map[string]any{"image": "probe:1.0.0", "name": "shell"})
		if status != http.StatusConflict || !bytes.Contains(body, []byte("shell")) {
			t.Errorf("got status %d: %s, want 409 and the name", status, body)
		}
		if got := string(w.ok(t, "shell", "/well", "").Body); got != "well\n" {
			t.Errorf("the function that had the name: got %q", got)
		}
	})
	t.Run("engine already running on that state directory", func(t *testing.T) {
		addr, err := testdaemon.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := testdaemon.Command(ctx, w.bin, "serve", "--state", w.state, "--socket", filepath.Join(w.dir, "other.sock"), "--listen", addr)
		checkRefused(t, out, err, []string{"already"})
		w.healthy(t)
	})
	t.Run("not root", w.testNotRoot)
}

// testFlood: a gigabyte on standard output goes to the rotated log, and fills neither the disk nor
// the engine's memory.
func (w *world) testFlood(t *testing.T) {
	before := diskUse(t, w.state)
	a, err := w.call(t.Context(), "flood", "/stdout", "")
	if err != nil {
		t.Fatal(err)
	}
	if a.Status != http.StatusOK {
		failure(t, a)
	}
	if grown := diskUse(t, w.state) - before; grown > 128<<20 {
		t.Errorf("the state directory grew by %d bytes", grown)
	}
	w.checkMemory(t)
	w.healthy(t)
}

// testNativeFlood: the standard output of a native function is the answer. The answer arrives whole
// or breaks off with an error, and the engine does not keep the bytes.
func (w *world) testNativeFlood(t *testing.T) {
	resp, err := w.client.Post(w.d.URL("/function/shell-flood/flood"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK && n != 1<<30 {
		t.Errorf("got %d bytes with status 200 and no error, want %d", n, 1<<30)
	}
	w.checkMemory(t)
	w.untilGone(t, "shell-flood")
	w.healthy(t)
}

// checkMemory fails if the engine's memory ever passed half a gigabyte.
func (w *world) checkMemory(t testing.TB) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			if kib, err := strconv.Atoi(f[1]); err != nil || kib > 512<<10 {
				t.Errorf("the engine's memory peaked at %s kB (%v)", f[1], err)
			}
			return
		}
	}
	t.Error("no VmHWM in the engine's /proc status")
}

// diskUse returns the bytes on disk of all files below dir. A file with several links counts once.
func diskUse(t testing.TB, dir string) int64 {
	t.Helper()
	seen, sum := map[uint64]bool{}, int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func (w *world) testHeaders(t *testing.T) {
	large := "X-Large: " + strings.Repeat("x", 256<<10) + "\r\n"
	answer := w.raw(t, "GET /function/probe/echo HTTP/1.1\r\nHost: x\r\n"+large+"\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 431 ") {
		t.Errorf("got %q, want status 431", answer)
	}
	w.healthy(t)
}

// testBody sends bodies above the limit: one with an announced length, one in chunks.
func (w *world) testBody(t *testing.T) {
	t.Run("announced", func(t *testing.T) {
		answer := w.raw(t, "POST /function/probe/digest HTTP/1.1\r\nHost: x\r\nContent-Length: 1099511627776\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 413 ") {
			t.Errorf("got %q, want status 413", answer)
		}
	})
	t.Run("in chunks", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.d.URL("/function/probe/digest"), io.LimitReader(zeros{}, 1<<30))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.client.Do(req)
		// The engine may close the connection while the client still sends. Then the client reports
		// only its own error.
		if err == nil {
			if body := readAll(t, resp); resp.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("got status %d: %s, want 413", resp.StatusCode, body)
			}
		}
	})
	w.healthy(t)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// raw sends bytes and returns the beginning of the answer.
func (w *world) raw(t testing.TB, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", w.d.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1024)
	n, err := c.Read(answer)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(answer[:n])
}

func (w *world) testRequestLines(t *testing.T) {
	for name, text := range map[string]string{
		"not HTTP":            "hello\r\n\r\n",
		"two lengths":         "POST /function/probe/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"no length at all":    "POST /function/probe/echo HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
		"control in a header": "GET /function/probe/echo HTTP/1.1\r\nHost: x\r\nX-A: \x00\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.raw(t, text); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("got %q, want status 400", got)
			}
		})
	}
	w.healthy(t)
}

func (w *world) testNotRoot(t *testing.T) {
	dir := daemontest.Dir(t) // the checkout may be below root's home
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(w.bin)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "fre")
	if err := os.WriteFile(bin, program, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "serve", "--state", filepath.Join(dir, "state"), "--socket", filepath.Join(dir, "sock"), "--listen", "127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil || ctx.Err() != nil {
		t.Fatalf("fre serve as nobody: got %v, want an exit status other than 0 at once", err)
	}
	if !containsFold(stderr.String(), "root") {
		t.Errorf("want what to do in the message:\n%s", stderr.String())
	}
}
