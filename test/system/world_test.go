package system_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// patience bounds the waits of a test; no measurement depends on it. SPECIFICATION.md has the
// promises.
const patience = 3 * time.Minute

// world is the program under test with its state and its engine.
type world struct {
	bin      string
	dir      string // the test's own directory
	state    string
	prepared bool // the state holds all images, and the network may be missing
	client   *http.Client
	log      *os.File
	args     []string // further arguments of serve

	d *testdaemon.Daemon // nil while no engine runs
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := daemontest.Dir(t)
	w := &world{bin: daemontest.Bin(t), dir: dir, state: filepath.Join(dir, "state"), client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	}}
	if state := os.Getenv("FRE_SYSTEM_STATE"); state != "" {
		w.state, w.prepared = state, true
	}
	var err error
	if w.log, err = os.Create(filepath.Join(dir, "engine.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(w.log.Name())
			t.Logf("the engine's log (%v), its end:\n%s", err, text[max(0, len(text)-16<<10):])
		}
		if err := w.log.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// start runs the engine on the world's state and stops the engine when t ends.
func (w *world) start(t *testing.T) {
	t.Helper()
	w.restart(t)
	t.Cleanup(func() { w.stop(t) })
}

// restart runs the engine; the caller stops the engine.
func (w *world) restart(t *testing.T) {
	t.Helper()
	w.d = daemontest.Start(t, testdaemon.Config{
		Bin: w.bin, State: w.state, Socket: filepath.Join(w.dir, "fre.sock"), Log: w.log, Args: w.args,
	})
}

func (w *world) stop(t *testing.T) {
	t.Helper()
	if w.d == nil {
		return
	}
	w.client.CloseIdleConnections()
	daemontest.Stop(t, w.d)
	w.d = nil
}

// cli runs fre, requires success and returns the standard output.
func (w *world) cli(t testing.TB, args ...string) string {
	t.Helper()
	out, err := w.d.CLI(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused runs fre, requires a failure, and requires each text of want on standard error, in any
// case of letters.
func (w *world) refused(t testing.TB, want []string, args ...string) {
	t.Helper()
	out, err := w.d.CLI(t.Context(), args...)
	checkRefused(t, out, err, want)
}

func checkRefused(t testing.TB, out string, err error, want []string) {
	t.Helper()
	var failed *testdaemon.CommandError
	if !errors.As(err, &failed) {
		t.Fatalf("got output %q and error %v, want an exit status other than 0", out, err)
	}
	if failed.Code <= 0 {
		t.Errorf("%v: got exit status %d, want a positive one", failed.Args, failed.Code)
	}
	for _, part := range want {
		if !containsFold(failed.Stderr, part) {
			t.Errorf("%v: want %q in the message:\n%s", failed.Args, part, failed.Stderr)
		}
	}
}

func containsFold(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// deploy deploys the template in dir under the directory's name: built from the source, or from the
// image of a prepared state.
func (w *world) deploy(t testing.TB, dir string) {
	t.Helper()
	name := filepath.Base(dir)
	if !w.prepared {
		w.cli(t, "deploy", dir, "--name", name)
		return
	}
	status, body := w.control(t, http.MethodPost, "/v1/functions", map[string]any{"image": ref(t, dir), "name": name})
	if status/100 != 2 {
		t.Fatalf("deploy %s: status %d: %s", name, status, body)
	}
}

// control sends a request to the engine's control socket.
func (w *world) control(t testing.TB, method, path string, in any) (int, []byte) {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://fre"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.d.Socket())
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// call invokes a function: POST /function/NAME/PATH with a body.
func (w *world) call(ctx context.Context, name, path, body string) (*testdaemon.Answer, error) {
	return testdaemon.Event{Method: http.MethodPost, Path: path, Body: body}.Call(ctx, w.client, w.d.Addr(), name)
}

// ok invokes a function, requires a 2xx status and returns the answer.
func (w *world) ok(t testing.TB, name, path, body string) *testdaemon.Answer {
	t.Helper()
	a, err := w.call(t.Context(), name, path, body)
	if err != nil {
		t.Fatalf("%s%s: %v", name, path, err)
	}
	if a.Status/100 != 2 {
		t.Fatalf("%s%s: got status %d: %s", name, path, a.Status, a.Body)
	}
	return a
}

// all invokes a function n times at once and requires 2xx answers.
func (w *world) all(t testing.TB, n int, name, path, body string) []*testdaemon.Answer {
	t.Helper()
	answers, errs := make([]*testdaemon.Answer, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i], errs[i] = w.call(t.Context(), name, path, body) })
	}
	wg.Wait()
	for i, a := range answers {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if a.Status/100 != 2 {
			t.Fatalf("%s%s, %d at once: got status %d: %s", name, path, n, a.Status, a.Body)
		}
	}
	return answers
}

// failure reads the error of an answer and requires the shape of FRE's errors.
func failure(t testing.TB, a *testdaemon.Answer) (code, message string) {
	t.Helper()
	var body struct {
		Error struct{ Code, Message, Next string }
	}
	if err := json.Unmarshal(a.Body, &body); err != nil || body.Error.Code == "" || body.Error.Message == "" {
		t.Fatalf(`status %d: got body %q (%v), want {"error":{"code":…,"message":…}}`, a.Status, a.Body, err)
	}
	return body.Error.Code, body.Error.Message
}

// sandbox is a line of `fre ps`.
type sandbox struct {
	ID, Function, State string
	PID                 int
}

// ps lists the sandboxes of a function; "" means sandboxes without a function, "*" all sandboxes.
func (w *world) ps(t testing.TB, function string) []sandbox {
	t.Helper()
	var found []sandbox
	for line := range strings.Lines(w.cli(t, "ps", "--format", "{{json .}}")) {
		var s sandbox
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("fre ps: %v: %s", err, line)
		}
		if (s.Function == function || function == "*") && s.State != "exited" && s.State != "parked" {
			found = append(found, s)
		}
	}
	return found
}

// until waits for a condition.
func until(t testing.TB, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := testdaemon.Until(ctx, condition); err != nil {
		t.Fatal(err)
	}
}

// untilIdle waits until a function has one idle sandbox: the answer leaves before the sandbox is
// free for the next event.
func (w *world) untilIdle(t testing.TB, function string) {
	t.Helper()
	until(t, func() error {
		if boxes := w.ps(t, function); len(boxes) != 1 || boxes[0].State != "idle" {
			return fmt.Errorf("%s has %+v, want one idle sandbox", function, boxes)
		}
		return nil
	})
}

// untilGone waits until a function has no sandbox.
func (w *world) untilGone(t testing.TB, function string) {
	t.Helper()
	until(t, func() error {
		if left := w.ps(t, function); len(left) > 0 {
			return fmt.Errorf("%s still has sandboxes: %+v", function, left)
		}
		return nil
	})
}

// healthy fails the test unless a neighbour answers.
func (w *world) healthy(t testing.TB) {
	t.Helper()
	if got := string(w.ok(t, "probe", "/echo", "still here").Body); got != "still here" {
		t.Fatalf("probe/echo: got %q", got)
	}
}

// instances counts the answers of each sandbox.
func instances(answers []*testdaemon.Answer) map[string]int {
	count := map[string]int{}
	for _, a := range answers {
		count[a.Header.Get("X-Fre-Instance")]++
	}
	return count
}
